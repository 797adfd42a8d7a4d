#pragma once
#include <algorithm>
#include <charconv>
#include <string>
#include <string_view>
#include <vector>

#include <tightwire/codec.hpp>
#include <tightwire/error.hpp>
#include <tightwire/hierarchy.hpp>
#include <tightwire/session_options.hpp>

namespace tightwire {

/// The nodes of a job from text: "auto" (as the transport sees them, when the Session is sealed), "node:8" (ranks 0 to
/// 7 on the first node, and so on) or "node:3+1" (of these sizes). For 0 ranks only the text is looked at, and nothing
/// returned. Throws Error(invalid_argument) for anything else, and where the sizes do not add up to the ranks.
inline Hierarchy parse_levels(std::string_view text, int ranks, const Codec& inside = {}) {
  if (text == "auto") return Hierarchy::of_transport(inside);
  const auto bad = [&](const std::string& why) {
    return Error(Errc::invalid_argument, "levels=" + std::string(text) + ": " + why);
  };
  constexpr std::string_view kNode = "node:";
  if (!text.starts_with(kNode)) throw bad("known are auto, node:<ranks of each>, node:<ranks>+<ranks>+...");
  std::vector<int> sizes;
  for (std::string_view rest = text.substr(kNode.size()); sizes.empty() || !rest.empty();) {
    const std::size_t end = std::min(rest.find('+'), rest.size());
    int size = 0;
    const auto parsed = std::from_chars(rest.data(), rest.data() + end, size);
    if (parsed.ec != std::errc{} || parsed.ptr != rest.data() + end || size < 1 || end + 1 == rest.size())
      throw bad("a node has at least 1 rank");
    sizes.push_back(size);
    rest.remove_prefix(std::min(end + 1, rest.size()));
  }
  if (ranks == 0) return {};
  if (sizes.size() == 1 && ranks % sizes.front() != 0)
    throw bad(std::to_string(ranks) + " ranks are no multiple of " + std::to_string(sizes.front()) +
              "; name every node's, as in node:3+1, or auto");
  if (sizes.size() == 1) return Hierarchy::of_equal_nodes(ranks, sizes.front(), inside);
  Hierarchy hierarchy{.inside = inside};
  for (std::size_t node = 0; node < sizes.size(); ++node)
    hierarchy.node_of_rank.insert(hierarchy.node_of_rank.end(), static_cast<std::size_t>(sizes[node]),
                                  static_cast<int>(node));
  if (hierarchy.node_of_rank.size() != static_cast<std::size_t>(ranks))
    throw bad("these are " + std::to_string(hierarchy.node_of_rank.size()) + " ranks, and there are " +
              std::to_string(ranks));
  return hierarchy;
}

namespace detail {

/// What stands between the brackets of "hier(...)".
struct HierarchyText {
  std::string inside, across, levels;
};

/// Fields with commas between; a comma that no field follows belongs to a codec's options.
inline HierarchyText read_hierarchy(std::string_view text) {
  const auto bad = [&](const std::string& why) {
    return Error(Errc::invalid_argument, "\"" + std::string(text) + "\": " + why);
  };
  if (!text.ends_with(')')) throw bad("the closing ) is missing");
  HierarchyText read;
  std::string* field = nullptr;
  std::string_view rest = text.substr(text.find('(') + 1);
  rest.remove_suffix(1);
  while (!rest.empty()) {
    const std::size_t end = std::min(rest.find(','), rest.size());
    std::string_view piece = rest.substr(0, end);
    rest.remove_prefix(std::min(end + 1, rest.size()));
    constexpr std::string_view kSpace = " \t\n";
    piece.remove_prefix(std::min(piece.find_first_not_of(kSpace), piece.size()));
    piece = piece.substr(0, piece.find_last_not_of(kSpace) + 1);
    const std::size_t equals = piece.find('=');
    const std::string_view name = equals == std::string_view::npos ? std::string_view{} : piece.substr(0, equals);
    std::string* const named = name == "inside"   ? &read.inside
                               : name == "across" ? &read.across
                               : name == "levels" ? &read.levels
                                                  : nullptr;
    if (named == nullptr && field == nullptr)
      throw bad("\"" + std::string(piece) + "\" is not known; known are inside=CODEC, across=CODEC, levels=LEVELS");
    if (named == nullptr) {
      *field += "," + std::string(piece);
      continue;
    }
    if (!named->empty()) throw bad(std::string(name) + " is given twice");
    *named = piece.substr(equals + 1);
    if (named->empty()) throw bad("nothing comes after " + std::string(piece));
    field = named;
  }
  if (read.across.empty()) throw bad("it does not say across=CODEC");
  return read;
}

}  // namespace detail

/// Whether text is of the form "hier(...)".
inline bool names_hierarchy(std::string_view text) { return text.starts_with("hier("); }

/// Takes a Session's codec from text: what `parse_codec` knows, or "hier(inside=bf16, across=int4)", which also names
/// the way over nodes: how messages are encoded inside one (exact unless said) and across, and with
/// "levels=..." inside the brackets where ranks are (see `parse_levels`; auto unless said). For 0 ranks levels are not
/// taken. Throws Error(invalid_argument) that names the word and what is known.
inline void set_codec(SessionOptions& options, std::string_view text, int ranks) {
  if (!names_hierarchy(text)) {
    options.codec = parse_codec(text);
    return;
  }
  const detail::HierarchyText read = detail::read_hierarchy(text);
  options.codec = parse_codec(read.across);
  const Codec inside = read.inside.empty() ? Codec{} : parse_codec(read.inside);
  options.hierarchy = parse_levels(read.levels.empty() ? "auto" : read.levels, ranks, inside);
}

}  // namespace tightwire
