# Tests of the CUDA part. Kernels run on the CPU, as the PTX that nvcc made of them (label cuda-emulation), and on a device
# where there is one (label gpu).
if(NOT TIGHTWIRE_CUDA_BUILT)
  get_property(why GLOBAL PROPERTY tightwire_note_cuda)
  add_test(NAME cuda-emulation.skipped COMMAND ${CMAKE_COMMAND} -E echo "not tested: CUDA: ${why}")
  set_tests_properties(cuda-emulation.skipped PROPERTIES LABELS cuda-emulation SKIP_REGULAR_EXPRESSION "not tested")
  return()
endif()
add_subdirectory(cuda_emulation)
add_subdirectory(cuda)
