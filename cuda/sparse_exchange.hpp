#pragma once
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include <tightwire/collective/reduction.hpp>
#include <tightwire/sparse/frame_slot.hpp>
#include <tightwire/sparse/piece_sums.hpp>
#include <tightwire/sparse/plan.hpp>
#include <tightwire/sparse/section_writer.hpp>
#include <tightwire/workspace.hpp>

#include "device_choice.hpp"
#include "element_changes.hpp"
#include "host_messages.hpp"
#include "hosted_exchange.hpp"

namespace tightwire::cuda::detail {

/// For how many changes of gradients and residuals, of 8 bytes each, there is room from the beginning; their runs
/// count, too. Where owners choose again it does not grow with the number of ranks, but for four runs of each.
std::size_t expected_changes(const sparse::Plan& plan);

/// The all-reduce of the elements that each rank chooses of its gradients, as tightwire::SparseReduction is on the
/// host: the same frames, sums and residuals. Kernels add residuals, choose, and write what comes out. The host writes
/// sections of what was chosen, and sums those of all ranks, since sizes of frames are known no sooner; gradients stay
/// on the device.
class SparseExchange final : public HostedExchange {
 public:
  struct Place {
    int rank;
    HostMessages& messages;  ///< whose rounds go in the order of buckets
    Stream encodes, exchanges;
    Stream copies;  ///< of what the host asks for
    std::chrono::milliseconds timeout;
    MomentumOnDevice momentum = {};
  };
  /// The plan must outlive it. Takes memory of the current device.
  SparseExchange(const sparse::Plan& plan, FrameIdentity identity, float divisor, const Place& place);

  /// Puts the choice on its stream.
  void begin(const ReductionInput& input) override;
  /// From when the rounds of the buckets before are on their stream.
  bool advance() override;
  bool finished() const override { return stage_ == Stage::finished; }
  const Statistics& statistics() const override { return statistics_; }
  std::string waiting_for() const override;
  void end_step(bool keep) override;
  void save(state::Records& records) const override;
  void restore(std::span<const state::Record> records, bool same_ranks) override;

  /// Of entries.
  std::uint64_t host_bytes() const override { return choice_.copied_bytes() + changes_.copied_bytes(); }
  void leave_memory() noexcept override;

  // For the writer of sections, and for the sums.

  bool has_residual(std::size_t parameter) const { return static_cast<bool>(input_.senders[parameter]); }
  void take_all(const sparse::Piece& piece, sparse::Entries& entries);  // waits for a copy, but where all are chosen
  void keep(const sparse::Piece& piece, sparse::IndexForm form, const sparse::Entries& entries,
            std::span<const float> sent);
  void were_sent(const sparse::Piece& piece, const sparse::Entries& entries) const;
  float put(const sparse::Piece& piece, std::size_t index, float x);
  void give_back(const sparse::Piece& piece, std::size_t index, float lost);

 private:
  /// What it waits for: the choice, then the end of a round.
  enum class Stage { finished, choice, announcements, contributions, result_announcements, results };

  bool masks(std::size_t parameter) const;
  bool two_shot() const { return plan_.algorithm == Algorithm::two_shot; }
  std::span<const sparse::Piece> pieces(std::size_t owner) const { return pieces_[two_shot() ? owner : 0]; }
  bool owns(std::size_t rank) const { return !pieces(rank).empty(); }
  void cut_pieces();
  void take_memory();

  // Places of frames and announcements: contributions out, the result out, contributions in, results in.
  std::size_t out(FrameKind kind, std::size_t to) const {
    return !two_shot() ? 0 : kind == FrameKind::contribution ? to : ranks_;
  }
  std::size_t in(FrameKind kind, std::size_t from) const {
    return (two_shot() ? ranks_ + 1 : 1) + (kind == FrameKind::result ? ranks_ : 0) + from;
  }
  std::byte* announcement(std::size_t slot) const { return headers_.data() + slot * sizeof(FrameHeader); }
  bool sends(FrameKind kind, std::size_t to) const { return owns(kind == FrameKind::contribution ? to : me_); }
  bool receives(FrameKind kind, std::size_t from) const { return owns(kind == FrameKind::contribution ? me_ : from); }

  void contribute();
  void seal(FrameKind kind, std::size_t to, std::size_t payload_bytes, std::uint64_t nonfinite);
  void post(FrameKind kind, std::size_t chunk);
  void read_announcements(FrameKind kind);
  std::uint64_t check_frames(FrameKind kind) const;
  void open_contributions();
  void combine();
  void sum();
  void scatter();
  void finish();

  const sparse::Plan& plan_;
  FrameIdentity identity_;
  Place place_;
  std::size_t me_, ranks_;
  sparse::Ranges ranges_;
  std::vector<std::vector<sparse::Piece>> pieces_;  ///< by owner
  DeviceChoice choice_;
  ElementChanges changes_;
  /// What is added to residuals, kept apart: between elements that are put it would make as many runs as there are.
  struct GivenBack {
    std::size_t parameter, index, layer;
    std::uint32_t bits;
  };
  std::vector<GivenBack> given_back_;
  /// By parameter: the layer of what is given back next, and the index before.
  struct Layer {
    std::size_t number = 0, last = 0;
    bool empty = true;
  };
  std::vector<Layer> layers_;
  sparse::SectionWriter<SparseExchange> writer_;
  sparse::PieceSums<SparseExchange> sums_;
  Workspace headers_, memory_;
  std::vector<sparse::FrameSlot> slots_;
  std::vector<std::size_t> payload_bytes_;  ///< by slot
  std::vector<Message> round_;
  Ticket ticket_ = 0;
  Stage stage_ = Stage::finished;
  std::uint64_t nonfinite_ = 0;  ///< of what goes into the sums of our range
  sparse::Entries chosen_;
  std::span<const sparse::Choice> choices_;
  ReductionInput input_{};
  Statistics statistics_;
};

}  // namespace tightwire::cuda::detail
