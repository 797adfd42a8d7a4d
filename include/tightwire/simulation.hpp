#pragma once
#include <cstddef>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <tightwire/bucket_planning.hpp>
#include <tightwire/cost_model.hpp>
#include <tightwire/parameter_list.hpp>
#include <tightwire/planned_load.hpp>
#include <tightwire/session_options.hpp>
#include <tightwire/transport.hpp>

namespace tightwire {

namespace detail {

/// Stands for a job of any number of ranks while it is planned. Nothing can be sent.
class ImaginedTransport final : public Transport {
 public:
  ImaginedTransport(int rank, int size) : rank_(rank), size_(size) {}
  int rank() const noexcept override { return rank_; }
  int size() const noexcept override { return size_; }
  std::string describe() const override { return "imagined"; }
  void detach(std::span<std::byte>) noexcept override {}
  Ticket post(std::span<const Message>) override { throw Error(Errc::internal, "a simulation sends nothing"); }
  bool done(Ticket) override { return true; }
  void idle(TimePoint) override {}
  void wake() noexcept override {}
  std::string waiting_for(Ticket) const override { return {}; }
  void abort(std::string_view) noexcept override {}

 private:
  int rank_, size_;
};

/// The buckets of a Session: those that were declared, and those that it fills.
inline ParameterList filled_list(const std::vector<Parameter>& parameters,
                                 const std::vector<std::vector<ParameterId>>& declared, int ranks,
                                 std::size_t bucket_bytes) {
  ParameterList list("simulation: ", ranks);
  for (const Parameter& parameter : parameters) list.add(parameter);
  for (const std::vector<ParameterId>& bucket : declared) list.add_bucket(bucket);
  list.fill_buckets(bucket_bytes);
  return list;
}

}  // namespace detail

/// What every bucket of a Session with these options and parameters would ask of a rank of so many: the buckets
/// are those that a Session makes, planned by the code that plans them there; first those of `declared`, as
/// `add_bucket` was told. Throws what `Session::seal` throws of it. Cost: linear in ranks and slices for every kind of
/// bucket; memory of one bucket's plan at a time.
inline std::vector<BucketLoad> simulate(const SessionOptions& options, const std::vector<Parameter>& parameters,
                                        int ranks, int per_node, int rank = 0,
                                        const std::vector<std::vector<ParameterId>>& declared = {}) {
  ParameterList list = detail::filled_list(parameters, declared, ranks, options.bucket_bytes);
  const detail::ImaginedTransport transport(rank, ranks);
  ErrorMemory memory;
  BucketPlanning planning(options, transport, memory);
  std::vector<ParameterMemory> of_parameters(list.parameters().size());
  std::map<std::string, BucketLoad> known;  // buckets of equal shapes are planned once
  std::vector<BucketLoad> loads;
  for (Bucket& bucket : list.buckets()) {
    std::string kind;
    for (const std::size_t id : bucket.parameters) {
      const Parameter& parameter = list.parameters()[id];
      for (const std::int64_t extent : parameter.shape) kind += std::to_string(extent) + "x";
      kind += std::string(to_string(parameter.type)) + to_string(parameter.operation) +
              options.policy.choose(parameter, options.codec).spec() + ";";
    }
    const auto found = known.find(kind);
    if (found != known.end()) {
      loads.push_back(found->second);
      continue;
    }
    planning.plan(bucket, list.parameters(), of_parameters);
    loads.push_back(load_of(bucket, rank, per_node));
    known.emplace(std::move(kind), loads.back());
    Bucket planned = std::move(bucket);  // and freed
  }
  return loads;
}

/// Memory of a rank that grows with ranks: for the frames of all its buckets, in bytes, taken by the code that takes it
/// in a Session, for one bucket at a time. Throws as `simulate` does, and Error(no_memory).
inline double simulate_frame_bytes(const SessionOptions& options, const std::vector<Parameter>& parameters, int ranks,
                                   int rank = 0) {
  ParameterList list = detail::filled_list(parameters, {}, ranks, options.bucket_bytes);
  detail::ImaginedTransport transport(rank, ranks);
  ErrorMemory memory;
  BucketPlanning planning(options, transport, memory);
  std::vector<ParameterMemory> of_parameters(list.parameters().size());
  const Channels channels(0, static_cast<std::uint32_t>(list.buckets().size()));
  double bytes = 0;
  for (Bucket& bucket : list.buckets()) {
    planning.plan(bucket, list.parameters(), of_parameters);
    make_reductions(bucket, transport, 0, 0, channels, options);
    bytes += static_cast<double>(bucket.frame_bytes());
    Bucket planned = std::move(bucket);  // and freed
  }
  return bytes;
}

}  // namespace tightwire
