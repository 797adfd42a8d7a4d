#pragma once
#include <string>

#include "address_file.hpp"
#include "descriptor.hpp"
#include "handshake.hpp"

namespace tightwire::rendezvous {

/// Where rank 0 waits for the others, and the key they have to prove.
struct Listening {
  Descriptor socket;
  AddressFile file;
  std::string key;
  std::string where;  ///< for people
};

/// Listens as the address says, and writes the file where it names one. Throws Error(transport) with address or path
/// and errno, Error(mismatch) when another rank 0 of this job already waits at that file.
Listening listen_for_ranks(const JoinRequest& request);

/// The key in force with a rendezvous file: the job's key and what only readers of the file know.
std::string combine_keys(const std::string& job_key, const std::string& file_secret);

}  // namespace tightwire::rendezvous
