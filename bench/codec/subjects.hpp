#pragma once
#include <memory>
#include <string>
#include <vector>

#include <tightwire/codec.hpp>

#include "memory.hpp"
#include "rounds.hpp"

namespace bench {

/// Of one stage, in either type: that are read, and that are written where it is not in place.
struct Residuals {
  Memory fp32[2], bf16[2];
};

/// The buffers that all verbs work on.
class Buffers {
 public:
  Buffers(std::size_t count, tightwire::ElementType type);

  std::size_t count;
  tightwire::ElementType type;
  Memory data, out, scratch;
  Residuals sender, owner;
  Memory wire, sum;
};

/// Every verb of a codec, without feedback, with the residual updated in place, and with one residual read and another
/// written; in fp32 and in bf16. Combining is that of the owner of a shard between two ranks: one encoded contribution
/// received and one of our own, summed, halved and encoded, with the residuals of both stages; the result replaces our
/// data.
std::vector<Subject> subjects_of(const std::shared_ptr<const tightwire::Coder>& coder, const Buffers& buffers);

}  // namespace bench
