#pragma once
#include <atomic>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "compressed_communicator.hpp"
#include "settings.hpp"

namespace tightwire::mpi {

/// What stands between a program and its MPI, from MPI_Init to MPI_Finalize.
class Preloaded {
 public:
  static Preloaded& instance();

  /// Whether TIGHTWIRE_MPI is set. What it says is read by `begin`.
  static bool wanted();
  /// After MPI was initialized: reads TIGHTWIRE_MPI, which all ranks must have alike. Where something is wrong it says
  /// so and ends the job, as there is nobody to return an error to.
  void begin();
  /// Before MPI is finalized.
  void end() noexcept;

  /// Where the sum goes if it is to be compressed, else null. All that decides is the same on all ranks. Says once
  /// where TIGHTWIRE_MPI is set and MPI was initialized past `begin`.
  CompressedCommunicator* find(int count, MPI_Datatype type, MPI_Op operation, MPI_Comm communicator);

  /// The error code of MPI whose text this is; new ones are said on stderr as well, since MPI's texts are short.
  int code_of(const char* error) noexcept;

 private:
  CompressedCommunicator& of(MPI_Comm communicator);
  static int forget(MPI_Comm, int, void* attribute, void*);
  void say_that_nothing_is_compressed() noexcept;

  std::optional<Settings> settings_;
  int rank_ = 0;
  int key_ = MPI_KEYVAL_INVALID;
  int error_class_ = MPI_ERR_OTHER;
  std::atomic_flag said_;
  bool finalized_ = false;
  std::mutex mutex_;
  std::map<std::string, int, std::less<>> codes_;  // of texts: MPI has few, and one that failed fails again
  std::vector<std::unique_ptr<CompressedCommunicator>> all_;
};

}  // namespace tightwire::mpi
