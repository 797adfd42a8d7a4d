# What to build, and what this machine has to build it with.
include(GNUInstallDirs)

option(TIGHTWIRE_BUILD_TESTS "Build the tests" ${PROJECT_IS_TOP_LEVEL})
option(TIGHTWIRE_BUILD_FUZZERS "Build the fuzzers, which need clang" OFF)
option(TIGHTWIRE_BUILD_BENCH "Build the benchmarks" ${PROJECT_IS_TOP_LEVEL})
option(TIGHTWIRE_BUILD_EXAMPLES "Build the examples" ${PROJECT_IS_TOP_LEVEL})
option(TIGHTWIRE_BUILD_TOOLS "Build the command line tool" ${PROJECT_IS_TOP_LEVEL})
option(TIGHTWIRE_BUILD_C "Build the shared library with the C interface" ${PROJECT_IS_TOP_LEVEL})
option(TIGHTWIRE_PYTHON_PACKAGE "Install the C library into the package for Python; set by pyproject.toml" OFF)
mark_as_advanced(TIGHTWIRE_PYTHON_PACKAGE)
option(TIGHTWIRE_INSTALL "Generate the install rules" ${PROJECT_IS_TOP_LEVEL})
option(TIGHTWIRE_WARNINGS_AS_ERRORS "Treat the compiler's warnings about tightwire as errors" ${PROJECT_IS_TOP_LEVEL})

# AUTO takes what the machine has, ON insists, OFF leaves out. Kernels take minutes to compile: not in a user's project unasked.
if(NOT PROJECT_IS_TOP_LEVEL)
  set(TIGHTWIRE_CUDA OFF CACHE STRING "Build the CUDA part (AUTO, ON, OFF)")
endif()
foreach(part UCX CUDA NCCL MPI TORCH)
  set(TIGHTWIRE_${part} AUTO CACHE STRING "Build the ${part} part (AUTO, ON, OFF)")
  set_property(CACHE TIGHTWIRE_${part} PROPERTY STRINGS AUTO ON OFF)
endforeach()

set(THREADS_PREFER_PTHREAD_FLAG ON)
find_package(Threads REQUIRED)
find_package(OpenSSL REQUIRED COMPONENTS Crypto)

find_package(GTest QUIET)

# What each optional part lacks here, in words; empty when it can be built.
set(tightwire_ucx_lacks "")
if(NOT TIGHTWIRE_UCX STREQUAL "OFF")
  if(NOT TARGET ucx::ucp)  # UCX's own file fails when it is read twice
    find_package(ucx CONFIG QUIET)
  endif()
  find_path(TIGHTWIRE_XXHASH_INCLUDE xxhash.h)
  find_library(TIGHTWIRE_XXHASH_LIBRARY xxhash)
  mark_as_advanced(ucx_DIR TIGHTWIRE_XXHASH_INCLUDE TIGHTWIRE_XXHASH_LIBRARY)
  if(NOT TARGET ucx::ucp)
    list(APPEND tightwire_ucx_lacks "UCX not found (Debian: libucx-dev)")
  endif()
  if(NOT TIGHTWIRE_XXHASH_INCLUDE OR NOT TIGHTWIRE_XXHASH_LIBRARY)
    list(APPEND tightwire_ucx_lacks "xxHash not found (Debian: libxxhash-dev)")
  endif()
endif()

include(${CMAKE_CURRENT_LIST_DIR}/TightwireCuda.cmake)
include(${CMAKE_CURRENT_LIST_DIR}/TightwireNccl.cmake)

set(tightwire_torch_lacks "")
if(NOT TIGHTWIRE_BUILD_EXAMPLES)
  set(tightwire_torch_lacks "examples are not built")
elseif(NOT TIGHTWIRE_TORCH STREQUAL "OFF")
  find_package(Torch QUIET)
  mark_as_advanced(Torch_DIR)
  if(NOT Torch_FOUND)
    set(tightwire_torch_lacks "libtorch not found (Debian: libtorch-dev)")
  endif()
endif()
