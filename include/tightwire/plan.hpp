#pragma once
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <numeric>
#include <span>
#include <vector>

#include <tightwire/coder.hpp>
#include <tightwire/frame.hpp>

namespace tightwire {

/// How a bucket is summed.
enum class Algorithm : std::uint8_t {
  automatic,  ///< one_shot for small buckets on not too many ranks, two_shot otherwise (`one_round_pays`), or ring or
              ///< tree where the cost model has them faster (`form_by_cost`)
  two_shot,   ///< every rank owns a share: contributions go to the owner, the encoded sum to everyone
  one_shot,   ///< every contribution goes to everyone, who all sum alike: one round, one encoding, more bytes
  ring,  ///< the sum passes from rank to rank in their order, and the result back: two neighbours, see RingReduction
  tree,  ///< as one_shot, but contributions are passed on: log2(ranks) messages in as many rounds, see TreeReduction
};

constexpr const char* to_string(Algorithm algorithm) {
  switch (algorithm) {
    case Algorithm::two_shot: return "two_shot";
    case Algorithm::one_shot: return "one_shot";
    case Algorithm::ring: return "ring";
    case Algorithm::tree: return "tree";
    default: return "automatic";
  }
}

/// Chunks of a bucket that are under way together.
constexpr std::size_t kChunksUnderWay = 4;

/// What becomes of a buffer. The last three are of one parameter, whose buffer is the same size on every rank.
enum class Operation : std::uint8_t {
  all_reduce,      ///< the sum, or mean, of all ranks' buffers, on every rank
  reduce_scatter,  ///< of the sum, every rank gets its shard: the buffer's part number `rank`, of as many as ranks
  all_gather,      ///< every rank's shard, on every rank
  broadcast,       ///< one rank's buffer, on every rank
};

constexpr const char* to_string(Operation operation) {
  return operation == Operation::all_reduce       ? "all_reduce"
         : operation == Operation::reduce_scatter ? "reduce_scatter"
         : operation == Operation::all_gather     ? "all_gather"
                                                  : "broadcast";
}

/// What the plan must know of a parameter in a bucket, or of the shard of one.
struct PlannedParameter {
  std::size_t count;
  ElementType type;
  std::shared_ptr<const Coder> coder;
  std::uint32_t number = 0;  ///< among all parameters of the Session
  bool stochastic = false;   ///< rounding
  std::size_t first = 0;     ///< place in the parameter of a shard's first element
};

/// A run of elements of one parameter that is encoded together. Starts on a block of its codec.
struct Slice {
  std::size_t parameter;  ///< position in the bucket
  std::size_t begin;      ///< first element
  std::size_t count;
  std::size_t wire_at;   ///< byte in the payload
  std::size_t error_at;  ///< element in the owner's residual, counted over all shares of the same rank
};

/// What one rank owns of a chunk.
struct Share {
  std::vector<Slice> slices;
  std::size_t payload_bytes = 0;
  /// An empty share sends nothing.
  std::size_t frame_bytes() const { return payload_bytes == 0 ? 0 : sizeof(FrameHeader) + payload_bytes; }
};

/// A run of a bucket that is in flight at once, with the share of every rank (one_shot and tree: a single share for
/// all; ring: the last rank's is all of it).
struct Chunk {
  std::vector<Share> shares;
  std::size_t partial_bytes = 0;  ///< of ring: the payload of a sum that is not complete yet
};

/// Who owns which elements of a bucket, and the size of every message. Depends only on its arguments, so every rank
/// computes the same. Results do not depend on it: blocks are the same whatever the cuts, and the owner's own
/// contribution takes the same way through the codec as everyone else's.
struct BucketPlan {
  Operation operation = Operation::all_reduce;
  Algorithm algorithm = Algorithm::two_shot;
  int ranks = 1;
  std::vector<Chunk> chunks;
  std::size_t element_bytes = 0;   ///< the gradients themselves
  std::vector<std::size_t> owned;  ///< elements of owner residual per rank
  bool passes_on = false;          ///< all_gather: of what is in place already, and encoded

  /// Bytes of all frames that a rank sends per reduction; it receives as many, but of ring.
  ///
  ///   two_shot: a contribution to every other owner, and the result of its own share to every peer
  ///   one_shot: its contribution to every peer
  ///   tree: as many contributions, its own and others'
  ///   ring: the sum so far to the next rank, but the last; the result to the one before, but the first
  ///   reduce_scatter: a contribution to every other owner, and a header to every peer of what its share held
  ///   all_gather, broadcast: its own share to every peer
  std::size_t wire_bytes(int rank) const {
    std::size_t bytes = 0;
    const auto peers = static_cast<std::size_t>(ranks - 1);
    if (algorithm == Algorithm::ring) {
      for (const Chunk& chunk : chunks) {
        if (rank + 1 < ranks) bytes += partial_frame_bytes(chunk);
        if (rank > 0) bytes += chunk.shares.back().frame_bytes();
      }
      return bytes;
    }
    for (const Chunk& chunk : chunks)
      for (std::size_t owner = 0; owner < chunk.shares.size(); ++owner) {
        const Share& share = chunk.shares[owner];
        const bool own = everyone_sums() || owner == static_cast<std::size_t>(rank);
        bytes += own ? peers * result_bytes(share) : contributes() ? share.frame_bytes() : 0;
      }
    return bytes;
  }

