#pragma once
#include <algorithm>
#include <bit>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <tightwire/agreement.hpp>
#include <tightwire/detail/content_hash.hpp>
#include <tightwire/error.hpp>
#include <tightwire/transport.hpp>

namespace tightwire {

/// Something that training depends on, as this rank has it: a parameter, a momentum, a step counter, a seed.
struct Replica {
  enum class Must : std::uint8_t { be_equal, differ };

  std::string_view name;             ///< the same on every rank
  std::span<const std::byte> bytes;  ///< up to 32 printable characters are shown as they are, others by their hash
  Must must = Must::be_equal;        ///< differ: no two ranks may have the same, as of seeds of augmentation
};

namespace detail {

/// "rank 3", "ranks 0 to 2, 5 and 6".
inline std::string ranks_text(const std::vector<std::size_t>& ranks) {
  std::vector<std::string> runs;
  for (std::size_t i = 0; i < ranks.size();) {
    std::size_t last = i;
    while (last + 1 < ranks.size() && ranks[last + 1] == ranks[last] + 1) ++last;
    if (last == i + 1) last = i;  // two are not worth a "to"
    runs.push_back(std::to_string(ranks[i]) + (last == i ? "" : " to " + std::to_string(ranks[last])));
    i = last + 1;
  }
  std::string text = ranks.size() == 1 ? "rank " : "ranks ";
  for (std::size_t i = 0; i < runs.size(); ++i) text += (i == 0 ? "" : i + 1 == runs.size() ? " and " : ", ") + runs[i];
  return text;
}

/// Ranks by what they have, the fewest first: those are likely to be the ones that are wrong.
struct RanksAlike {
  std::string what;
  std::vector<std::size_t> ranks;
};
inline std::vector<RanksAlike> ranks_alike(const std::vector<std::string>& of_rank) {
  std::vector<RanksAlike> groups;
  for (std::size_t rank = 0; rank < of_rank.size(); ++rank) {
    const auto same = [&](const RanksAlike& group) { return group.what == of_rank[rank]; };
    const auto found = std::find_if(groups.begin(), groups.end(), same);
    if (found == groups.end())
      groups.push_back({of_rank[rank], {rank}});
    else
      found->ranks.push_back(rank);
  }
  std::stable_sort(groups.begin(), groups.end(),
                   [](const RanksAlike& a, const RanksAlike& b) { return a.ranks.size() < b.ranks.size(); });
  return groups;
}
inline std::string who_has_what(const std::vector<std::string>& of_rank) {
  constexpr std::size_t kMost = 4;
  const std::vector<RanksAlike> groups = ranks_alike(of_rank);
  std::string text;
  for (std::size_t i = 0; i < std::min(groups.size(), kMost); ++i)
    text += (i == 0 ? "" : "; ") + ranks_text(groups[i].ranks) + (groups[i].ranks.size() == 1 ? " has " : " have ") +
            groups[i].what;
  return text + (groups.size() > kMost ? "; and so on" : "");
}

/// Every rank's text, by rank. Collective. Throws Error(corrupt) for one that is not what its rank announced.
inline std::vector<std::string> gather_texts(Transport& transport, std::uint32_t channel, std::string own,
                                             std::chrono::milliseconds limit, std::string_view what) {
  constexpr std::uint64_t kLongest = std::uint64_t{256} << 20;
  const auto told = exchange_greetings(transport, channel, {fingerprint(own), own.size()}, limit, what);
  const auto me = static_cast<std::size_t>(transport.rank());
  const auto refuse = [](std::size_t peer, const std::string& why) {
    throw Error(Errc::corrupt, "rank " + std::to_string(peer) + " describes its replicas " + why);
  };
  const std::uint64_t tag = message_tag(channel, FrameKind::greeting, 0, 1);
  std::vector<std::string> texts(told.size());
  std::vector<Message> round;
  for (std::size_t peer = 0; peer < told.size(); ++peer) {
    if (peer == me) continue;
    if (told[peer].bytes > kLongest) refuse(peer, "in " + std::to_string(told[peer].bytes) + " bytes");
    texts[peer].resize(told[peer].bytes);
    const auto to = static_cast<int>(peer);
    auto* out = reinterpret_cast<std::byte*>(own.data());
    auto* in = reinterpret_cast<std::byte*>(texts[peer].data());
    round.push_back({Message::Kind::send, to, tag, out, own.size()});
    round.push_back({Message::Kind::receive, to, tag, in, texts[peer].size()});
  }
  if (!round.empty()) wait(transport, transport.post(round), limit, what);
  for (std::size_t peer = 0; peer < told.size(); ++peer)
    if (peer != me && fingerprint(texts[peer]) != told[peer].value) refuse(peer, "in bytes that were damaged");
  texts[me] = std::move(own);
  return texts;
}

}  // namespace detail

struct ConsistencyOptions {
  std::uint64_t every = 100;                                     ///< steps; the first one is compared, too
  std::chrono::milliseconds timeout = std::chrono::seconds(60);  ///< of a comparison
};

/// Finds ranks that have drifted apart: parameters, optimizer state, step counters, settings and seeds are compared by
/// their hashes, every so many steps.
///
///     ConsistencyCheck check(transport, {.every = 100});
///     for (each step) {
///       ...
///       optimizer.step();
///       check.after_step(step, [&] {
///         return std::vector<Replica>{{"layer.weight", std::as_bytes(weight)}, {"layer.weight momentum", ...}};
///       });
///     }
///
/// The same Replicas in the same order on every rank; put causes first (seeds, settings, counters, momenta, then
/// parameters), since the first difference is the one that is named.
class ConsistencyCheck {
 public:
  /// Throws Error(invalid_argument) without a transport or steps. Made in the same order as Sessions on every rank.
  explicit ConsistencyCheck(std::shared_ptr<Transport> transport, ConsistencyOptions options = {})
      : transport_(std::move(transport)), options_(options) {
    if (!transport_) throw Error(Errc::invalid_argument, "ConsistencyCheck: the transport is null");
    if (options_.every == 0 || options_.timeout.count() <= 0)
      throw Error(Errc::invalid_argument, "rank " + std::to_string(transport_->rank()) +
                                              ": ConsistencyCheck: every must be 1 or more, timeout positive");
    channel_ = transport_->next_channel();
  }

