#pragma once
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
  void end();
  bool has_begun() const { return settings_.has_value(); }

  /// Where the sum goes if it is to be compressed, else null. All that decides is the same on all ranks.
  CompressedCommunicator* find(int count, MPI_Datatype type, MPI_Op operation, MPI_Comm communicator);

  /// The error code of MPI whose text this is; says it on stderr as well, since MPI's texts are short.
  int code_of(const Error& error);

 private:
  CompressedCommunicator& of(MPI_Comm communicator);
  static int forget(MPI_Comm, int, void* attribute, void*);

  std::optional<Settings> settings_;
  int rank_ = 0;
  int key_ = MPI_KEYVAL_INVALID;
  int error_class_ = MPI_ERR_OTHER;
  std::mutex mutex_;
  std::vector<std::unique_ptr<CompressedCommunicator>> all_;
};

}  // namespace tightwire::mpi