  /// Whether all ranks sum all elements, and nobody owns any.
  bool everyone_sums() const { return algorithm == Algorithm::one_shot || algorithm == Algorithm::tree; }
  /// Bytes of the frame in which a ring passes a sum on.
  static std::size_t partial_frame_bytes(const Chunk& chunk) { return sizeof(FrameHeader) + chunk.partial_bytes; }
  /// Whether ranks send what owners sum.
  bool contributes() const { return operation == Operation::all_reduce || operation == Operation::reduce_scatter; }
  /// Bytes of the frame that an owner sends to everyone.
  std::size_t result_bytes(const Share& share) const {
    const std::size_t bytes = share.frame_bytes();
    return operation == Operation::reduce_scatter && bytes != 0 ? sizeof(FrameHeader) : bytes;
  }
};

struct PlanOptions {
  Algorithm algorithm = Algorithm::automatic;
  std::size_t share_elements = 0;                        ///< elements of a chunk that one rank owns, about;
                                                         ///< 0: see `open_share_length`
  std::size_t one_shot_bytes = std::size_t{16} << 10;    ///< encoded bytes up to which `automatic` takes one_shot,
  std::size_t one_shot_excess = std::size_t{256} << 10;  ///< and by how much the busiest rank may send more then
};

/// Whether `automatic` takes one_shot for so many encoded bytes of so many blocks: up to `one_shot_bytes`, and while
/// the rank that sends most sends no more than `one_shot_excess` beyond what it would in two rounds. There every rank
/// that owns a block gets its part of all contributions, and sends its part of the sum to everyone.
constexpr bool one_round_pays(std::size_t wire_bytes, std::size_t blocks, int ranks, const PlanOptions& options) {
  if (wire_bytes > options.one_shot_bytes) return false;
  const auto peers = static_cast<std::size_t>(ranks - 1);
  const std::size_t owners = std::clamp<std::size_t>(blocks, 1, static_cast<std::size_t>(ranks));
  const std::size_t one = peers * (sizeof(FrameHeader) + wire_bytes);
  const std::size_t two = (owners - 1 + peers) * (sizeof(FrameHeader) + wire_bytes / owners);
  return one <= two + options.one_shot_excess;
}

namespace detail {

/// The bucket as one line of elements, parameter behind parameter, that may be cut only at blocks.
class ElementLine {
 public:
  /// Cuts are at multiples of `block` too.
  explicit ElementLine(std::span<const PlannedParameter> parameters, std::size_t block = 1)
      : parameters_(parameters), block_(block) {
    starts_.push_back(0);
    for (const PlannedParameter& p : parameters) starts_.push_back(starts_.back() + p.count);
  }

  std::size_t size() const { return starts_.back(); }

  /// The nearest place at or behind `position` where a cut is allowed.
  std::size_t cut(std::size_t position) const {
    if (position >= size()) return size();
    const std::size_t p = parameter_at(position);
    const std::size_t block = std::lcm(parameters_[p].coder->block(), block_);
    const std::size_t within = (position - starts_[p] + block - 1) / block * block;
    return starts_[p] + std::min(within, parameters_[p].count);
  }

  /// The slices of [begin, end), with their places in a payload and in the owner's residual.
  Share share(std::size_t begin, std::size_t end, std::size_t& error_at) const {
    Share share;
    while (begin < end) {
      const std::size_t p = parameter_at(begin);
      const PlannedParameter& parameter = parameters_[p];
      const std::size_t stop = std::min(end, starts_[p + 1]);
      const bool lossless = parameter.coder->lossless(parameter.type);
      share.slices.push_back({p, begin - starts_[p], stop - begin, share.payload_bytes, error_at});
      share.payload_bytes += parameter.coder->wire_bytes(stop - begin);
      if (!lossless) error_at += stop - begin;
      begin = stop;
    }
    return share;
  }

 private:
  std::size_t parameter_at(std::size_t position) const {
    const auto next = std::upper_bound(starts_.begin(), starts_.end(), position);
    return static_cast<std::size_t>(next - starts_.begin()) - 1;
  }

