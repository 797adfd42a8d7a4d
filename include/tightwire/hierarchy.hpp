#pragma once
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include <tightwire/codec.hpp>
#include <tightwire/error.hpp>

namespace tightwire {

/// Ranks that share a node, with fast links inside and slow ones across.
///
/// With it an all-reduce goes: inside a node everyone gets a share of the node's sum; across nodes those with the same
/// place in their nodes sum their share, compressed; inside again everyone gets the shares of the others. So a node's
/// link carries about 2 (nodes - 1) / nodes of the encoded size, whatever the ranks inside, where a flat two-shot takes
/// that times the ranks of a node; and all network cards of a node work. No rank leads.
struct Hierarchy {
  /// By rank, any numbers. Empty: no hierarchy.
  std::vector<int> node_of_rank = {};
  /// How messages inside a node are encoded; the policy's codecs are for those across.
  Codec inside = {};
  /// The nodes are found by the transport when a Session is sealed, and `node_of_rank` is not looked at.
  bool automatic = false;

  explicit operator bool() const { return automatic || !node_of_rank.empty(); }

  /// Ranks that reach each other through memory share a node.
  static Hierarchy of_transport(const Codec& inside = {}) { return {.inside = inside, .automatic = true}; }

  /// Ranks 0 .. n - 1 on the first node, and so on. Throws Error(invalid_argument) for ranks that do not divide up.
  static Hierarchy of_equal_nodes(int ranks, int ranks_per_node, const Codec& inside = {}) {
    if (ranks_per_node < 1 || ranks % ranks_per_node != 0)
      throw Error(Errc::invalid_argument, "hierarchy: " + std::to_string(ranks) + " ranks are no multiple of " +
                                              std::to_string(ranks_per_node) + " per node");
    Hierarchy hierarchy{.inside = inside};
    for (int rank = 0; rank < ranks; ++rank) hierarchy.node_of_rank.push_back(rank / ranks_per_node);
    return hierarchy;
  }
};

/// Who is where.
struct Nodes {
  std::vector<std::vector<int>> ranks;  ///< by node, in order of their first ranks; each ascending

  std::size_t nodes() const { return ranks.size(); }
  /// Ranks of the node with the most.
  std::size_t largest() const {
    std::size_t most = 0;
    for (const auto& node : ranks) most = std::max(most, node.size());
    return most;
  }
  /// "2" where all have two, else "3+1".
  std::string sizes() const {
    std::string text;
    bool even = true;
    for (const auto& node : ranks) {
      text += (text.empty() ? "" : "+") + std::to_string(node.size());
      even = even && node.size() == ranks.front().size();
    }
    return even ? std::to_string(ranks.front().size()) : text;
  }
  /// Node of a rank, and its place there.
  std::pair<std::size_t, std::size_t> place_of(int rank) const {
    for (std::size_t node = 0; node < ranks.size(); ++node)
      for (std::size_t place = 0; place < ranks[node].size(); ++place)
        if (ranks[node][place] == rank) return {node, place};
    return {0, 0};
  }
  std::string describe() const {
    std::string text;
    for (const auto& node : ranks) {
      text += text.empty() ? "" : " | ";
      for (std::size_t i = 0; i < node.size(); ++i) text += (i != 0 ? " " : "") + std::to_string(node[i]);
    }
    return text;
  }
};

/// Throws Error(invalid_argument) for another number of ranks than the transport has.
inline Nodes nodes_of(const Hierarchy& hierarchy, int ranks) {
  const auto& node_of = hierarchy.node_of_rank;
  if (node_of.size() != static_cast<std::size_t>(ranks))
    throw Error(Errc::invalid_argument, "hierarchy: names the nodes of " + std::to_string(node_of.size()) +
                                            " ranks, and there are " + std::to_string(ranks));
  Nodes nodes;
  std::vector<int> names;
  for (int rank = 0; rank < ranks; ++rank) {
    const int name = node_of[static_cast<std::size_t>(rank)];
    const auto at = static_cast<std::size_t>(std::find(names.begin(), names.end(), name) - names.begin());
    if (at == names.size()) {
      names.push_back(name);
      nodes.ranks.emplace_back();
    }
    nodes.ranks[at].push_back(rank);
  }
  return nodes;
}

}  // namespace tightwire
