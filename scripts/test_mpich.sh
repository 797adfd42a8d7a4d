#!/usr/bin/env bash
# Builds the MPI parts with MPICH and passes their tests on it. MPICH's packages are unpacked into build/mpich, not installed, so that
# the MPI of this machine stays what it is. Needs a build of the preset dev; not part of scripts/test.sh.
set -euo pipefail
cd "$(dirname "$0")/.."
scripts/setup.sh build test
cmake --build --preset dev --target tightwire_core tightwire_c
folder=$PWD/build/mpich
mkdir -p "$folder"
if [[ ! -e $folder/root ]]; then
  (cd "$folder" && apt-get download -qq mpich libmpich-dev libmpich12 libslurm38)
  for package in "$folder"/*.deb; do dpkg -x "$package" "$folder/root"; done
fi
libraries=$folder/root/usr/lib/x86_64-linux-gnu
export LD_LIBRARY_PATH=$libraries:$PWD/build/dev/bindings/c UCX_LOG_LEVEL=error # UCX under MPICH tells of messages that were left unread on purpose
flags=(-O1 -fPIC -Wall -Wextra -Wconversion -Wshadow -ffp-contract=off -isystem "$folder/root/usr/include/x86_64-linux-gnu/mpich")
compile() { g++ -std=c++20 -Wno-restrict "${flags[@]}" -I. -Iinclude -Itests "$@"; }
objects=()
for source in transports/mpi/*.cpp; do
  objects+=("$folder/$(basename "$source" .cpp).o")
  compile -c "$source" -o "${objects[-1]}"
done
compile tests/mpi/ranks_test.cpp "${objects[@]}" build/dev/libtightwire_core.a -lgtest -lcrypto -L"$libraries" -lmpich -o "$folder/ranks_test"
compile -shared -fvisibility=hidden bindings/mpi/*.cpp bindings/c/session_specification.cpp "${objects[@]}" build/dev/libtightwire_core.a \
  -Wl,--version-script=bindings/mpi/exported_symbols.map -Wl,--no-undefined -lcrypto -L"$libraries" -lmpich -o "$folder/libtightwire_mpi.so"
compile -shared -fvisibility=hidden -Ibindings/c -Ibindings/c_mpi bindings/c_mpi/communicator.cpp bindings/c/fail_in_libtightwire.cpp \
  "${objects[@]}" build/dev/libtightwire_core.a -Wl,--version-script=bindings/c/exported_symbols.map -Wl,--no-undefined -lcrypto \
  -Lbuild/dev/bindings/c -ltightwire -L"$libraries" -lmpich -o "$folder/libtightwire_c_mpi.so"
gcc -std=c99 "${flags[@]}" -Ibindings/c -Ibindings/c_mpi tests/mpi/c_ranks_test.c "$folder/libtightwire_c_mpi.so" \
  -Lbuild/dev/bindings/c -ltightwire -L"$libraries" -lmpich -o "$folder/c_ranks_test"
gcc "${flags[@]}" -Wno-conversion tests/mpi/unaware.c -L"$libraries" -lmpich -lm -o "$folder/unaware"

run() { "$folder/root/usr/bin/mpiexec.hydra" "$@"; }
preloaded() { run -n 3 -env LD_PRELOAD "$folder/libtightwire_mpi.so" -env TIGHTWIRE_MPI "$1" "$folder/unaware" $2; }
run -n 2 "$folder/ranks_test" --gtest_brief=1
run -n 3 "$folder/ranks_test" --gtest_brief=1
run -n 2 "$folder/ranks_test" --gtest_brief=1 --single
run -n 3 "$folder/c_ranks_test"
run -n 2 "$folder/c_ranks_test" --single
run -n 3 "$folder/unaware" exact 0
run -n 3 -env LD_PRELOAD "$folder/libtightwire_mpi.so" "$folder/unaware" exact 0 # without the variable nothing is changed
preloaded "int4:block=64 threshold=400013" "exact 3"
preloaded "int4:block=64 threshold=65536" close
preloaded "int4:block=64 threshold=65536" drifting
preloaded "int4:block=64 threshold=65536 calls-per-step=2" conserving
preloaded "int8 threshold=65536 calls-per-step=1" misfit
preloaded "int8 threshold=65536 timeout=0.5" missing

# What TIGHTWIRE_MPI cannot say ends the job in MPI_Init, with the reason.
refused() { # <text> <command>...
  local text=$1 said
  shift
  if said=$("$@" 2>&1); then
    echo "not refused: $text" >&2
    exit 1
  fi
  grep -qF "$text" <<<"$said" || { printf 'another reason than "%s":\n%s\n' "$text" "$said" >&2; exit 1; }
}
refused "TIGHTWIRE_MPI: it names no threshold" preloaded int8 exact
refused "TIGHTWIRE_MPI: it names no codec" preloaded threshold=65536 exact
refused int99 preloaded "int99 threshold=65536" exact
refused "known are auto, node:" preloaded "int8 levels=rack:8 threshold=65536" exact
refused "would be lost without calls-per-step" preloaded "topk:ratio=0.01 threshold=65536" exact
refused '"rollback=on" is not known' preloaded "int8 threshold=65536 rollback=on" exact
refused 'is "int8 threshold=65536" on rank 0, and "int4 threshold=65536" on rank 1' run \
  -n 1 -env LD_PRELOAD "$folder/libtightwire_mpi.so" -env TIGHTWIRE_MPI "int8 threshold=65536" "$folder/unaware" exact : \
  -n 1 -env LD_PRELOAD "$folder/libtightwire_mpi.so" -env TIGHTWIRE_MPI "int4 threshold=65536" "$folder/unaware" exact
echo "all passed on MPICH"
