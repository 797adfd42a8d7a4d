#include "model_file.hpp"

#include <algorithm>
#include <array>
#include <charconv>
#include <cstdint>
#include <fstream>
#include <optional>
#include <sstream>
#include <string_view>

#include <nlohmann/json.hpp>

namespace tightwire::tool {
namespace {

class ModelReader {
 public:
  explicit ModelReader(std::string path) : path_(std::move(path)) {}

  std::vector<Parameter> read() {
    std::ifstream file(path_, std::ios::binary);
    if (!file) throw bad("cannot be read");
    if (path_.ends_with(".safetensors")) {
      read_json(safetensors_header(file));
    } else {
      std::ostringstream all;
      all << file.rdbuf();
      const std::string text = all.str();
      const std::size_t first = text.find_first_not_of(" \t\r\n");
      first != std::string::npos&& text[first] == '{' ? read_json(text) : read_lines(text);
    }
    if (parameters_.empty()) throw bad("no parameters");
    return std::move(parameters_);
  }

 private:
  Error bad(const std::string& what) const { return Error(Errc::invalid_argument, "model \"" + path_ + "\": " + what); }

  std::string safetensors_header(std::istream& file) const {
    std::array<unsigned char, 8> head{};
    if (!file.read(reinterpret_cast<char*>(head.data()), head.size())) throw bad("ends within its first 8 bytes");
    std::uint64_t bytes = 0;
    for (std::size_t i = head.size(); i-- > 0;) bytes = bytes << 8 | head[i];
    constexpr std::uint64_t kMost = 100'000'000;  // as the format says
    if (bytes > kMost) throw bad("says that its header has " + std::to_string(bytes) + " bytes");
    std::string header(bytes, ' ');
    if (!file.read(header.data(), static_cast<std::streamsize>(bytes))) throw bad("ends within its header");
    return header;
  }

  void read_json(const std::string& text) {
    try {
      read_shapes(nlohmann::ordered_json::parse(text));
    } catch (const nlohmann::json::exception& error) {
      throw bad(error.what());
    }
  }
  void read_shapes(const nlohmann::ordered_json& json) {
    for (const auto& [name, value] : json.items()) {
      if (name == "__metadata__") continue;
      const bool whole = value.is_object();
      if (whole && !value.contains("shape")) throw bad("\"" + name + "\" has no shape");
      const auto& shape = whole ? value.at("shape") : value;
      const bool numbers = shape.is_array() && std::all_of(shape.begin(), shape.end(), [](const auto& extent) {
                             return extent.is_number_unsigned();
                           });
      if (!numbers) throw bad("the shape of \"" + name + "\" is no list of numbers");
      const std::string type = whole ? value.value("dtype", "F32") : "F32";
      if (type.starts_with('I') || type.starts_with('U') || type == "BOOL") continue;
      add(name, shape.template get<std::vector<std::int64_t>>(), type, "\"" + name + "\"");
    }
  }

  void read_lines(const std::string& text) {
    std::istringstream lines(text);
    const bool described = text.find("\nparameter 0 \"") != std::string::npos || text.starts_with("parameter 0 \"");
    std::string line;
    for (int number = 1; std::getline(lines, line); ++number) {
      const std::string where = "line " + std::to_string(number);
      if (described) {
        if (line.starts_with("parameter ")) read_described(line, where);
        continue;
      }
      std::istringstream words(line.substr(0, line.find('#')));
      std::string name, shape, type = "fp32", more;
      if (!(words >> name)) continue;
      if (!(words >> shape)) throw bad(where + ": \"" + name + "\" has no shape");
      words >> type;
      if (words >> more) throw bad(where + ": \"" + more + "\" is one word too many");
      add(name, extents(shape, 'x', where), type, where);
    }
  }
  /// parameter 3 "layer.weight" [64,3,7,7] fp32 int8:block=256
  void read_described(const std::string& line, const std::string& where) {
    const std::size_t open = line.find('"'), shape = line.rfind("\" [");
    const std::size_t end = shape == std::string::npos ? shape : line.find(']', shape);
    if (open == std::string::npos || end == std::string::npos || shape <= open)
      throw bad(where + ": no parameter of a Session's description");
    std::istringstream rest(line.substr(end + 1));
    std::string type;
    rest >> type;
    add(line.substr(open + 1, shape - open - 1), extents(line.substr(shape + 3, end - shape - 3), ',', where), type,
        where);
  }

  std::vector<std::int64_t> extents(std::string_view text, char separator, const std::string& where) const {
    std::vector<std::int64_t> shape;
    while (!text.empty()) {
      const std::size_t end = text.find(separator);
      const std::string_view word = text.substr(0, end);
      std::int64_t extent = 0;
      const auto parsed = std::from_chars(word.data(), word.data() + word.size(), extent);
      if (parsed.ec != std::errc{} || parsed.ptr != word.data() + word.size() || extent < 0)
        throw bad(where + ": \"" + std::string(word) + "\" is no extent of a shape");
      shape.push_back(extent);
      text = end == std::string_view::npos ? std::string_view{} : text.substr(end + 1);
    }
    return shape;
  }

  void add(const std::string& name, std::vector<std::int64_t> shape, const std::string& type,
           const std::string& where) {
    std::optional<ElementType> element;
    if (type == "F32" || type == "fp32") element = ElementType::f32;
    if (type == "F16" || type == "fp16") element = ElementType::f16;
    if (type == "BF16" || type == "bf16") element = ElementType::bf16;
    if (!element) throw bad(where + ": elements of type " + type + " are not known; known are fp32, bf16, fp16");
    parameters_.push_back({.name = name, .shape = std::move(shape), .type = *element});
  }

  std::string path_;
  std::vector<Parameter> parameters_;
};

}  // namespace

std::vector<Parameter> read_model(const std::string& path) { return ModelReader(path).read(); }

}  // namespace tightwire::tool
