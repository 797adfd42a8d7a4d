#include <algorithm>
#include <chrono>
#include <cstring>
#include <functional>
#include <iomanip>
#include <memory>
#include <sstream>
#include <thread>
#include <utility>

#include <nlohmann/json.hpp>

#include <tightwire/hierarchy_text.hpp>
#include <tightwire/tightwire.hpp>

#include "bench_rows.hpp"
#include "measurement.hpp"

namespace tightwire::tool {
namespace {

/// Work that takes a time, once for each bucket: of this core, or of a device while this core is free.
class Compute {
 public:
  Compute(double seconds, bool on_cpu) : seconds_(seconds) {
    if (!on_cpu) return;
    constexpr std::size_t kTrial = 10'000;
    const TimePoint began = Clock::now();
    work(kTrial);
    const double once = std::chrono::duration<double>(Clock::now() - began).count() / kTrial;
    turns_ = std::max<std::size_t>(1, static_cast<std::size_t>(seconds / std::max(once, 1e-9)));
  }
  void run() {
    if (turns_ == 0)
      std::this_thread::sleep_for(std::chrono::duration<double>(seconds_));
    else
      work(turns_);
  }

 private:
  void work(std::size_t turns) {
    volatile float* const values = values_.data();
    for (std::size_t turn = 0; turn < turns; ++turn)
      for (std::size_t i = 0; i < values_.size(); ++i) values[i] = values[i] * 0.999f + 0.001f;
  }

  double seconds_;
  std::size_t turns_ = 0;  ///< 0: on a device
  std::vector<float> values_ = std::vector<float>(1024);
};

/// A gradient in buckets of the same size, and how one step goes.
class Layers {
 public:
  Layers(const std::shared_ptr<Transport>& transport, const SessionOptions& options, std::size_t elements, int buckets)
      : session_(transport, options), gradient_(elements * sizeof(float)), memory_(elements * sizeof(float)) {
    const auto count = static_cast<std::size_t>(buckets);
    for (std::size_t b = 0; b < count; ++b) {
      const std::size_t begin = elements * b / count, end = elements * (b + 1) / count;
      const ParameterId id = session_.add("layer" + std::to_string(b), matrix_of(end - begin));
      session_.add_bucket({&id, 1});
      places_.push_back(reinterpret_cast<float*>(memory_.data()) + begin);
    }
    session_.seal();
    detail::fill_like_gradient({reinterpret_cast<float*>(gradient_.data()), elements}, transport->rank());
    under_way_.reserve(count);
  }
  void put_back() { std::memcpy(memory_.data(), gradient_.data(), gradient_.size()); }
  Session& session() { return session_; }

  /// As a backward pass goes, from the last to the first: a bucket is started when it was computed.
  void step(const std::function<void()>& compute) {
    for (std::size_t b = places_.size(); b-- > 0;) {
      compute();
      void* const place = places_[b];
      under_way_.push_back(session_.start(b, {&place, 1}));
    }
    for (Handle& handle : under_way_) handle.wait();
    under_way_.clear();
    session_.commit();
  }

