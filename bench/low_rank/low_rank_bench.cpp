// What a step of PowerSGD costs one rank in arithmetic, against the bytes that it has to move, and against the same
// step by a BLAS.
//
//   build/bin/low_rank_bench
//   build/bin/low_rank_bench --shape 50257x768 --rank 4 --rank 16
//   build/bin/low_rank_bench --shape 64x64*200                200 matrices, a pass over all of them after the other
//   build/bin/low_rank_bench --resnet50        all matrices of a residual network of 25 million parameters
//
// One thread; everything is timed in turn with x += y over as many elements as the matrix has, which moves 12 bytes per
// element. "x floor" is the time over that of x += y for the same bytes, the median of all rounds.
//
//   project        A = gradient + (residual - P Q'^T of the step before), kept, and P = A Q: 12 bytes per element
//   orthogonalize  the columns of P, and those of Q; factors of equal shapes together
//     one by one   the same, but every factor by itself
//   back           Q' = A^T P: 4 bytes
//   write          out = P Q^T, past the caches: 4 bytes
//   step           all of them, in this order: 20 bytes
//
// "read" is what it takes to read the matrix once: where that is far above the floor, memory is slower to read than x
// += y suggests, and `back` cannot be faster.
//
// By a BLAS (OpenBLAS on one thread, where it was found at configure time): saxpy for the sum, sgemm for P, Q', for
// A -= P Q'^T and for the result; orthogonalized as ours is. 32 bytes per element. "x ours" is its time over that of
// ours in the same round, the median of all.
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
#include <tightwire/low_rank/plan.hpp>
#include <tightwire/low_rank/products.hpp>

#include "blas_peer.hpp"
#include "memory.hpp"
#include "peak_arithmetic.hpp"
#include "roofline.hpp"

namespace {

namespace host = tightwire::host;
namespace low_rank = tightwire::low_rank;
using bench::Memory;
using bench::Subject;

struct Options {
  std::vector<std::string> shapes = {"4096x4096", "1024x4608"};
  bool resnet50 = false;
  std::vector<std::size_t> ranks = {1, 2, 4, 8, 32};
  int rounds = 15;
  std::string json;
};

std::vector<low_rank::Shape> parse_shapes(const std::string& text) {
  low_rank::Shape shape{};
  std::size_t count = 1;
  if (std::sscanf(text.c_str(), "%zux%zu*%zu", &shape.rows, &shape.columns, &count) < 2 ||
      shape.rows * shape.columns * count == 0)
    throw CLI::ValidationError("--shape", "is like 4096x4096 or 64x64*200");
  return std::vector<low_rank::Shape>(count, shape);
}

/// A matrix with all that a step needs.
struct Step {
  low_rank::Shape shape;
  std::size_t rank;
  host::Level level = host::level();
  Memory gradient, residual, out;
  std::vector<float> p, q, projected, sent, next_q, kept_q;
  low_rank::Orthogonalizer orthogonalizer;

  Step(low_rank::Shape of, std::size_t rank_of)
      : shape(of),
        rank(low_rank::worthwhile_rank(of, rank_of)),
        gradient(4 * elements(), 0),
        residual(4 * elements(), 1088),
        out(4 * elements(), 2176),
        p(of.rows * rank),
        q(of.columns * rank),
        projected(of.rows * rank),
        sent(of.columns * rank) {
    low_rank::seed_factor(gradient.floats(), elements(), 1, 1, 0, 0);
    low_rank::seed_factor(q.data(), shape.columns, rank, 1, 1, 0);
    kept_q = next_q = q;
    project();
    projected = p;
    orthogonalize_left();
    back();
  }
  std::size_t elements() const { return shape.rows * shape.columns; }

  void project() {
    low_rank::add_and_multiply(level, {shape,
                                       rank,
                                       gradient.floats(),
                                       {residual.floats(), residual.floats()},
                                       q.data(),
                                       p.data(),
                                       shape.rows,
                                       {rank, projected.data(), sent.data()}});
  }
  void orthogonalize_left() { orthogonalizer.orthogonalize(p.data(), shape.rows, rank, {}); }
  void orthogonalize_right() { orthogonalizer.orthogonalize(next_q.data(), shape.columns, rank, {}); }
  void back() {
    low_rank::multiply_transposed(level, {shape, rank, residual.floats(), p.data(), shape.rows, next_q.data()});
  }
  void write() {
    low_rank::write_product(level, {shape, rank, p.data(), shape.rows, q.data(), out.floats(), 0.5f, true});
  }
  // By themselves these let the residual grow, or take away the same product again and again: the time is the same.
  // What is orthogonalized is restored each time, so that it is not orthogonal already.
  void restore_factors() {
    p = projected;
    next_q = kept_q;
  }
  void orthogonalize() {
    restore_factors();
    orthogonalize_left();
    orthogonalize_right();
  }
};

/// Those of a bucket, pass by pass, as between reductions.
class Steps {
 public:
  Steps(const std::vector<low_rank::Shape>& shapes, std::size_t rank) {
    std::vector<low_rank::PlannedMatrix> planned;
    for (const low_rank::Shape shape : shapes) {
      if (!low_rank::worth_it(shape, 1)) continue;
      all.push_back(std::make_unique<Step>(shape, rank));
      planned.push_back({.shape = shape, .type = tightwire::ElementType::f32, .settings = {}});
    }
    batches_ = low_rank::equal_shapes(planned);
  }
  std::vector<std::unique_ptr<Step>> all;

