// Finds NCCL when it is first needed: what links this library starts without it, and a program that has NCCL already,
// as PyTorch brings its own, keeps a single copy.
#include <dlfcn.h>

#include <string>

#include <tightwire/error.hpp>
#include <tightwire/nccl.hpp>

#include "api.hpp"
#include "call.hpp"
#include "open.hpp"

namespace tightwire::nccl {
namespace {

constexpr const char* kLibrary = "libnccl.so.2";

void* loaded() {
  if (dlsym(RTLD_DEFAULT, "ncclGetVersion") != nullptr) return RTLD_DEFAULT;
  if (void* const handle = dlopen(kLibrary, RTLD_NOW | RTLD_LOCAL)) return handle;
  const char* const why = dlerror();
  throw Error(Errc::unsupported, std::string("NCCL is not here: ") + (why != nullptr ? why : kLibrary));
}
template <class Function>
void find(void* handle, const char* name, Function& function) {
  void* const found = dlsym(handle, name);
  if (found == nullptr) throw Error(Errc::unsupported, std::string("the NCCL that is here has no ") + name);
  function = reinterpret_cast<Function>(found);
}

Api load() {
  void* const handle = loaded();
  Api api{};
  find(handle, "ncclGetVersion", api.get_version);
  int version = 0;
  if (api.get_version(&version) != ncclSuccess || version < NCCL_VERSION_CODE)
    throw Error(Errc::unsupported, "the NCCL that is here, " + text_of_version(version) +
                                       ", is older than the nccl.h that tightwire was built with, " +
                                       text_of_version(NCCL_VERSION_CODE));
  find(handle, "ncclGetErrorString", api.get_error_string);
  find(handle, "ncclGetLastError", api.get_last_error);
  find(handle, "ncclGetUniqueId", api.get_unique_id);
  find(handle, "ncclCommInitRankConfig", api.comm_init_rank_config);
  find(handle, "ncclCommSplit", api.comm_split);
  find(handle, "ncclCommFinalize", api.comm_finalize);
  find(handle, "ncclCommDestroy", api.comm_destroy);
  find(handle, "ncclCommAbort", api.comm_abort);
  find(handle, "ncclCommGetAsyncError", api.comm_get_async_error);
  find(handle, "ncclCommCount", api.comm_count);
  find(handle, "ncclCommUserRank", api.comm_user_rank);
  find(handle, "ncclCommCuDevice", api.comm_cu_device);
  find(handle, "ncclGroupStart", api.group_start);
  find(handle, "ncclGroupEnd", api.group_end);
  find(handle, "ncclSend", api.send);
  find(handle, "ncclRecv", api.recv);
  return api;
}

}  // namespace

const Api& library() {
  static const Api api = load();
  return api;
}

std::shared_ptr<cuda::Transport> open(const Rendezvous& rendezvous) { return open(rendezvous, library); }
std::shared_ptr<cuda::Transport> open(Transport& host, std::chrono::milliseconds timeout) {
  return open(host, timeout, library);
}
std::shared_ptr<cuda::Transport> adopt(ncclComm* communicator, std::chrono::milliseconds timeout) {
  return adopt(communicator, timeout, library());
}
std::string version() {
  int version = 0;
  library().get_version(&version);
  return text_of_version(version);
}

}  // namespace tightwire::nccl
