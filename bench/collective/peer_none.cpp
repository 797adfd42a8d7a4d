#include "peer.hpp"

namespace bench {

std::unique_ptr<Peer> open_mpi() { return nullptr; }

}  // namespace bench