  std::size_t elements() const {
    std::size_t count = 0;
    for (const auto& step : all) count += step->elements();
    return count;
  }
  void each(void (Step::*what)()) {
    for (const auto& step : all) (step.get()->*what)();
  }
  void orthogonalize() {
    each(&Step::restore_factors);
    orthogonalize_left();
    orthogonalize_right();
  }
  void run() {
    each(&Step::project);
    orthogonalize_left();
    each(&Step::back);
    each(&Step::write);
    orthogonalize_right();
  }

 private:
  void orthogonalize_left() {
    together([](Step& step) { return step.p.data(); }, [](const Step& step) { return step.shape.rows; });
  }
  void orthogonalize_right() {
    together([](Step& step) { return step.next_q.data(); }, [](const Step& step) { return step.shape.columns; });
  }
  template <class Factor, class Rows>
  void together(const Factor& factor, const Rows& rows) {
    for (const low_rank::Batch& batch : batches_) {
      factors_.clear();
      for (const std::size_t i : batch) factors_.push_back({factor(*all[i]), {}});
      const Step& first = *all[batch.front()];
      orthogonalizer_.orthogonalize(factors_, rows(first), first.rank);
    }
  }

  std::vector<low_rank::Batch> batches_;
  std::vector<low_rank::SeededFactor> factors_;
  low_rank::Orthogonalizer orthogonalizer_;
};

/// What reading takes: sums of 16, of which something is kept.
struct ReadAll {
  struct Job {
    const float* x;
    std::size_t count;
    float* out;
  };
  template <int W>
  TIGHTWIRE_INLINE static void run(const Job& job) {
    using Lanes = tightwire::detail::Lanes<float, W>;
    Lanes sum[4] = {Lanes(0.0f), Lanes(0.0f), Lanes(0.0f), Lanes(0.0f)};
    for (std::size_t i = 0; i + 4 * W <= job.count; i += 4 * W) TIGHTWIRE_UNROLL(4)
    for (std::size_t k = 0; k < 4; ++k) sum[k] = sum[k] + Lanes::load(job.x + i + k * W);
    for (std::size_t k = 1; k < 4; ++k) sum[0] = sum[0] + sum[k];
    *job.out = sum[0].v[0];
  }
};

std::vector<Subject> subjects_of(Steps& steps) {
  const auto all = [&](void (Step::*what)()) { return [&steps, what] { steps.each(what); }; };
  return {{"read", 4, 4,
           [&] {
             float kept = 0;
             for (const auto& step : steps.all)
               host::run<ReadAll>(step->level, {step->gradient.floats(), step->elements(), &kept});
           }},
          {"project", 12, 12, all(&Step::project)},
          {"orthogonalize", 0, 0, [&] { steps.orthogonalize(); }},
          {"  one by one", 0, 0, all(&Step::orthogonalize)},
          {"back", 4, 4, all(&Step::back)},
          {"write", 4, 4, all(&Step::write)},
          {"step", 20, 20, [&] { steps.run(); }}};
}

/// Of a residual network with 50 layers: 25.5 million parameters, of which these are the matrices that are worth it.
std::vector<low_rank::Shape> resnet50() {
  std::vector<low_rank::Shape> shapes = {{64, 3 * 49}, {1000, 2048}};
  std::size_t inside = 64, before = 64;
  for (const int blocks : {3, 4, 6, 3}) {
    for (int block = 0; block < blocks; ++block) {
      shapes.push_back({inside, before});
      shapes.push_back({inside, 9 * inside});
      shapes.push_back({4 * inside, inside});
      if (block == 0) shapes.push_back({4 * inside, before});
      before = 4 * inside;
    }
    inside *= 2;
  }
  return shapes;
}

struct Case {
  std::string name;
  std::vector<low_rank::Shape> shapes;
};

nlohmann::json measure(const Options& options, const Case& of, std::size_t rank) {
  Steps steps(of.shapes, rank);
  std::vector<std::unique_ptr<bench::BlasStep>> blas_steps;
  const std::size_t elements = steps.elements();
  for (const auto& step : steps.all)
    if (auto blas = bench::make_blas_step(step->shape, step->rank, step->gradient.floats()))
      blas_steps.push_back(std::move(blas));
  Memory x(4 * elements, 64), y(4 * elements, 1152);
  std::vector<Subject> subjects = bench::roofline(host::level(), x.floats(), y.floats(), elements);
  const std::size_t first = subjects.size();
  for (Subject& subject : subjects_of(steps)) subjects.push_back(std::move(subject));
  const std::size_t step_at = subjects.size() - 1;
  if (!blas_steps.empty())
    subjects.push_back({"step by OpenBLAS", 32, 32, [&] {
                          for (std::size_t i = 0; i < steps.all.size(); ++i) {
                            blas_steps[i]->run();
                            steps.all[i]->orthogonalize();
                          }
                        }});
  const bench::ForeignShare foreign;
  const bench::Times times = bench::time_rounds(subjects, options.rounds, 1e-3);

  const double step_s = bench::median(times[step_at]);
  nlohmann::json rows = nlohmann::json::array();
  for (std::size_t i = 0; i < subjects.size(); ++i) {
    if (i < first && i != bench::kAdd) continue;
    std::vector<double> floors, ours;
    for (std::size_t r = 0; r < times[i].size(); ++r) {
      floors.push_back(times[i][r] /
                       (times[bench::kAdd][r] * subjects[i].essential_bytes / subjects[bench::kAdd].essential_bytes));
      ours.push_back(times[i][r] / times[step_at][r]);
    }
    rows.push_back({{"name", subjects[i].name},
                    {"milliseconds", 1e3 * bench::median(times[i])},
                    {"share_of_step", bench::median(times[i]) / step_s}});
    if (i > step_at) rows.back()["times_ours"] = bench::median(ours);
    if (subjects[i].essential_bytes > 0) rows.back()["floors"] = bench::median(floors);
  }
  return {{"shape", of.name},
          {"rank", rank},
          {"level", to_string(host::level())},
          {"gigaflops", 8.0 * static_cast<double>(elements) * static_cast<double>(rank) / step_s / 1e9},
          {"peak_gigaflops", bench::peak_gigaflops()},
          {"foreign_percent", foreign.percent()},
          {"rows", rows}};
}

void print(const nlohmann::json& result) {
  fmt::print("\n{}, rank {}, {}, {:.1f} % of the processors used by others\n", result["shape"].get<std::string>(),
             result["rank"].get<std::size_t>(), result["level"].get<std::string>(),
             result["foreign_percent"].get<double>());
  fmt::print("{:20} {:>9} {:>9} {:>12} {:>8}\n", "", "ms", "x floor", "% of a step", "x ours");
  for (const auto& row : result["rows"])
    fmt::print("{:20} {:9.3f} {:>9} {:12.1f} {:>8}\n", row["name"].get<std::string>(),
               row["milliseconds"].get<double>(),
               row.contains("floors") ? fmt::format("{:.2f}", row["floors"].get<double>()) : "",
               100 * row["share_of_step"].get<double>(),
               row.contains("times_ours") ? fmt::format("{:.2f}", row["times_ours"].get<double>()) : "");
  fmt::print("{:.1f} of {:.1f} Gflop/s\n", result["gigaflops"].get<double>(), result["peak_gigaflops"].get<double>());
  std::cout << std::flush;
}

}  // namespace

