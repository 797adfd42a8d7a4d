// The CUDA runtime's calls about graphs: those of a single stream, captured and launched again.
#include <cuda_runtime_api.h>

#include <string>
#include <utility>

#include "api.hpp"
#include "stream.hpp"

namespace cuda_emulation {
namespace {
thread_local cudaStreamCaptureMode mode_of_thread = cudaStreamCaptureModeGlobal;
}  // namespace

bool spoils_capture() { return any_capture() && mode_of_thread != cudaStreamCaptureModeRelaxed; }
cudaError_t capture_spoiled(const char* call) {
  return refused(cudaErrorStreamCaptureUnsupported, std::string(call) + " beside a capture, which it spoils");
}

}  // namespace cuda_emulation

using namespace cuda_emulation;

struct CUgraphExec_st {
  CUgraph_st* graph;
};

extern "C" {

cudaError_t cudaStreamIsCapturing(cudaStream_t stream, enum cudaStreamCaptureStatus* status) {
  if (stream == nullptr && captures_beside_null_stream()) return noted(cudaErrorStreamCaptureImplicit);
  *status = is_capturing(stream) ? cudaStreamCaptureStatusActive : cudaStreamCaptureStatusNone;
  return noted(cudaSuccess);
}
cudaError_t cudaThreadExchangeStreamCaptureMode(enum cudaStreamCaptureMode* mode) {
  std::swap(*mode, mode_of_thread);
  return noted(cudaSuccess);
}
cudaError_t cudaStreamBeginCapture(cudaStream_t stream, enum cudaStreamCaptureMode) {
  if (is_capturing(stream)) return noted(cudaErrorIllegalState);
  begin_capture(stream);
  return noted(cudaSuccess);
}
cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t* graph) {
  if (!is_capturing(stream)) return noted(cudaErrorIllegalState);
  *graph = end_capture(stream);
  return noted(cudaSuccess);
}
cudaError_t cudaGraphGetNodes(cudaGraph_t graph, cudaGraphNode_t*, std::size_t* nodes) {
  *nodes = works_of(*graph);
  return noted(cudaSuccess);
}
/// The graph must live as long.
cudaError_t cudaGraphInstantiate(cudaGraphExec_t* executable, cudaGraph_t graph, unsigned long long) {
  *executable = new CUgraphExec_st{graph};
  return noted(cudaSuccess);
}
cudaError_t cudaGraphLaunch(cudaGraphExec_t executable, cudaStream_t stream) {
  launch_graph(*executable->graph, stream);
  return noted(cudaSuccess);
}
cudaError_t cudaGraphExecDestroy(cudaGraphExec_t executable) {
  delete executable;
  return noted(cudaSuccess);
}
cudaError_t cudaGraphDestroy(cudaGraph_t graph) {
  destroy_graph(graph);
  return noted(cudaSuccess);
}

}  // extern "C"
