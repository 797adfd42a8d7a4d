#pragma once
#include <cstdint>
#include <functional>
#include <string>

#include <driver_types.h>

namespace cuda_emulation {

/// Puts work on a stream. It is done when something waits for it and no sooner, so that who forgets to wait reads what
/// was there before. `run` returns false if it cannot be done yet.
void enqueue(cudaStream_t stream, std::string name, std::function<bool()> run);
/// Does work, of any stream, until the condition holds; a deadlock is reported and becomes the sticky error.
cudaError_t wait_until(const std::function<bool()>& condition, const std::string& what);
cudaError_t synchronize(cudaStream_t stream);
cudaError_t synchronize_device();
/// One piece of work is done, if any can be: who asks again and again sees the end, as of a device.
void let_work_go_on();
bool idle(cudaStream_t stream);

/// Work that is put on a stream that is captured goes into a graph, which is of that stream alone.
bool is_capturing(cudaStream_t stream);
bool any_capture();
/// Whether a stream is captured that the default stream waits for.
bool captures_beside_null_stream();
void begin_capture(cudaStream_t stream);
CUgraph_st* end_capture(cudaStream_t stream);
void launch_graph(const CUgraph_st& graph, cudaStream_t stream);
std::size_t works_of(const CUgraph_st& graph);
void destroy_graph(CUgraph_st* graph);

cudaStream_t create_stream(bool waits_for_null_stream);
int current_device();
void set_current_device(int device);
/// Whether this thread made a device its own, and whether any did that one since `reset`.
bool thread_has_context();
bool context_was_made(int device);

void drop_pending_work();

}  // namespace cuda_emulation
