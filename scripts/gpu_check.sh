#!/usr/bin/env bash
# For whoever has a GPU: builds for it, passes the tests that need one, measures every kernel against a copy on the device, and
# writes all of it into one file.
#
#   scripts/gpu_check.sh [report]      default: gpu-report.txt
#
# Where there is no device it says so, builds nothing, and ends with status 77; where one cannot be used it fails, and says why.
set -uo pipefail
cd "$(dirname "$0")/.."
[[ ${1-} != -h && ${1-} != --help ]] || { sed -n '2,7s/^# \{0,1\}//p' "$0"; exit 0; }
devices=$(nvidia-smi --list-gpus 2>/dev/null | grep -c '^GPU ')
if [[ $devices == 0 ]]; then
  echo "gpu_check.sh: nvidia-smi lists no GPU here, so that there is nothing to check; what can be tested without one: ctest -L cuda-emulation" >&2
  exit 77
fi
report=$(realpath -m "${1-gpu-report.txt}")
build=build/gpu
failed=0

section() { printf '\n== %s\n' "$*"; }
step() { "$@" || { failed=1; echo "FAILED: $*"; }; }
{
  section "machine"
  date -u
  git log -1 --format='tightwire %H' 2>/dev/null
  uname -sr
  nvidia-smi --query-gpu=name,driver_version,memory.total,compute_cap,clocks.max.sm --format=csv 2>&1 || true
  section "building"
  step cmake -S . -B $build -G Ninja -DCMAKE_BUILD_TYPE=RelWithDebInfo -DTIGHTWIRE_CUDA=ON -DCMAKE_CUDA_ARCHITECTURES=native \
    -DTIGHTWIRE_TORCH=OFF
  targets=(cuda_device_test own_codec_cuda tightwire_tool cuda_kernel_bench)
  known=$(cmake --build $build --target help)
  if [[ $known == *cuda_session_device_test* ]]; then
    nccl=1
    targets+=(cuda_session_device_test cuda_all_reduce)
  else
    nccl=0
    echo "NCCL's part is not built (why: see \"nccl\" above), so that no Session is tested here"
  fi
  step cmake --build $build --target "${targets[@]}"
  section "tests"
  echo "$devices device(s): a Session has as many ranks, and no more than that is tested of it"
  [[ $devices != 1 ]] || echo "with one device nothing is sent over NCCL"
  TIGHTWIRE_REQUIRE_GPU=1 step ctest --test-dir $build -L gpu --output-on-failure --no-tests=error
  section "memory errors and races, as compute-sanitizer sees them"
  if command -v compute-sanitizer >/dev/null; then
    for tool in memcheck racecheck synccheck initcheck; do
      step compute-sanitizer --tool $tool --error-exitcode 1 $build/bin/cuda_device_test --gtest_brief=1 \
        --gtest_filter='SameAsHost.UnderEverySchedule:SameAsHost.Rotated'
    done
    [[ $nccl == 0 ]] ||
      step compute-sanitizer --tool memcheck --error-exitcode 1 $build/bin/cuda_session_device_test --gtest_brief=1 \
        --gtest_filter='CudaSession.OptionsAsOnHosts'
  else
    echo "compute-sanitizer is not here"
  fi
  section "kernels against a copy"
  step $build/bin/cuda_kernel_bench
  section "$([[ $failed == 0 ]] && echo passed || echo failed)"
} 2>&1 | tee "$report"
echo "written to $report"
tail -n 1 "$report" | grep -q passed
