#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <set>

#include <tightwire/open_transport.hpp>
#include <tightwire/shm.hpp>

#include "asked.hpp"
#include "between_machines.hpp"
#include "shm/opening.hpp"

namespace tightwire {
namespace {

/// What cannot be opened here is refused where others are asked for the same, or they would wait for this rank.
void meet(const Rendezvous& rendezvous, const std::string& asked) {
  const auto membership = Membership::join(rendezvous, with_asked(asked, ""));
  behind_asked(membership->blobs());
  membership->leave(rendezvous.timeout);
}

}  // namespace

std::unique_ptr<Transport> open_transport(const Rendezvous& rendezvous, const std::string& name) {
  const char* const variable = std::getenv("TIGHTWIRE_TRANSPORT");
  const std::string wanted = !name.empty() ? name : variable != nullptr ? variable : "auto";
  if (wanted == "shm") return shm::open(rendezvous);
  const std::string without = network::has_ucx() ? "" : " in a build without ucx";
  if (!without.empty() && (wanted == "ucx" || wanted == "mixed")) meet(rendezvous, wanted + without);
  if (wanted == "ucx") return network::between_machines(rendezvous, "TIGHTWIRE_TRANSPORT=ucx");
  if (wanted == "mixed") return network::by_node(rendezvous, {}, "TIGHTWIRE_TRANSPORT=mixed", {});
  if (wanted != "auto" && !wanted.empty())
    throw Error(Errc::invalid_argument, "rank " + std::to_string(rendezvous.rank) + ": TIGHTWIRE_TRANSPORT is '" +
                                            wanted + "', which is none of auto, shm, mixed, ucx");
  const TimePoint until = deadline_after(rendezvous.timeout);
  // The limit is one for all attempts.
  const auto rest = [&] {
    Rendezvous again = rendezvous;
    const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(until - Clock::now());
    again.timeout = std::max(left, std::chrono::milliseconds{1});
    return again;
  };
  const auto over_ucx = [&](const std::string& because) { return network::between_machines(rest(), because); };
  const shm::Otherwise otherwise = [&](const std::string& because, const std::vector<int>& node_of_rank) {
    const bool is_any_shared = std::set<int>(node_of_rank.begin(), node_of_rank.end()).size() < node_of_rank.size();
    return is_any_shared ? network::by_node(rest(), node_of_rank, because, over_ucx) : over_ucx(because);
  };
  return shm::open(rendezvous, otherwise, "auto" + without);
}

}  // namespace tightwire