  /// Call it in every step, on every rank: the first call and then every `every`-th one asks for `replicas()` and
  /// compares. Returns whether it did.
  template <class Replicas>
  bool after_step(std::uint64_t step, Replicas&& replicas) {
    if (calls_++ % options_.every != 0) return false;
    compare(step, replicas());
    return true;
  }

  /// Compares now. Collective. Reads all bytes once and sends 64 of them to every peer (64 more for each Replica that
  /// must differ). Throws Error(mismatch) with the same text on every rank, which names the first difference and what
  /// each rank has; Error(timeout) where a rank does not come. The transport stays usable after a mismatch.
  void compare(std::uint64_t step, std::span<const Replica> replicas) {
    const std::string what =
        "comparing replicas after step " + std::to_string(step) + " (every rank must do so in this step)";
    std::vector<std::uint64_t> hashes;
    std::uint64_t all = step;
    for (const Replica& replica : replicas) {
      hashes.push_back(detail::content_hash(replica.bytes));
      const bool equal = replica.must == Replica::Must::be_equal;
      for (const std::uint64_t word : {fingerprint(replica.name), equal ? hashes.back() : 0, std::uint64_t{equal}})
        all = std::rotl((all ^ word) * 0x9E3779B185EBCA87u, 29);
    }
    for (const std::uint64_t theirs : exchange(all, what))
      if (theirs != all) refuse_differing(step, replicas, hashes, what);
    for (std::size_t i = 0; i < replicas.size(); ++i)
      if (replicas[i].must == Replica::Must::differ) require_different(step, replicas[i], hashes[i], what);
  }

 private:
  std::vector<std::uint64_t> exchange(std::uint64_t value, std::string_view what) {
    std::vector<std::uint64_t> values;
    for (const detail::Greeting& greeting :
         detail::exchange_greetings(*transport_, channel_, {value, 0}, options_.timeout, what))
      values.push_back(greeting.value);
    return values;
  }

  static std::string shown(const Replica& replica, std::uint64_t hash) {
    constexpr std::size_t kMostShown = 32;
    const auto printable = [](std::byte byte) { return byte >= std::byte{' '} && byte <= std::byte{'~'}; };
    if (!replica.bytes.empty() && replica.bytes.size() <= kMostShown &&
        std::all_of(replica.bytes.begin(), replica.bytes.end(), printable))
      return {reinterpret_cast<const char*>(replica.bytes.data()), replica.bytes.size()};
    std::string digits(16, '0');
    for (std::size_t i = 0; i < digits.size(); ++i) digits[i] = "0123456789abcdef"[hash >> (60 - 4 * i) & 15u];
    return "hash " + digits + " of " + std::to_string(replica.bytes.size()) + " bytes";
  }

