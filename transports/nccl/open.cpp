// How ranks come to a communicator: rank 0 makes an id, and every rank hears of it, or why one cannot come.
#include <cstring>

#include <cuda_runtime_api.h>

#include <tightwire/agreement.hpp>
#include <tightwire/core_codecs.hpp>

#include "call.hpp"
#include "communicator.hpp"
#include "open.hpp"

namespace tightwire::nccl {
namespace {

/// What a rank tells the others.
struct Card {
  ncclUniqueId id{};         ///< of rank 0
  char trouble[512] = {};    ///< why it cannot come; empty if it can
  std::int32_t version = 0;  ///< of its NCCL
};

struct Self {
  const Api* api = nullptr;
  int device = 0;
  Card card;
};

Self self(int rank, const std::function<const Api&()>& api) {
  Self self;
  try {
    self.api = &api();
    cuda::detail::require(cudaGetDevice(&self.device), "cudaGetDevice", rank);
    self.api->get_version(&self.card.version);
    if (rank == 0)
      if (const ncclResult_t result = self.api->get_unique_id(&self.card.id); result != ncclSuccess)
        throw error_of(*self.api, result, "ncclGetUniqueId", rank, nullptr);
  } catch (const Error& error) {
    std::strncpy(self.card.trouble, error.what(), sizeof self.card.trouble - 1);
    self.card.trouble[sizeof self.card.trouble - 1] = '\0';
  }
  return self;
}

/// Throws, on every rank alike, why one of them cannot come.
void require_all_can(const std::vector<Card>& cards) {
  for (std::size_t rank = 0; rank < cards.size(); ++rank) {
    const std::string who = "rank " + std::to_string(rank);
    if (cards[rank].trouble[0] != '\0')
      throw Error(Errc::unsupported, who + " cannot use NCCL: " + cards[rank].trouble);
    if (cards[rank].version != cards[0].version)
      throw Error(Errc::mismatch, "rank 0 has NCCL " + text_of_version(cards[0].version) + ", " + who + " has NCCL " +
                                      text_of_version(cards[rank].version));
  }
}

std::shared_ptr<cuda::Transport> join(const Self& self, const std::vector<Card>& cards,
                                      Communicator::Settings settings) {
  require_all_can(cards);
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  config.blocking = 0;
  ncclComm_t comm = nullptr;
  const auto look = [&] {
    if (!settings.membership) return;
    if (const auto loss = settings.membership->loss())
      throw Error(Errc::peer_lost, "rank " + std::to_string(loss->rank) + " lost: " + loss->reason);
  };
  try {
    const ncclResult_t result =
        self.api->comm_init_rank_config(&comm, settings.size, cards[0].id, settings.rank, &config);
    settle(*self.api, result, {"ncclCommInitRankConfig", settings.rank, comm, deadline_after(settings.timeout)}, look);
  } catch (const Error&) {
    if (comm != nullptr) self.api->comm_abort(comm);
    throw;
  }
  return std::make_shared<Communicator>(*self.api, comm, std::move(settings));
}

}  // namespace

std::shared_ptr<cuda::Transport> open(const Rendezvous& rendezvous, const std::function<const Api&()>& api) {
  const Self mine = self(rendezvous.rank, api);
  std::shared_ptr<Membership> membership =
      Membership::join(rendezvous, {reinterpret_cast<const char*>(&mine.card), sizeof mine.card});
  std::vector<Card> cards(membership->blobs().size());
  for (std::size_t rank = 0; rank < cards.size(); ++rank) {
    const std::string& blob = membership->blobs()[rank];
    if (blob.size() != sizeof(Card))
      throw Error(Errc::mismatch, "rank " + std::to_string(rank) + " joined with something else than NCCL");
    std::memcpy(&cards[rank], blob.data(), sizeof(Card));
  }
  return join(mine, cards,
              {.rank = rendezvous.rank,
               .size = rendezvous.size,
               .device = mine.device,
               .timeout = rendezvous.timeout,
               .owned = true,
               .membership = std::move(membership),
               .leaves = true});
}

std::shared_ptr<cuda::Transport> open(Transport& host, std::chrono::milliseconds timeout,
                                      const std::function<const Api&()>& api) {
  Self mine = self(host.rank(), api);
  std::vector<Card> cards(static_cast<std::size_t>(host.size()));
  const std::uint64_t tag = message_tag(host.next_channel(), FrameKind::greeting, 0, 0);
  std::vector<Message> round;
  for (int peer = 0; peer < host.size(); ++peer) {
    Card& theirs = cards[static_cast<std::size_t>(peer)];
    if (peer == host.rank()) {
      theirs = mine.card;
      continue;
    }
    round.push_back({Message::Kind::send, peer, tag, reinterpret_cast<std::byte*>(&mine.card), sizeof mine.card});
    round.push_back({Message::Kind::receive, peer, tag, reinterpret_cast<std::byte*>(&theirs), sizeof theirs});
  }
  if (!round.empty()) wait(host, host.post(round), timeout, "opening NCCL (every rank must)");
  return join(mine, cards,
              {.rank = host.rank(),
               .size = host.size(),
               .device = mine.device,
               .timeout = timeout,
               .owned = true,
               .membership = nullptr,
               .leaves = false});
}

std::shared_ptr<cuda::Transport> adopt(ncclComm_t communicator, std::chrono::milliseconds timeout, const Api& api) {
  if (communicator == nullptr) throw Error(Errc::invalid_argument, "nccl::adopt: the communicator is null");
  Communicator::Settings settings{
      .rank = 0, .size = 0, .device = 0, .timeout = timeout, .owned = false, .membership = nullptr, .leaves = false};
  const auto require = [&](ncclResult_t result, const char* call) {
    if (result == ncclSuccess) return;
    throw Error(Errc::invalid_argument,
                "nccl::adopt: " + std::string(error_of(api, result, call, settings.rank, communicator).what()));
  };
  require(api.comm_user_rank(communicator, &settings.rank), "ncclCommUserRank");
  require(api.comm_count(communicator, &settings.size), "ncclCommCount");
  require(api.comm_cu_device(communicator, &settings.device), "ncclCommCuDevice");
  ncclResult_t state = ncclSuccess;
  require(api.comm_get_async_error(communicator, &state), "ncclCommGetAsyncError");
  require(state, "an operation of the communicator's");
  return std::make_shared<Communicator>(api, communicator, std::move(settings));
}

}  // namespace tightwire::nccl
