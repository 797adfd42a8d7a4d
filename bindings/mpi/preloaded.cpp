#include "preloaded.hpp"

#include <array>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <thread>

#include <tightwire/mpi.hpp>

namespace tightwire::mpi {
namespace {

constexpr std::size_t kLongestText = 512;
constexpr std::chrono::seconds kAgreeing{60};
using Text = std::array<char, kLongestText>;

const char* variable() { return std::getenv("TIGHTWIRE_MPI"); }

void say(int rank, const std::string& text) {
  const std::string who = text.starts_with("rank ") ? "" : "rank " + std::to_string(rank) + ": ";
  std::fprintf(stderr, "tightwire: %s%s\n", who.c_str(), text.c_str());
  std::fflush(stderr);
}

[[noreturn]] void end_job(int rank, const std::string& why) {
  say(rank, why);
  PMPI_Abort(MPI_COMM_WORLD, 2);
  std::abort();  // MPI_Abort does not return
}

/// Throws Error where a rank reads something else, or does not come.
void agree(const std::string& text) {
  int size = 1;
  PMPI_Comm_size(MPI_COMM_WORLD, &size);
  if (text.size() >= kLongestText) throw Error(Errc::invalid_argument, "TIGHTWIRE_MPI: longer than 511 bytes");
  Text mine{};
  std::memcpy(mine.data(), text.data(), text.size());
  std::vector<Text> all(static_cast<std::size_t>(size));
  MPI_Request request = MPI_REQUEST_NULL;
  PMPI_Iallgather(mine.data(), kLongestText, MPI_BYTE, all.data(), kLongestText, MPI_BYTE, MPI_COMM_WORLD, &request);
  const TimePoint until = Clock::now() + kAgreeing;
  for (int complete = 0; complete == 0; std::this_thread::yield()) {
    PMPI_Test(&request, &complete, MPI_STATUS_IGNORE);
    if (complete == 0 && Clock::now() >= until)
      throw Error(Errc::timeout,
                  "not every rank has libtightwire_mpi.so preloaded and TIGHTWIRE_MPI set; give both to "
                  "all of them (mpirun -x LD_PRELOAD -x TIGHTWIRE_MPI)");
  }
  for (std::size_t other = 0; other < all.size(); ++other)
    if (all[other] != all[0])
      throw Error(Errc::mismatch, "TIGHTWIRE_MPI is \"" + std::string(all[0].data()) + "\" on rank 0, and \"" +
                                      std::string(all[other].data()) + "\" on rank " + std::to_string(other));
}

std::string summary(const Statistics& total) {
  return std::to_string(total.calls) + " calls compressed, " + std::to_string(total.sent_bytes) + " bytes sent for " +
         std::to_string(total.gradient_bytes) + " bytes summed, " + std::to_string(total.blocked_seconds) + " s";
}

}  // namespace

Preloaded& Preloaded::instance() {
  // Never destroyed: where a program exits without MPI_Finalize, threads of ours are at work and other ranks do not
  // come.
  static Preloaded& only = *new Preloaded;
  return only;
}

bool Preloaded::wanted() { return variable() != nullptr; }

void Preloaded::say_that_nothing_is_compressed() noexcept {
  if (finalized_ || said_.test_and_set()) return;
  int rank = 0;
  PMPI_Comm_rank(MPI_COMM_WORLD, &rank);
  if (rank == 0)
    std::fputs(
        "tightwire: rank 0: TIGHTWIRE_MPI is set, but nothing is compressed: MPI was initialized by another call than "
        "MPI_Init or MPI_Init_thread (docs/mpi.md)\n",
        stderr);
}

void Preloaded::begin() {
  PMPI_Comm_rank(MPI_COMM_WORLD, &rank_);
  try {
    agree(variable());
    int size = 1;
    PMPI_Comm_size(MPI_COMM_WORLD, &size);
    const Settings settings = parse_settings(variable(), size);
    int level = MPI_THREAD_SINGLE;
    PMPI_Query_thread(&level);
    if (level != MPI_THREAD_MULTIPLE)
      throw Error(Errc::unsupported, "TIGHTWIRE_MPI: " + version() + " does not offer MPI_THREAD_MULTIPLE");
    if (PMPI_Comm_create_keyval(MPI_COMM_NULL_COPY_FN, &Preloaded::forget, &key_, nullptr) != MPI_SUCCESS ||
        PMPI_Add_error_class(&error_class_) != MPI_SUCCESS)
      throw Error(Errc::transport, "TIGHTWIRE_MPI: MPI has no room for an attribute and an error class of ours");
    settings_ = settings;
  } catch (const std::exception& error) {
    end_job(rank_, error.what());
  }
}

void Preloaded::end() noexcept {
  if (!settings_) return;
  try {
    // All at once: ranks may have made them in different orders, and to close one waits for its other ranks.
    std::vector<std::jthread> closing;
    for (const auto& each : all_) closing.emplace_back([&each] { each->close(); });
    closing.clear();
    Statistics total;
    for (const auto& each : all_) total += each->statistics();
    if (settings_->report && rank_ == 0) say(rank_, summary(total));
  } catch (const std::exception& error) {  // no memory, no thread: the other ranks' limits end their wait for this one
    std::fprintf(stderr, "tightwire: rank %d: MPI_Finalize: %s\n", rank_, error.what());
  }
  settings_.reset();
  finalized_ = true;
}

CompressedCommunicator* Preloaded::find(int count, MPI_Datatype type, MPI_Op operation, MPI_Comm communicator) {
  if (!settings_) {
    static const bool past_us = wanted();
    if (past_us) say_that_nothing_is_compressed();
    return nullptr;
  }
  if (type != MPI_FLOAT || operation != MPI_SUM || count <= 0 || communicator == MPI_COMM_NULL) return nullptr;
  if (!settings_->covers(static_cast<std::size_t>(count) * sizeof(float))) return nullptr;
  int inter = 0;
  int size = 1;
  if (PMPI_Comm_test_inter(communicator, &inter) != MPI_SUCCESS || inter != 0) return nullptr;
  if (PMPI_Comm_size(communicator, &size) != MPI_SUCCESS || size == 1) return nullptr;
  return &of(communicator);
}

CompressedCommunicator& Preloaded::of(MPI_Comm communicator) {
  const std::lock_guard lock(mutex_);
  void* attribute = nullptr;
  int known = 0;
  PMPI_Comm_get_attr(communicator, key_, static_cast<void*>(&attribute), &known);
  if (known != 0) return *static_cast<CompressedCommunicator*>(attribute);
  all_.push_back(std::make_unique<CompressedCommunicator>(communicator, *settings_));
  PMPI_Comm_set_attr(communicator, key_, all_.back().get());
  return *all_.back();
}

/// MPI calls it when the program frees the communicator, which is collective, as closing is.
int Preloaded::forget(MPI_Comm /*communicator*/, int /*key*/, void* attribute, void* /*extra*/) {
  static_cast<CompressedCommunicator*>(attribute)->close();
  return MPI_SUCCESS;
}

int Preloaded::code_of(const char* error) noexcept {
  const std::lock_guard lock(mutex_);
  try {
    const auto [at, is_new] = codes_.try_emplace(error, error_class_);
    if (!is_new) return at->second;
    say(rank_, error);
    int code = error_class_;
    if (PMPI_Add_error_code(error_class_, &code) != MPI_SUCCESS) return error_class_;
    const std::string text = "tightwire: " + std::string(error).substr(0, MPI_MAX_ERROR_STRING - 16);
    PMPI_Add_error_string(code, text.c_str());
    return at->second = code;
  } catch (const std::exception&) {  // no memory for the text
    return error_class_;
  }
}

}  // namespace tightwire::mpi