  /// A line each: the name in quotes, a separator, the value.
  static std::string lines(std::uint64_t step, std::span<const Replica> replicas,
                           std::span<const std::uint64_t> hashes) {
    std::string text = "step\x1f" + std::to_string(step) + "\n";
    for (std::size_t i = 0; i < replicas.size(); ++i) {
      std::string name(replicas[i].name);
      std::replace_if(
          name.begin(), name.end(), [](char c) { return static_cast<unsigned char>(c) < ' '; }, ' ');
      const bool equal = replicas[i].must == Replica::Must::be_equal;
      text += "\"" + name + "\"\x1f" + (equal ? shown(replicas[i], hashes[i]) : "one that must differ") + "\n";
    }
    return text;
  }

  /// The next line of every text, which it takes away; "" from those that have none left.
  static std::vector<std::string> next_lines(std::vector<std::string_view>& texts) {
    std::vector<std::string> lines;
    for (std::string_view& text : texts) {
      const std::size_t end = text.find('\n');
      lines.emplace_back(text.substr(0, end));
      text = end == std::string_view::npos ? std::string_view{} : text.substr(end + 1);
    }
    return lines;
  }

  /// Every rank knows that some differ, and comes here.
  [[noreturn]] void refuse_differing(std::uint64_t step, std::span<const Replica> replicas,
                                     std::span<const std::uint64_t> hashes, std::string_view what) {
    const std::vector<std::string> texts =
        detail::gather_texts(*transport_, channel_, lines(step, replicas, hashes), options_.timeout, what);
    std::vector<std::string_view> left(texts.begin(), texts.end());
    std::string first;
    std::size_t different = 0, compared = 0;
    const auto some_left = [](std::string_view text) { return !text.empty(); };
    for (; std::any_of(left.begin(), left.end(), some_left); ++compared) {
      const std::vector<std::string> line = next_lines(left);
      if (std::all_of(line.begin(), line.end(), [&](const std::string& each) { return each == line[0]; })) continue;
      ++different;
      if (first.empty()) first = difference(line);
    }
    throw Error(Errc::mismatch, "replicas differ after step " + std::to_string(step_of(texts.front())) + ": " + first +
                                    " (" + std::to_string(different) + " of " + std::to_string(compared) +
                                    " compared differ)");
  }
  static std::uint64_t step_of(const std::string& text) {
    std::uint64_t step = 0;
    for (std::size_t i = sizeof "step"; i < text.size() && text[i] >= '0' && text[i] <= '9'; ++i)
      step = step * 10 + static_cast<std::uint64_t>(text[i] - '0');
    return step;
  }
  static std::string difference(const std::vector<std::string>& line_of_rank) {
    std::vector<std::string> names, values;
    for (const std::string& line : line_of_rank) {
      const std::size_t middle = std::min(line.find('\x1f'), line.size());
      names.push_back(line.empty() ? "nothing more to compare" : line.substr(0, middle));
      values.push_back(line.substr(std::min(middle + 1, line.size())));
    }
    if (std::all_of(names.begin(), names.end(), [&](const std::string& name) { return name == names[0]; }))
      return names[0] + ": " + detail::who_has_what(values);
    return detail::who_has_what(names) + " in the same place";
  }

  void require_different(std::uint64_t step, const Replica& replica, std::uint64_t hash, std::string_view what) {
    const std::vector<std::uint64_t> values = exchange(hash, what);
    for (std::size_t rank = 0; rank < values.size(); ++rank) {
      std::vector<std::size_t> same;
      for (std::size_t other = 0; other < values.size(); ++other)
        if (values[other] == values[rank]) same.push_back(other);
      if (same.size() == 1) continue;
      const auto texts = detail::gather_texts(*transport_, channel_, shown(replica, hash), options_.timeout, what);
      throw Error(Errc::mismatch, "replicas coincide after step " + std::to_string(step) + ": \"" +
                                      std::string(replica.name) + "\": " + detail::ranks_text(same) + " all have " +
                                      texts[rank] + ", and every rank must have its own");
    }
  }

  std::shared_ptr<Transport> transport_;
  ConsistencyOptions options_;
  std::uint32_t channel_ = 0;
  std::uint64_t calls_ = 0;
};

}  // namespace tightwire
