// What the quickstart claims of itself: it can be repeated, it notices ranks that differ, and it refuses damaged data.
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <string>
#include <vector>

#include <tightwire/local_transport.hpp>
#include <tightwire/ucx.hpp>

#include "multi/process_ranks.hpp"
#include "report.hpp"
#include "training.hpp"

namespace quickstart::training_test {
namespace {

constexpr int kRanks = 4;

TrainingOptions short_training(const std::string& codec) {
  TrainingOptions options;
  options.codec = codec;
  options.epochs = 1;
  options.steps_per_epoch = 12;
  return options;
}

/// By rank. `options_of(rank)` should be the same for all.
template <class OptionsOf>
std::vector<TrainingResult> train_threads(const FashionMnist& data, const OptionsOf& options_of) {
  std::vector<TrainingResult> results(kRanks);
  tightwire::local::run(kRanks, [&](const std::shared_ptr<tightwire::Transport>& transport) {
    results[static_cast<std::size_t>(transport->rank())] = train(transport, data, options_of(transport->rank()));
  });
  return results;
}

TEST(QuickstartTraining, ProcessesOverUcxAndThreadsGiveTheSameParametersEveryTime) {
  const TrainingOptions options = short_training("int4");
  const auto ranks = tightwire::testing::run_ranks(
      kRanks,
      [&](const tightwire::Rendezvous& rendezvous) {
        const TrainingResult result = train(tightwire::ucx::open(rendezvous), load_fashion_mnist(), options);
        write_json("/dev/stdout", {result});
        return 0;
      },
      {.limit = std::chrono::minutes(5), .timeout = std::chrono::minutes(1)});
  ASSERT_EQ(tightwire::testing::complaints(ranks), "");

  const FashionMnist data = load_fashion_mnist();
  const auto once = train_threads(data, [&](int) { return options; });
  const auto again = train_threads(data, [&](int) { return options; });
  EXPECT_EQ(once[0].epochs[0].parameter_hashes, again[0].epochs[0].parameter_hashes);
  EXPECT_EQ(once[0].final_loss, again[0].final_loss);
  EXPECT_TRUE(once[0].ranks_identical());
  for (const TrainingResult& result : once) {
    const std::string hash = hash_text(result.epochs[0].parameter_hashes[0]);
    for (const tightwire::testing::RankResult& rank : ranks)
      EXPECT_NE(rank.text.find(hash), std::string::npos) << rank.text;
  }

  TrainingOptions other = options;
  other.seed = 2;
  EXPECT_NE(train_threads(data, [&](int) { return other; })[0].epochs[0].parameter_hashes,
            once[0].epochs[0].parameter_hashes);
}

TEST(QuickstartTraining, RanksThatComeToDifferAreNamed) {
  const FashionMnist data = load_fashion_mnist();
  const auto results = train_threads(data, [](int rank) {
    TrainingOptions options = short_training("int8");
    if (rank == 2) options.learning_rate *= 1.0001;  // gradients agree, what rank 2 makes of them does not
    return options;
  });
  for (const TrainingResult& result : results) {
    EXPECT_FALSE(result.ranks_identical());
    const std::string text = describe_differences(result);
    EXPECT_NE(text.find("after epoch 1 the parameters of rank 2 have hash "), std::string::npos) << text;
    EXPECT_EQ(text.find("of rank 1 have"), std::string::npos) << text;
    EXPECT_EQ(text.find("of rank 3 have"), std::string::npos) << text;
  }
}

class QuickstartData : public testing::Test {
 protected:
  QuickstartData() {
    for (const auto& file : std::filesystem::directory_iterator(kFashionMnistDirectory))
      std::filesystem::copy(file.path(), folder_.path() / file.path().filename());
  }

  /// What load_fashion_mnist says of the folder; "" when it loads.
  std::string complaint() const {
    try {
      load_fashion_mnist(folder_.path());
      return "";
    } catch (const std::exception& error) {
      return error.what();
    }
  }

  std::filesystem::path file(const char* name) const { return folder_.path() / name; }

  tightwire::testing::TemporaryFolder folder_;
};

TEST_F(QuickstartData, LoadsWhatDebianPacks) {
  EXPECT_EQ(complaint(), "");
  const FashionMnist data = load_fashion_mnist();
  EXPECT_EQ(data.training.size(), 60'000u);
  EXPECT_EQ(data.test.size(), 10'000u);
  // The first training image is an ankle boot (class 9), and every class is there 1,000 times among the test images.
  EXPECT_EQ(data.training.labels[0], 9);
  for (int label = 0; label < 10; ++label) EXPECT_EQ(std::ranges::count(data.test.labels, label), 1000) << label;
}

TEST_F(QuickstartData, MissingFileNamesThePackage) {
  std::filesystem::remove(file("t10k-labels-idx1-ubyte.gz"));
  EXPECT_NE(complaint().find("t10k-labels-idx1-ubyte.gz cannot be read"), std::string::npos) << complaint();
  EXPECT_NE(complaint().find("apt-get install dataset-fashion-mnist"), std::string::npos) << complaint();
}

TEST_F(QuickstartData, ShortenedFileIsRefused) {
  const auto path = file("train-images-idx3-ubyte.gz");
  std::filesystem::resize_file(path, std::filesystem::file_size(path) / 2);
  EXPECT_NE(complaint().find("train-images-idx3-ubyte.gz is damaged or ends early"), std::string::npos) << complaint();
}

TEST_F(QuickstartData, FileOfAnotherKindIsRefused) {
  std::filesystem::copy(file("train-labels-idx1-ubyte.gz"), file("train-images-idx3-ubyte.gz"),
                        std::filesystem::copy_options::overwrite_existing);
  EXPECT_NE(complaint().find("magic number is 2049, expected 2051"), std::string::npos) << complaint();
}

TEST_F(QuickstartData, FileOfAnotherSizeIsRefused) {
  std::filesystem::copy(file("t10k-labels-idx1-ubyte.gz"), file("train-labels-idx1-ubyte.gz"),
                        std::filesystem::copy_options::overwrite_existing);
  EXPECT_NE(complaint().find("extent is 10000, expected 60000"), std::string::npos) << complaint();
}

}  // namespace
}  // namespace quickstart::training_test
