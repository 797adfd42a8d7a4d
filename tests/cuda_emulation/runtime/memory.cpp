#include "memory.hpp"

#include <sys/mman.h>

#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>

#include "options.hpp"
#include "stream.hpp"

namespace cuda_emulation {
namespace {

constexpr std::size_t kPage = 4096;
constexpr int kPoison = 0xff;  // NaN as a float, -1 as an integer

std::size_t whole_pages(std::size_t bytes) { return (bytes + kPage - 1) / kPage * kPage; }

struct Heap {
  std::mutex mutex;
  std::map<std::uintptr_t, Allocation> allocations;  ///< by begin; those that were freed stay, for messages
  std::map<std::string, Allocation> variables;
  std::uint64_t number = 0;
  int accesses = 0;  ///< DeviceAccess objects that live
};
Heap& heap() {
  static Heap heap;
  return heap;
}

void protect(const Allocation& allocation, int protection) {
  if (allocation.kind != MemoryKind::device || allocation.freed) return;
  mprotect(reinterpret_cast<void*>(allocation.begin), whole_pages(allocation.end - allocation.begin), protection);
}
void protect_all(int protection) {
  for (const auto& [begin, allocation] : heap().allocations) protect(allocation, protection);
}

/// Tells which memory was touched by code that may not, and ends the program as the fault would have.
void on_fault(int signal, siginfo_t* info, void*) {
  const std::string where = describe(reinterpret_cast<std::uintptr_t>(info->si_addr));
  std::fprintf(stderr, "cuda emulation: host code touched %p: %s\n", info->si_addr, where.c_str());
  std::signal(signal, SIG_DFL);
  std::raise(signal);
}
void install_handler() {
  static const bool installed = [] {
    struct sigaction action {};
    action.sa_sigaction = on_fault;
    action.sa_flags = SA_SIGINFO | SA_NODEFER;
    return sigaction(SIGSEGV, &action, nullptr) == 0;
  }();
  static_cast<void>(installed);
}

const Allocation* find(std::uintptr_t address) {
  const auto& all = heap().allocations;
  auto next = all.upper_bound(address);
  if (next == all.begin()) return nullptr;
  const Allocation& candidate = std::prev(next)->second;
  return !candidate.freed && address < candidate.end ? &candidate : nullptr;
}

}  // namespace

void* allocate(std::size_t bytes, MemoryKind kind) {
  install_handler();
  count(Call::allocation);
  // A page before and one after stay out of reach.
  const std::size_t body = whole_pages(bytes);
  void* const map = mmap(nullptr, body + 2 * kPage, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (map == MAP_FAILED) return nullptr;
  std::byte* const memory = static_cast<std::byte*>(map) + kPage;
  mprotect(memory, body, PROT_READ | PROT_WRITE);
  std::memset(memory, kPoison, body);
  const auto begin = reinterpret_cast<std::uintptr_t>(memory);
  Allocation allocation{begin, begin + bytes, nullptr, kind, 0, false, current_device()};
  if (options().check_initialized && kind == MemoryKind::device)
    allocation.written = static_cast<std::uint8_t*>(std::calloc(bytes, 1));
  Heap& all = heap();
  const std::lock_guard lock(all.mutex);
  allocation.number = ++all.number;
  all.allocations[begin] = allocation;
  if (options().guard_device_memory && all.accesses == 0) protect(allocation, PROT_NONE);
  return memory;
}

bool release(void* memory) {
  Heap& all = heap();
  const std::lock_guard lock(all.mutex);
  const auto found = all.allocations.find(reinterpret_cast<std::uintptr_t>(memory));
  if (found == all.allocations.end() || found->second.freed) return false;
  Allocation& allocation = found->second;
  const std::size_t body = whole_pages(allocation.end - allocation.begin);
  std::free(allocation.written);
  allocation.written = nullptr;
  allocation.freed = true;
  madvise(memory, body, MADV_DONTNEED);
  mprotect(memory, body, PROT_NONE);
  return true;
}

void add_variable(const char* name, void* memory, std::size_t bytes) {
  const auto begin = reinterpret_cast<std::uintptr_t>(memory);
  const std::lock_guard lock(heap().mutex);
  heap().variables[name] = {begin, begin + bytes, nullptr, MemoryKind::pinned, 0, false, 0};
}
void* find_variable(const std::string& name) {
  const std::lock_guard lock(heap().mutex);
  const auto found = heap().variables.find(name);
  return found == heap().variables.end() ? nullptr : reinterpret_cast<void*>(found->second.begin);
}

std::optional<Allocation> find_allocation(const void* at) {
  const std::lock_guard lock(heap().mutex);
  const Allocation* found = find(reinterpret_cast<std::uintptr_t>(at));
  return found != nullptr ? std::optional(*found) : std::nullopt;
}

std::vector<Allocation> allocations() {
  const std::lock_guard lock(heap().mutex);
  std::map<std::uintptr_t, Allocation> sorted;
  for (const auto& [begin, allocation] : heap().allocations)
    if (!allocation.freed) sorted[begin] = allocation;
  for (const auto& [name, variable] : heap().variables) sorted[variable.begin] = variable;
  std::vector<Allocation> all;
  for (const auto& [begin, allocation] : sorted) all.push_back(allocation);
  return all;
}

std::string describe(std::uintptr_t address) {
  const std::lock_guard lock(heap().mutex);
  for (const auto& [begin, allocation] : heap().allocations) {
    const std::size_t bytes = allocation.end - begin;
    if (address < begin - kPage || address >= begin + whole_pages(bytes) + kPage) continue;
    const std::string which = std::string(allocation.freed                        ? "freed"
                                          : allocation.kind == MemoryKind::device ? "device"
                                                                                  : "pinned") +
                              " allocation #" + std::to_string(allocation.number) + " of " + std::to_string(bytes) +
                              " bytes";
    if (address < begin) return std::to_string(begin - address) + " bytes before " + which;
    if (address >= allocation.end) return std::to_string(address - allocation.end) + " bytes past the end of " + which;
    return std::to_string(address - begin) + " bytes into " + which;
  }
  return "in no memory of a device, nor pinned";
}

void mark_written(const void* at, std::size_t bytes) {
  if (const auto found = find_allocation(at); found && found->written != nullptr)
    std::memset(found->written + (reinterpret_cast<std::uintptr_t>(at) - found->begin), 1, bytes);
}
bool is_written(const void* at, std::size_t bytes) {
  const auto found = find_allocation(at);
  if (!found || found->written == nullptr) return true;
  const std::uint8_t* marks = found->written + (reinterpret_cast<std::uintptr_t>(at) - found->begin);
  for (std::size_t i = 0; i < bytes; ++i)
    if (marks[i] == 0) return false;
  return true;
}
void copy_marks(const void* to, const void* from, std::size_t bytes) {
  const auto source = find_allocation(from);
  if (!source || source->written == nullptr) return mark_written(to, bytes);
  const auto target = find_allocation(to);
  if (!target || target->written == nullptr) return;
  std::memmove(target->written + (reinterpret_cast<std::uintptr_t>(to) - target->begin),
               source->written + (reinterpret_cast<std::uintptr_t>(from) - source->begin), bytes);
}

DeviceAccess::DeviceAccess() {
  const std::lock_guard lock(heap().mutex);
  if (heap().accesses++ == 0) protect_all(PROT_READ | PROT_WRITE);
}
DeviceAccess::~DeviceAccess() {
  const std::lock_guard lock(heap().mutex);
  if (--heap().accesses == 0 && options().guard_device_memory) protect_all(PROT_NONE);
}

}  // namespace cuda_emulation
