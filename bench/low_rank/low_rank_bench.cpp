// What a step of PowerSGD costs one rank in arithmetic, against the bytes that it has to move.
//
//   build/bin/low_rank_bench
//   build/bin/low_rank_bench --shape 50257x768 --rank 4 --rank 16
//
// One thread; everything is timed in turn with x += y over as many elements as the matrix has, which moves 12 bytes per
// element. "x floor" is the time over that of x += y for the same bytes, the median of all rounds.
//
//   project        A = gradient + residual, kept, and P = A Q: 12 bytes per element
//   orthogonalize  the columns of P
//   back           Q = A^T P: 4 bytes
//   subtract       A -= P Q^T: 8 bytes
//   write          out = P Q^T, past the caches: 4 bytes
//   step           all but the last, in this order: 24 bytes
#include <cstdio>
#include <fstream>
#include <iostream>
#include <memory>
#include <string>
#include <vector>

#include <fmt/core.h>
#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>

#include <tightwire/core_codecs.hpp>
#include <tightwire/low_rank/factor.hpp>
#include <tightwire/low_rank/orthogonalize.hpp>
#include <tightwire/low_rank/products.hpp>

#include "memory.hpp"
#include "roofline.hpp"

namespace {

namespace host = tightwire::host;
namespace low_rank = tightwire::low_rank;
using bench::Memory;
using bench::Subject;

struct Options {
  std::vector<std::string> shapes = {"4096x4096", "1024x4608"};
  std::vector<std::size_t> ranks = {1, 2, 4, 8, 32};
  int rounds = 15;
  std::string json;
};

low_rank::Shape parse_shape(const std::string& text) {
  low_rank::Shape shape{};
  if (std::sscanf(text.c_str(), "%zux%zu", &shape.rows, &shape.columns) != 2 || shape.rows * shape.columns == 0)
    throw CLI::ValidationError("--shape", "is like 4096x4096");
  return shape;
}

/// A matrix with all that a step needs.
struct Step {
  low_rank::Shape shape;
  std::size_t rank;
  host::Level level = host::level();
  Memory gradient, residual, out;
  std::vector<float> p, q, projected;
  low_rank::Orthogonalizer orthogonalizer;

  Step(low_rank::Shape of, std::size_t rank_of)
      : shape(of),
        rank(rank_of),
        gradient(4 * elements(), 0),
        residual(4 * elements(), 1088),
        out(4 * elements(), 2176),
        p(of.rows * rank),
        q(of.columns * rank),
        projected(of.rows * rank) {
    low_rank::seed_factor(gradient.floats(), elements(), 1, 1, 0, 0);
    low_rank::seed_factor(q.data(), shape.columns, rank, 1, 1, 0);
    project();
    projected = p;
  }
  std::size_t elements() const { return shape.rows * shape.columns; }

  void project() {
    low_rank::add_and_multiply(
        level,
        {shape, rank, gradient.floats(), {residual.floats(), residual.floats()}, q.data(), p.data(), shape.rows});
  }
  void orthogonalize() { orthogonalizer.orthogonalize(p.data(), shape.rows, rank, {}); }
  void back() {
    low_rank::multiply_transposed(level, {shape, rank, residual.floats(), p.data(), shape.rows, q.data()});
  }
  void subtract() {
    low_rank::subtract_product(level, {shape, rank, p.data(), shape.rows, q.data(), residual.floats()});
  }
  void write() {
    low_rank::write_product(level, {shape, rank, p.data(), shape.rows, q.data(), out.floats(), 0.5f, true});
  }
};

std::vector<Subject> subjects_of(Step& step) {
  // By themselves these let the residual grow, and take away the same product again and again: the time is the same.
  // What is orthogonalized is restored each time, so that it is not orthogonal already.
  return {{"project", 12, 12, [&] { step.project(); }},
          {"orthogonalize", 0, 0,
           [&] {
             step.p = step.projected;
             step.orthogonalize();
           }},
          {"back", 4, 4, [&] { step.back(); }},
          {"subtract", 8, 8, [&] { step.subtract(); }},
          {"write", 4, 4, [&] { step.write(); }},
          {"step", 24, 24, [&] {
             step.project();
             step.orthogonalize();
             step.back();
             step.subtract();
           }}};
}

nlohmann::json measure(const Options& options, const std::string& name, std::size_t rank) {
  Step step(parse_shape(name), rank);
  std::vector<Subject> subjects =
      bench::roofline(step.level, step.out.floats(), step.gradient.floats(), step.elements());
  const std::size_t first = subjects.size();
  for (Subject& subject : subjects_of(step)) subjects.push_back(std::move(subject));
  const bench::ForeignShare foreign;
  const bench::Times times = bench::time_rounds(subjects, options.rounds, 1e-3);

  const double step_s = bench::median(times.back());
  nlohmann::json rows = nlohmann::json::array();
  for (std::size_t i = 0; i < subjects.size(); ++i) {
    if (i < first && i != bench::kAdd) continue;
    std::vector<double> floors;
    for (std::size_t r = 0; r < times[i].size(); ++r)
      floors.push_back(times[i][r] /
                       (times[bench::kAdd][r] * subjects[i].essential_bytes / subjects[bench::kAdd].essential_bytes));
    rows.push_back({{"name", subjects[i].name},
                    {"milliseconds", 1e3 * bench::median(times[i])},
                    {"share_of_step", bench::median(times[i]) / step_s}});
    if (subjects[i].essential_bytes > 0) rows.back()["floors"] = bench::median(floors);
  }
  return {{"shape", name},
          {"rank", rank},
          {"level", to_string(step.level)},
          {"foreign_percent", foreign.percent()},
          {"rows", rows}};
}

void print(const nlohmann::json& result) {
  fmt::print("\n{}, rank {}, {}, {:.1f} % of the processors used by others\n", result["shape"].get<std::string>(),
             result["rank"].get<std::size_t>(), result["level"].get<std::string>(),
             result["foreign_percent"].get<double>());
  fmt::print("{:20} {:>9} {:>9} {:>12}\n", "", "ms", "x floor", "% of a step");
  for (const auto& row : result["rows"])
    fmt::print("{:20} {:9.3f} {:>9} {:12.1f}\n", row["name"].get<std::string>(), row["milliseconds"].get<double>(),
               row.contains("floors") ? fmt::format("{:.2f}", row["floors"].get<double>()) : "",
               100 * row["share_of_step"].get<double>());
  std::cout << std::flush;
}

}  // namespace

int main(int argc, char** argv) {
  Options options;
  CLI::App app("The linear algebra of PowerSGD against the memory bus, on one thread.");
  app.add_option("--shape", options.shapes, "of the matrix, rows x columns");
  app.add_option("--rank", options.ranks, "of the approximation")
      ->check(CLI::Range(std::size_t{1}, low_rank::kMostRank));
  app.add_option("--rounds", options.rounds, "of which the median is taken");
  app.add_option("--json", options.json, "file to write the figures to");
  CLI11_PARSE(app, argc, argv);
  nlohmann::json results = nlohmann::json::array();
  for (const std::string& shape : options.shapes)
    for (const std::size_t rank : options.ranks) {
      results.push_back(measure(options, shape, rank));
      print(results.back());
    }
  if (!options.json.empty()) std::ofstream(options.json) << results.dump(2) << '\n';
  return 0;
}
