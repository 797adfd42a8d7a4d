#pragma once
#include <vector>

struct ncclComm;
namespace tightwire::nccl {
struct Api;
}

namespace cuda_emulation {

/// NCCL between ranks that are threads of this process, each with a device of its own. Work of a group waits on its
/// stream until the other ranks have come to theirs, as on a device; nothing is done before something waits for it.
///
/// What is a mistake with NCCL is an error here, with a report in words: memory of the host, memory that nobody wrote,
/// different numbers of bytes on both sides, ranks that do not exist, calls on a communicator that has not settled. A
/// message whose other side never comes is a wait that does not end, named by the report on deadlocks.
const tightwire::nccl::Api& nccl_double();

/// What NCCL tells of a communicator of that rank from now on, whenever it is asked: an ncclResult_t.
void fail_asynchronously(int rank, int error);
/// Calls from now on say that they are under way, and are done when asked for the second time.
void settle_slowly(bool slowly);
/// Splits from now on stay under way, and the place for the child is not written to.
void hold_splits();
/// Ends those that were held, and holds no more. -> the children, of whoever wanted them.
std::vector<ncclComm*> end_held_splits();
/// Forgets all that is under way and planted.
void reset_nccl();
/// A communicator as a program makes its own, and its end. Ranks that give the same number meet.
ncclComm* join_communicator(int ranks, int rank, unsigned number);
void leave_communicator(ncclComm* communicator);
/// Communicators that were made and are neither destroyed nor aborted.
int living_communicators();

}  // namespace cuda_emulation
