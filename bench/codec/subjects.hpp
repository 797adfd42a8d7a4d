#pragma once
#include <memory>
#include <string>
#include <vector>

#include <tightwire/codec.hpp>

#include "memory.hpp"
#include "rounds.hpp"

namespace bench {

/// The buffers that all verbs work on.
class Buffers {
 public:
  Buffers(std::size_t count, tightwire::ElementType type);

  std::size_t count;
  tightwire::ElementType type;
  Memory data, out, scratch, sender[2], owner[2], wire, sum;
};

/// Every verb of a codec, without feedback, with the residual updated in place, and with one residual read and another
/// written. Combining is that of the owner of a shard between two ranks: one encoded contribution received and one of
/// our own, summed, halved and encoded, with the residuals of both stages; the result replaces our data.
std::vector<Subject> subjects_of(const std::shared_ptr<const tightwire::Coder>& coder, const Buffers& buffers);

}  // namespace bench