 private:
  Session session_;
  Workspace gradient_, memory_;
  std::vector<float*> places_;
  std::vector<Handle> under_way_;
};

OverlapRow measure_one(const std::shared_ptr<Transport>& transport, const BenchOptions& options, std::size_t elements,
                       const std::string& codec) {
  SessionOptions session = session_options(options, codec, *transport);
  session.timeout += std::chrono::milliseconds(static_cast<std::int64_t>(options.overlap_ms * options.buckets));
  Layers layers(transport, session, elements, options.buckets);
  Compute compute(1e-3 * options.overlap_ms, options.overlap_on_cpu);
  const auto put_back = [&] { layers.put_back(); };
  std::vector<bench::Contender> contenders = {{"compute",
                                               [&] {
                                                 for (int b = 0; b < options.buckets; ++b) compute.run();
                                               },
                                               0,
                                               {}},
                                              {"reduce", [&] { layers.step([] {}); }, 0, {}, put_back},
                                              {"both", [&] { layers.step([&] { compute.run(); }); }, 0, {}, put_back}};
  bench::measure(*transport, contenders, options.iterations, 1, options.warm_up);

  std::vector<double> hidden;
  const auto& [alone, reduce, both] = std::tie(contenders[0].seconds, contenders[1].seconds, contenders[2].seconds);
  for (std::size_t i = 0; i < both.size(); ++i) hidden.push_back((alone[i] + reduce[i] - both[i]) / reduce[i]);
  OverlapRow row;
  row.bytes = elements * sizeof(float);
  row.codec = codec == "auto" ? codec + " (" + layers.session().options().codec.spec() + ")" : codec;
  row.buckets = options.buckets;
  row.compute_seconds = bench::median(alone);
  row.reduce_seconds = bench::median(reduce);
  row.both_seconds = bench::median(both);
  row.hidden = bench::median(hidden);
  row.low_hidden = bench::quantile(hidden, 0.25);
  row.high_hidden = bench::quantile(hidden, 0.75);
  const double others = 1 - 1.0 / options.buckets;
  row.possible = others * std::min(1.0, row.compute_seconds / row.reduce_seconds);
  return row;
}

}  // namespace

std::vector<OverlapRow> measure_overlap(const std::shared_ptr<Transport>& transport, const BenchOptions& options,
                                        std::uint64_t bytes) {
  const std::size_t elements =
      std::max<std::uint64_t>(bytes / sizeof(float), static_cast<std::uint64_t>(options.buckets));
  std::vector<std::string> codecs = {"exact"};
  for (const std::string& codec : options.codecs)
    if (codec != "exact") codecs.push_back(codec);
  std::vector<OverlapRow> rows;
  for (const std::string& codec : codecs) rows.push_back(measure_one(transport, options, elements, codec));
  return rows;
}

std::string overlap_head(const Transport& transport, const BenchOptions& options, int ranks_per_core) {
  std::ostringstream text;
  text << "# " << transport.size() << " ranks, " << transport.describe() << "; " << options.buckets
       << " buckets, each after " << options.overlap_ms << " ms of computing "
       << (options.overlap_on_cpu ? "on the rank's core" : "on a device") << "; medians of " << options.iterations
       << ", quartiles in brackets\n"
       << shared_cores_text(ranks_per_core) << "# definitions: bench/METHOD.md\n"
       << std::left << std::setw(11) << "bytes" << std::setw(26) << "codec" << std::right << std::setw(12)
       << "compute ms" << std::setw(14) << "all-reduce ms" << std::setw(10) << "both ms" << std::setw(10) << "hidden"
       << std::setw(18) << "" << std::setw(10) << "possible" << '\n';
  return text.str();
}

std::string as_table(const OverlapRow& row) {
  std::ostringstream text, spread;
  spread << std::fixed << std::setprecision(0) << "[" << 100 * row.low_hidden << " .. " << 100 * row.high_hidden
         << " %]";
  text << std::left << std::setw(11) << row.bytes << std::setw(26) << row.codec << std::right << std::fixed
       << std::setprecision(2) << std::setw(12) << 1e3 * row.compute_seconds << std::setw(14)
       << 1e3 * row.reduce_seconds << std::setw(10) << 1e3 * row.both_seconds << std::setprecision(0) << std::setw(8)
       << 100 * row.hidden << " %" << std::setw(18) << spread.str() << std::setw(8) << 100 * row.possible << " %\n";
  return text.str();
}

std::string overlap_csv_head() {
  return "bytes,codec,buckets,compute_seconds,reduce_seconds,both_seconds,hidden,low_hidden,high_hidden,possible\n";
}

std::string as_csv(const OverlapRow& row) {
  std::ostringstream text;
  text << std::setprecision(9) << row.bytes << ",\"" << row.codec << "\"," << row.buckets << ',' << row.compute_seconds
       << ',' << row.reduce_seconds << ',' << row.both_seconds << ',' << row.hidden << ',' << row.low_hidden << ','
       << row.high_hidden << ',' << row.possible << '\n';
  return text.str();
}

std::string as_json(const OverlapRow& row) {
  const nlohmann::ordered_json json = {{"bytes", row.bytes},
                                       {"codec", row.codec},
                                       {"buckets", row.buckets},
                                       {"compute_seconds", row.compute_seconds},
                                       {"reduce_seconds", row.reduce_seconds},
                                       {"both_seconds", row.both_seconds},
                                       {"hidden", row.hidden},
                                       {"low_hidden", row.low_hidden},
                                       {"high_hidden", row.high_hidden},
                                       {"possible", row.possible},
                                       {"ranks_per_core", row.ranks_per_core}};
  return json.dump() + "\n";
}

}  // namespace tightwire::tool