int main(int argc, char** argv) {
  Options options;
  CLI::App app("The linear algebra of PowerSGD against the memory bus, on one thread.");
  app.add_option("--shape", options.shapes, "of the matrix, rows x columns, or of several: 64x64*200");
  app.add_flag("--resnet50", options.resnet50, "instead of --shape: the matrices of a network, one after the other");
  app.add_option("--rank", options.ranks, "of the approximation")
      ->check(CLI::Range(std::size_t{1}, low_rank::kMostRank));
  app.add_option("--rounds", options.rounds, "of which the median is taken");
  app.add_option("--json", options.json, "file to write the figures to");
  CLI11_PARSE(app, argc, argv);
  nlohmann::json results = nlohmann::json::array();
  std::vector<Case> cases;
  for (const std::string& shape : options.shapes) cases.push_back({shape, parse_shapes(shape)});
  if (options.resnet50) cases = {{"resnet50", resnet50()}};
  if (!bench::has_blas()) fmt::print("OpenBLAS was not found when this was configured: no peer\n");
  for (const Case& of : cases)
    for (const std::size_t rank : options.ranks) {
      results.push_back(measure(options, of, rank));
      print(results.back());
    }
  if (!options.json.empty()) std::ofstream(options.json) << results.dump(2) << '\n';
  return 0;
}
