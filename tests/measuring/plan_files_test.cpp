// What `tightwire plan` reads: models in every form, calibrations, and what it says of files that are neither.
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <string>

#include <tightwire/core_codecs.hpp>

#include "calibration_file.hpp"
#include "model_file.hpp"
#include "support/ranks.hpp"

namespace tightwire::tool {
namespace {

/// A file that is gone at the end.
class File {
 public:
  File(const std::string& name, const std::string& content)
      : path_(std::filesystem::temp_directory_path() / (std::to_string(::getpid()) + name)) {
    std::ofstream(path_, std::ios::binary) << content;
  }
  File(const File&) = delete;
  File& operator=(const File&) = delete;
  ~File() { std::filesystem::remove(path_); }
  std::string path() const { return path_.string(); }

 private:
  std::filesystem::path path_;
};

std::string safetensors(const std::string& header, std::uint64_t claimed) {
  std::string file;
  for (int i = 0; i < 8; ++i) file.push_back(static_cast<char>(claimed >> (8 * i) & 0xff));
  return file + header;
}
std::string safetensors(const std::string& header) { return safetensors(header, header.size()); }

TEST(ModelFile, ReadsTheHeaderOfSafetensors) {
  const File file("a.safetensors", safetensors(R"({"__metadata__": {"format": "pt"},
    "w": {"dtype": "BF16", "shape": [3, 5], "data_offsets": [0, 30]},
    "ids": {"dtype": "I64", "shape": [7], "data_offsets": [30, 86]},
    "b": {"dtype": "F32", "shape": [], "data_offsets": [86, 90]}})") +
                                       std::string(90, '\0'));
  const auto parameters = read_model(file.path());
  ASSERT_EQ(parameters.size(), 2u);
  EXPECT_EQ(parameters[0].name, "w");
  EXPECT_EQ(parameters[0].shape, (std::vector<std::int64_t>{3, 5}));
  EXPECT_EQ(parameters[0].type, ElementType::bf16);
  EXPECT_TRUE(parameters[1].shape.empty());
}

TEST(ModelFile, ReadsShapesAndDescriptions) {
  const File json("b.json", R"({"w": [64, 3, 7, 7], "h": {"shape": [2], "dtype": "F16"}})");
  EXPECT_EQ(read_model(json.path())[0].shape, (std::vector<std::int64_t>{64, 3, 7, 7}));
  EXPECT_EQ(read_model(json.path())[1].type, ElementType::f16);
  const File lines("c.txt", "# a model\nw 64x3 bf16\n\nb 64  # of w\n");
  const auto of_lines = read_model(lines.path());
  ASSERT_EQ(of_lines.size(), 2u);
  EXPECT_EQ(of_lines[0].type, ElementType::bf16);
  EXPECT_EQ(of_lines[1].shape, (std::vector<std::int64_t>{64}));
  const File described("d.txt",
                       "wire version 2\nworld size 2\nparameter 0 \"w [1]\" [64,3] fp32 int8:block=256\n"
                       "parameter 1 \"s\" [] bf16 exact\nbucket 0 of parameters 0 1: two_shot\n");
  const auto of_session = read_model(described.path());
  ASSERT_EQ(of_session.size(), 2u);
  EXPECT_EQ(of_session[0].name, "w [1]");
  EXPECT_EQ(of_session[0].shape, (std::vector<std::int64_t>{64, 3}));
  EXPECT_EQ(of_session[1].type, ElementType::bf16);
}

TEST(ModelFile, NamesWhatIsWrong) {
  const auto says = [](const std::string& name, const std::string& content, const std::string& part) {
    const File file(name, content);
    EXPECT_ERROR(read_model(file.path()), Errc::invalid_argument, part);
    EXPECT_ERROR(read_model(file.path()), Errc::invalid_argument, name);
  };
  EXPECT_ERROR(read_model("/nowhere/model"), Errc::invalid_argument, "/nowhere/model");
  says("e.safetensors", "abc", "first 8 bytes");
  says("e.safetensors", safetensors("{}", 1000), "ends within its header");
  says("e.safetensors", safetensors("{}", ~std::uint64_t{0}), "says that its header has");
  says("e.safetensors", safetensors("[1"), "parse");
  says("e.safetensors", safetensors(R"({"w": {"dtype": "F64", "shape": [2]}})"), "F64");
  says("e.json", R"({"w": {"dtype": "F32"}})", "\"w\" has no shape");
  says("e.json", R"({"w": [2, -1]})", "no list of numbers");
  says("e.json", R"({"w": ["2"]})", "no list of numbers");
  says("e.json", R"({"w": {"shape": [2], "dtype": 5}})", "type must be string");
  says("e.txt", "w 2x2\nv 3xq\n", "line 2: \"q\"");
  says("e.txt", "w\n", "line 1: \"w\" has no shape");
  says("e.txt", "w 2 fp32 fp32\n", "one word too many");
  says("e.txt", "w 2 fp64\n", "fp64");
  says("e.txt", "# nothing\n", "no parameters");
}

TEST(CalibrationFile, ComesBackAsItWas) {
  Calibration calibration;
  calibration.ranks = 3;
  calibration.link = {25e-6, 2e-6, 1.25e9, 0.7};
  calibration.costs.add("int8:block=256", 1e6, {1e-10, 2e-10, 3e-10});
  calibration.shares_memory = true;
  calibration.ranks_per_core = 2;
  const File file("f.json", "");
  write_calibration(file.path(), calibration, "test");
  const Calibration again = read_calibration(file.path());
  EXPECT_EQ(again.ranks, 3);
  EXPECT_NEAR(again.link.latency_seconds, 25e-6, 1e-15);
  EXPECT_NEAR(again.link.message_seconds, 2e-6, 1e-15);
  EXPECT_NEAR(again.link.bytes_per_second, 1.25e9, 1);
  EXPECT_NEAR(again.link.overlap, 0.7, 1e-12);
  EXPECT_NEAR(again.costs.at("int8:block=256", 1e6).encode_seconds, 1e-10, 1e-20);
  EXPECT_NEAR(again.costs.at("int8:block=256", 1e6).combine_seconds, 2e-10, 1e-20);
  EXPECT_NEAR(again.costs.at("int8:block=256", 1e6).decode_seconds, 3e-10, 1e-20);
  EXPECT_TRUE(again.shares_memory);
  EXPECT_EQ(again.ranks_per_core, 2);
}

TEST(CalibrationFile, NamesWhatIsWrong) {
  const auto says = [](const std::string& content, const std::string& part) {
    const File file("g.json", content);
    EXPECT_ERROR(read_calibration(file.path()), Errc::invalid_argument, part);
    EXPECT_ERROR(read_calibration(file.path()), Errc::invalid_argument, "g.json");
  };
  const std::string head = R"({"tightwire_calibration": 2, "ranks": 2, "shares_memory": false, "ranks_per_core": 1, )";
  says("{", "parse");
  says("[]", "no calibration");
  says(R"({"tightwire_calibration": "2"})", "type must be number");
  says(R"({"tightwire_calibration": 1})", "of version 2");
  says(head + R"("codecs": {}})", "\"link\" is missing");
  says(R"({"tightwire_calibration": 2, "ranks": 2, "link": {}, "codecs": {}})", "shares_memory");
  says(head + R"("link": {"latency_us": 1, "message_us": 1, "gbit_per_s": 0, "overlap": 1}, "codecs": {}})",
       "gbit_per_s");
  says(head + R"("link": {"latency_us": 1, "message_us": 1, "gbit_per_s": 1, "overlap": 5}, "codecs": {}})", "overlap");
  says(head + R"("link": {"latency_us": 1, "message_us": 1, "gbit_per_s": 1, "overlap": 1}, "codecs": {"c": [5]}})",
       "is no number");
  EXPECT_ERROR(read_calibration("/nowhere/c"), Errc::invalid_argument, "/nowhere/c");
  EXPECT_ERROR(write_calibration("/nowhere/c", {}, ""), Errc::invalid_argument, "/nowhere/c");
}

}  // namespace
}  // namespace tightwire::tool