  std::span<const PlannedParameter> parameters_;
  std::size_t block_;
  std::vector<std::size_t> starts_;
};

}  // namespace detail

/// Length of a share that is left open, in elements: 256 Ki for all ranks together, so that several chunks of a 25 MiB
/// bucket are in flight and the memory for frames is the same for any number of ranks, but no less than 16 Ki, so that
/// messages are worth sending; and no more than make 256 KiB on the wire.
constexpr std::size_t open_share_length(int ranks, std::size_t elements, std::size_t wire_bytes) {
  constexpr std::size_t kLargestBlock = 4096;
  constexpr double kMostBytes = 1 << 18;
  const std::size_t even = std::max((std::size_t{1} << 18) / static_cast<std::size_t>(ranks), std::size_t{1} << 14);
  const double most =
      kMostBytes * static_cast<double>(elements) / static_cast<double>(std::max(wire_bytes, std::size_t{1}));
  return std::min(even, static_cast<std::size_t>(most)) / kLargestBlock * kLargestBlock;
}

/// What a ring asks of a parameter: 16 bits or more per element, since the sums that it passes on are fp32, and
/// residuals of the elements themselves.
inline bool fits_ring(const PlannedParameter& parameter) {
  constexpr std::size_t kMany = std::size_t{1} << 16;
  return parameter.coder->wire_bytes(kMany) >= 2 * kMany && parameter.coder->residual_basis().empty() &&
         (parameter.type == ElementType::f32 || parameter.coder->lossless(parameter.type));
}

namespace detail {

/// Payload of so many elements of a sum that is not complete, which the exact codec writes.
constexpr std::size_t partial_bytes(std::size_t count) { return (count * sizeof(float) + 15) / 16 * 16; }

/// A ring: all of a chunk is the last rank's. Chunks are short enough for the last rank to have begun soon, and no
/// longer than are worth their messages.
inline void cut_for_ring(BucketPlan& plan, const ElementLine& line, const PlanOptions& options) {
  constexpr std::size_t kLeast = std::size_t{1} << 14, kMost = std::size_t{1} << 16;
  const auto ranks = static_cast<std::size_t>(plan.ranks);
  plan.owned.resize(ranks, 0);
  const std::size_t length = std::max<std::size_t>(
      options.share_elements != 0 ? options.share_elements : std::clamp(line.size() / (16 * ranks), kLeast, kMost), 1);
  for (std::size_t begin = 0; begin < line.size();) {
    const std::size_t end = std::max(line.cut(std::min(begin + length, line.size())), line.cut(begin + 1));
    Chunk& chunk = plan.chunks.emplace_back();
    chunk.shares.resize(ranks);
    chunk.shares.back() = line.share(begin, end, plan.owned.back());
    for (const Slice& slice : chunk.shares.back().slices) chunk.partial_bytes += partial_bytes(slice.count);
    begin = end;
  }
}

}  // namespace detail

/// Plans a bucket for a number of ranks. Cost: linear in slices. One rank has nobody to pass a sum on to: there ring is
/// two_shot.
inline BucketPlan make_plan(std::span<const PlannedParameter> parameters, int ranks, const PlanOptions& options) {
  const detail::ElementLine line(parameters);
  BucketPlan plan;
  plan.algorithm = options.algorithm;
  plan.ranks = ranks;
  std::size_t wire = 0, blocks = 0;
  for (const PlannedParameter& p : parameters) {
    plan.element_bytes += p.count * element_bytes(p.type);
    wire += p.coder->wire_bytes(p.count);
    blocks += (p.count + p.coder->block() - 1) / p.coder->block();
  }
  if (plan.algorithm == Algorithm::automatic)
    plan.algorithm = one_round_pays(wire, blocks, ranks, options) ? Algorithm::one_shot : Algorithm::two_shot;
  if (plan.algorithm == Algorithm::ring && ranks == 1) plan.algorithm = Algorithm::two_shot;
  if (plan.algorithm == Algorithm::ring) {
    detail::cut_for_ring(plan, line, options);
    return plan;
  }
  const bool two_shot = plan.algorithm == Algorithm::two_shot;
  const auto shares = static_cast<std::size_t>(two_shot ? ranks : 1);
  plan.owned.resize(shares, 0);

  const std::size_t share =
      options.share_elements != 0 ? options.share_elements : open_share_length(ranks, line.size(), wire);
  const std::size_t length = std::clamp<std::size_t>(share, 1, line.size() + 1) * shares;
  for (std::size_t begin = 0; begin < line.size();) {
    const std::size_t end = std::max(line.cut(begin + length), line.cut(begin + 1));
    Chunk chunk;
    std::size_t from = begin;
    for (std::size_t r = 0; r < shares; ++r) {
      const std::size_t to =
          r + 1 == shares ? end : std::clamp(line.cut(begin + (end - begin) * (r + 1) / shares), from, end);
      chunk.shares.push_back(line.share(from, to, plan.owned[r]));
      from = to;
    }
    plan.chunks.push_back(std::move(chunk));
    begin = end;
  }
  return plan;
}

}  // namespace tightwire
