#include "operations.hpp"

#include <algorithm>
#include <chrono>
#include <utility>

namespace tightwire::mpi {
namespace {

constexpr std::size_t kInFlight = 1024;  // for which there is room from the start

/// How long giving up waits for messages that MPI cannot take back.
constexpr std::chrono::milliseconds kGivingUp{500};

}  // namespace

Operations::Operations(MPI_Comm communicator, std::size_t piece) : communicator_(communicator), piece_(piece) {
  requests_.reserve(kInFlight);
  owners_.reserve(kInFlight);
  indices_.reserve(kInFlight);
}

Operation& Operations::add(Round* round, const Message& message) {
  if (free_operations_ == nullptr) free_operations_ = &operations_.emplace_back();
  Operation& operation = *free_operations_;
  free_operations_ = operation.next;
  operation = {};
  operation.message = message;
  operation.round = round;
  if (round == nullptr) return operation;
  operation.next = std::exchange(round->first, &operation);
  ++round->incomplete;
  ++incomplete_;
  return operation;
}

void Operations::close(Round& round) noexcept {
  while (round.first != nullptr) {
    Operation& operation = *std::exchange(round.first, round.first->next);
    operation.next = std::exchange(free_operations_, &operation);
  }
  rounds_.close(round);
}

void Operations::send(Operation& operation, const std::byte* data, std::size_t bytes, int tag) {
  in_pieces(operation, bytes, [&](std::size_t at, int count, MPI_Request* request) {
    require(MPI_Isend(data + at, count, MPI_BYTE, operation.message.peer, tag, communicator_, request), "MPI_Isend");
  });
}

void Operations::receive(Operation& operation, std::byte* data, std::size_t bytes, int tag) {
  in_pieces(operation, bytes, [&](std::size_t at, int count, MPI_Request* request) {
    require(MPI_Irecv(data + at, count, MPI_BYTE, operation.message.peer, tag, communicator_, request), "MPI_Irecv");
  });
}

template <class Start>
void Operations::in_pieces(Operation& operation, std::size_t bytes, const Start& start) {
  for (std::size_t at = 0; at < bytes; at += piece_) {
    MPI_Request request = MPI_REQUEST_NULL;
    start(at, static_cast<int>(std::min(piece_, bytes - at)), &request);
    requests_.push_back(request);
    owners_.push_back(&operation);
    ++operation.requests;
  }
}

void Operations::settle(Operation& operation) noexcept {
  ++settled_;
  operation.settled = true;
  if (operation.round == nullptr) {
    operation.next = std::exchange(free_operations_, &operation);
    return;
  }
  --operation.round->incomplete;
  --incomplete_;
}

void Operations::progress() {
  if (requests_.empty()) return;
  indices_.resize(requests_.size());
  int count = 0;
  require(
      MPI_Testsome(static_cast<int>(requests_.size()), requests_.data(), &count, indices_.data(), MPI_STATUSES_IGNORE),
      "MPI_Testsome");
  if (count == MPI_UNDEFINED || count == 0) return;
  for (int i = 0; i < count; ++i) {
    Operation& operation = *owners_[static_cast<std::size_t>(indices_[static_cast<std::size_t>(i)])];
    if (--operation.requests == 0) settle(operation);
  }
  std::size_t kept = 0;
  for (std::size_t i = 0; i < requests_.size(); ++i) {
    if (requests_[i] == MPI_REQUEST_NULL) continue;
    requests_[kept] = requests_[i];
    owners_[kept++] = owners_[i];
  }
  requests_.resize(kept);
  owners_.resize(kept);
}

bool Operations::uses(std::span<const std::byte> memory) const noexcept {
  return std::any_of(operations_.begin(), operations_.end(), [&](const Operation& operation) {
    const Message& message = operation.message;
    return operation.round != nullptr && !operation.settled && overlap(memory, {message.data, message.bytes});
  });
}

void Operations::give_up() noexcept {
  for (std::size_t i = 0; i < requests_.size(); ++i)
    if (owners_[i]->message.kind == Message::Kind::receive) MPI_Cancel(&requests_[i]);
  const TimePoint until = Clock::now() + kGivingUp;
  try {
    while (!requests_.empty() && Clock::now() < until) progress();
  } catch (const Error&) {
    // MPI has nothing more to say about them.
  }
}

}  // namespace tightwire::mpi
