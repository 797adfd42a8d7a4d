#include <sys/eventfd.h>

#include "handshake.hpp"
#include "join.hpp"
#include "standing_membership.hpp"

namespace tightwire {
namespace rendezvous {
namespace {

/// A job of one rank: nobody to talk to and nobody to lose.
class LoneMembership final : public Membership {
 public:
  explicit LoneMembership(std::string_view blob)
      : blobs_{std::string(blob)}, never_(Descriptor::make([] { return ::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK); })) {}

  int rank() const noexcept override { return 0; }
  int size() const noexcept override { return 1; }
  const std::vector<std::string>& blobs() const noexcept override { return blobs_; }
  std::optional<Loss> loss() const override { return std::nullopt; }
  int loss_descriptor() const noexcept override { return never_.get(); }
  void give_up(std::string_view /*reason*/) noexcept override {}
  void leave(std::chrono::milliseconds /*limit*/) noexcept override {}

 private:
  std::vector<std::string> blobs_;
  Descriptor never_;
};

[[noreturn]] void refuse_to_join(const std::string& message) { throw Error(Errc::invalid_argument, message); }

void check(const Rendezvous& rendezvous, std::string_view blob) {
  const std::string who = "rank " + std::to_string(rendezvous.rank) + ": ";
  if (rendezvous.size < 1) refuse_to_join(who + "world size " + std::to_string(rendezvous.size) + " is below 1");
  if (rendezvous.rank < 0) refuse_to_join(who + "a rank is never negative");
  if (rendezvous.size == 1 && rendezvous.rank != 0) refuse_to_join(who + "a job of one rank has rank 0 only");
  if (rendezvous.timeout.count() <= 0) {
    refuse_to_join(who + "timeout " + std::to_string(rendezvous.timeout.count()) + " ms is not above zero");
  }
  if (blob.size() > kBlobBytes) {
    refuse_to_join(who + "a blob of " + std::to_string(blob.size()) + " bytes is above the limit of " +
                   std::to_string(kBlobBytes));
  }
  if (rendezvous.size > 1 && rendezvous.key.empty()) refuse_to_join(who + "the job key is empty (TIGHTWIRE_JOB_KEY)");
}

}  // namespace

std::unique_ptr<Membership> join_with_protocol(const Rendezvous& rendezvous, std::string_view blob,
                                               std::uint32_t protocol) {
  check(rendezvous, blob);
  if (rendezvous.size == 1) return std::make_unique<LoneMembership>(blob);
  const JoinRequest request{rendezvous, blob, deadline_after(rendezvous.timeout), protocol};
  Joined joined = rendezvous.rank == 0 ? gather(request) : report(request);
  return std::make_unique<StandingMembership>(rendezvous, std::move(joined));
}

}  // namespace rendezvous

std::unique_ptr<Membership> Membership::join(const Rendezvous& rendezvous, std::string_view blob) {
  return rendezvous::join_with_protocol(rendezvous, blob, rendezvous::kProtocolVersion);
}

}  // namespace tightwire
