#include "nccl_double.hpp"

#include <pthread.h>

#include <atomic>
#include <cstring>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "api.hpp"
#include "runtime/memory.hpp"
#include "runtime/options.hpp"
#include "runtime/stream.hpp"

namespace {

struct Operation {
  bool sends;
  std::byte* memory;
  std::size_t bytes;
  int peer;
  bool done = false;
};
using Operations = std::vector<std::shared_ptr<Operation>>;

/// The ranks of one communicator.
struct Clique {
  explicit Clique(int ranks) : size(ranks) {}
  std::mutex mutex;
  int size;
  std::set<int> joined;
  bool failed = false;
  std::map<std::pair<int, int>, std::deque<std::shared_ptr<Operation>>> sends, receives;  ///< by sender, receiver
  std::map<std::uint64_t, std::shared_ptr<Clique>> children;                              ///< by number of the split
};

}  // namespace

struct ncclComm {
  std::shared_ptr<Clique> clique;
  int rank = 0;
  int device = 0;
  std::uint64_t splits = 0;
  std::atomic<bool> dead = false;
  std::atomic<bool> splitting = false;
  int asks_until_settled = 0;
};

namespace cuda_emulation {
namespace {

std::mutex world_mutex;
std::map<std::uint64_t, std::shared_ptr<Clique>> cliques;
std::map<int, ncclResult_t> planted_errors;
std::uint64_t last_id = 0;
std::atomic<bool> slow = false;
struct HeldSplit {
  ncclComm* parent;
  ncclComm* child;
  ncclComm** place;
};
bool holding = false;
std::vector<HeldSplit> held;
std::atomic<int> living = 0;

thread_local std::string last_error;
thread_local int depth = 0;
thread_local std::map<ncclComm*, std::pair<cudaStream_t, Operations>> group;

ncclResult_t refuse(ncclResult_t result, const std::string& why) {
  last_error = why;
  report("NCCL: " + why);
  return result;
}
ncclResult_t begun(ncclComm* comm) {
  if (!slow) return ncclSuccess;
  comm->asks_until_settled = 2;
  return ncclInProgress;
}
bool on_own_stack(const void* place) {
  pthread_attr_t attributes;
  void* lowest = nullptr;
  std::size_t bytes = 0;
  pthread_getattr_np(pthread_self(), &attributes);
  pthread_attr_getstack(&attributes, &lowest, &bytes);
  pthread_attr_destroy(&attributes);
  return place >= lowest && place < static_cast<const std::byte*>(lowest) + bytes;
}
bool settled(ncclComm* comm) {
  if (comm->splitting) return false;
  const std::lock_guard lock(comm->clique->mutex);
  return static_cast<int>(comm->clique->joined.size()) == comm->clique->size && comm->asks_until_settled == 0;
}

void copy(Operation& send, Operation& receive, int from, int to, Clique& clique) {
  send.done = receive.done = true;
  if (send.bytes != receive.bytes) {
    report("NCCL: " + std::to_string(send.bytes) + " bytes from rank " + std::to_string(from) + " meet a receive of " +
           std::to_string(receive.bytes) + " on rank " + std::to_string(to));
    clique.failed = true;
    return;
  }
  const DeviceAccess access;
  std::memcpy(receive.memory, send.memory, send.bytes);
  mark_written(receive.memory, receive.bytes);
}
void match(Clique& clique) {
  for (auto& [ranks, sends] : clique.sends) {
    auto& receives = clique.receives[ranks];
    while (!sends.empty() && !receives.empty()) {
      copy(*sends.front(), *receives.front(), ranks.first, ranks.second, clique);
      sends.pop_front();
      receives.pop_front();
    }
  }
}

/// All of a group's operations on one communicator: they begin together, and end together.
void enqueue_group(ncclComm* comm, cudaStream_t stream, const Operations& operations) {
  std::string name = "NCCL group of rank " + std::to_string(comm->rank);
  for (const auto& operation : operations)
    name += std::string(operation->sends ? ", send to " : ", receive from ") + std::to_string(operation->peer);
  auto begun_already = std::make_shared<bool>(false);
  enqueue(stream, name, [=] {
    const std::shared_ptr<Clique> clique = comm->clique;
    const std::lock_guard lock(clique->mutex);
    if (comm->dead) return true;
    if (!std::exchange(*begun_already, true))
      for (const auto& operation : operations) {
        if (operation->sends && !is_written(operation->memory, operation->bytes)) {
          report("NCCL: rank " + std::to_string(comm->rank) + " sends memory that nobody wrote");
          set_sticky_error(cudaErrorIllegalAddress);
        }
        (operation->sends ? clique->sends[{comm->rank, operation->peer}]
                          : clique->receives[{operation->peer, comm->rank}])
            .push_back(operation);
      }
    match(*clique);
    for (const auto& operation : operations)
      if (!operation->done) return false;
    return true;
  });
}

ncclResult_t flush() {
  ncclResult_t result = ncclSuccess;
  for (auto& [comm, work] : std::exchange(group, {})) {
    enqueue_group(comm, work.first, work.second);
    if (const ncclResult_t began = begun(comm); began != ncclSuccess) result = began;
  }
  return result;
}

ncclResult_t add(bool sends, const void* memory, std::size_t count, ncclDataType_t type, int peer, ncclComm* comm,
                 cudaStream_t stream) {
  const std::string call = sends ? "ncclSend: " : "ncclRecv: ";
  if (comm == nullptr || comm->dead) return refuse(ncclInvalidArgument, call + "this communicator is no more");
  if (!settled(comm)) return refuse(ncclInvalidUsage, call + "an earlier call on this communicator is under way");
  if (type != ncclUint8) return refuse(ncclInvalidArgument, call + "only bytes are modelled");
  if (peer < 0 || peer >= comm->clique->size || peer == comm->rank)
    return refuse(ncclInvalidArgument, call + "there is no peer " + std::to_string(peer));
  const auto found = find_allocation(memory);
  if (!found || found->kind != MemoryKind::device || found->device != comm->device ||
      reinterpret_cast<std::uintptr_t>(memory) + count > found->end)
    return refuse(ncclInvalidArgument, call + "these " + std::to_string(count) + " bytes are not in memory of device " +
                                           std::to_string(comm->device));
  auto& [its_stream, operations] = group[comm];
  its_stream = stream;
  auto* const bytes = static_cast<std::byte*>(const_cast<void*>(memory));
  operations.push_back(std::make_shared<Operation>(Operation{sends, bytes, count, peer}));
  return depth == 0 ? flush() : ncclSuccess;
}

ncclComm* make(const std::shared_ptr<Clique>& clique, int rank) {
  auto* const comm = new ncclComm;  // stays, as work may name it
  comm->clique = clique;
  comm->rank = rank;
  comm->device = current_device();
  ++living;
  const std::lock_guard lock(clique->mutex);
  clique->joined.insert(rank);
  return comm;
}
ncclResult_t end(ncclComm* comm) {
  if (comm == nullptr) return refuse(ncclInvalidArgument, "a null communicator");
  const std::lock_guard lock(comm->clique->mutex);
  if (comm->dead.exchange(true)) return refuse(ncclInvalidArgument, "this communicator is no more");
  --living;
  for (auto* queues : {&comm->clique->sends, &comm->clique->receives})
    for (auto& [ranks, queue] : *queues)
      if ((queues == &comm->clique->sends ? ranks.first : ranks.second) == comm->rank) queue.clear();
  return ncclSuccess;
}

// As NCCL's own functions of these names.

ncclResult_t get_version(int* version) {
  *version = NCCL_VERSION_CODE;
  return ncclSuccess;
}
const char* get_error_string(ncclResult_t result) {
  switch (result) {
    case ncclSuccess: return "no error";
    case ncclUnhandledCudaError: return "unhandled cuda error";
    case ncclSystemError: return "unhandled system error";
    case ncclInvalidArgument: return "invalid argument";
    case ncclInvalidUsage: return "invalid usage";
    case ncclRemoteError: return "remote process exited or there was a network error";
    case ncclInProgress: return "NCCL operation in progress";
    default: return "internal error";
  }
}
const char* get_last_error(ncclComm_t) { return last_error.c_str(); }
ncclResult_t get_unique_id(ncclUniqueId* id) {
  const std::lock_guard lock(world_mutex);
  const std::uint64_t number = ++last_id;
  std::memset(id, 0, sizeof *id);
  std::memcpy(id, &number, sizeof number);
  return ncclSuccess;
}
ncclResult_t comm_init_rank_config(ncclComm_t* comm, int ranks, ncclUniqueId id, int rank, ncclConfig_t* config) {
  if (config == nullptr || config->blocking != 0)
    return refuse(ncclInvalidUsage, "only what does not block is modelled");
  std::uint64_t number = 0;
  std::memcpy(&number, &id, sizeof number);
  std::shared_ptr<Clique> clique;
  {
    const std::lock_guard lock(world_mutex);
    std::shared_ptr<Clique>& known = cliques[number];
    if (!known) known = std::make_shared<Clique>(ranks);
    clique = known;
  }
  if (clique->size != ranks || rank < 0 || rank >= ranks)
    return refuse(ncclInvalidArgument, "ranks disagree on the size of the communicator");
  *comm = make(clique, rank);
  return ncclInProgress;
}
ncclResult_t comm_split(ncclComm_t comm, int color, int key, ncclComm_t* child, ncclConfig_t* config) {
  if (comm->dead || !settled(comm)) return refuse(ncclInvalidUsage, "ncclCommSplit of what is under way or no more");
  if (color != 0 || key != comm->rank || config == nullptr || config->blocking != 0)
    return refuse(ncclInvalidUsage, "such a split is not modelled");
  std::shared_ptr<Clique> clique;
  {
    const std::lock_guard lock(comm->clique->mutex);
    std::shared_ptr<Clique>& known = comm->clique->children[comm->splits++];
    if (!known) known = std::make_shared<Clique>(comm->clique->size);
    clique = known;
  }
  {
    const std::lock_guard lock(world_mutex);
    if (holding) {
      if (on_own_stack(child))
        report("NCCL: the place for the child of a split is on a stack, which may end before it");
      comm->splitting = true;
      held.push_back({comm, make(clique, comm->rank), child});
      return ncclInProgress;
    }
  }
  *child = make(clique, comm->rank);
  begun(*child);
  return begun(comm);
}
ncclResult_t comm_get_async_error(ncclComm_t comm, ncclResult_t* state) {
  if (comm == nullptr || comm->dead) return refuse(ncclInvalidArgument, "this communicator is no more");
  {
    const std::lock_guard lock(world_mutex);
    if (const auto found = planted_errors.find(comm->rank); found != planted_errors.end()) {
      *state = found->second;
      return ncclSuccess;
    }
  }
  const std::lock_guard lock(comm->clique->mutex);
  if (comm->asks_until_settled > 0) --comm->asks_until_settled;
  const bool here = static_cast<int>(comm->clique->joined.size()) == comm->clique->size;
  const bool under_way = !here || comm->splitting || comm->asks_until_settled != 0;
  *state = comm->clique->failed ? ncclInvalidUsage : under_way ? ncclInProgress : ncclSuccess;
  return ncclSuccess;
}
ncclResult_t comm_finalize(ncclComm_t comm) { return begun(comm); }
ncclResult_t comm_count(ncclComm_t comm, int* count) {
  *count = comm->clique->size;
  return ncclSuccess;
}
ncclResult_t comm_user_rank(ncclComm_t comm, int* rank) {
  *rank = comm->rank;
  return ncclSuccess;
}
ncclResult_t comm_cu_device(ncclComm_t comm, int* device) {
  *device = comm->device;
  return ncclSuccess;
}
ncclResult_t group_start() {
  ++depth;
  return ncclSuccess;
}
ncclResult_t group_end() {
  if (depth == 0) return refuse(ncclInvalidUsage, "ncclGroupEnd without ncclGroupStart");
  return --depth == 0 ? flush() : ncclSuccess;
}
ncclResult_t send(const void* memory, std::size_t count, ncclDataType_t type, int peer, ncclComm_t comm,
                  cudaStream_t stream) {
  return add(true, memory, count, type, peer, comm, stream);
}
ncclResult_t recv(void* memory, std::size_t count, ncclDataType_t type, int peer, ncclComm_t comm,
                  cudaStream_t stream) {
  return add(false, memory, count, type, peer, comm, stream);
}

}  // namespace

const tightwire::nccl::Api& nccl_double() {
  static const tightwire::nccl::Api api{get_version,
                                        get_error_string,
                                        get_last_error,
                                        get_unique_id,
                                        comm_init_rank_config,
                                        comm_split,
                                        comm_finalize,
                                        end,
                                        end,
                                        comm_get_async_error,
                                        comm_count,
                                        comm_user_rank,
                                        comm_cu_device,
                                        group_start,
                                        group_end,
                                        send,
                                        recv};
  return api;
}

void fail_asynchronously(int rank, int error) {
  const std::lock_guard lock(world_mutex);
  planted_errors[rank] = static_cast<ncclResult_t>(error);
}
void settle_slowly(bool slowly) { slow = slowly; }
void hold_splits() {
  const std::lock_guard lock(world_mutex);
  holding = true;
}
std::vector<ncclComm*> end_held_splits() {
  const std::lock_guard lock(world_mutex);
  holding = false;
  std::vector<ncclComm*> children;
  for (const HeldSplit& split : std::exchange(held, {})) {
    *split.place = split.child;
    split.parent->splitting = false;
    children.push_back(split.child);
  }
  return children;
}
void reset_nccl() {
  const std::lock_guard lock(world_mutex);
  cliques.clear();
  planted_errors.clear();
  slow = false;
}
ncclComm* join_communicator(int ranks, int rank, unsigned number) {
  ncclUniqueId id{};
  const std::uint64_t far_off = std::uint64_t{1} << 32 | number;
  std::memcpy(&id, &far_off, sizeof far_off);
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  config.blocking = 0;
  ncclComm* comm = nullptr;
  comm_init_rank_config(&comm, ranks, id, rank, &config);
  while (!settled(comm)) std::this_thread::yield();
  return comm;
}
void leave_communicator(ncclComm* communicator) { end(communicator); }
int living_communicators() { return living; }

}  // namespace cuda_emulation
