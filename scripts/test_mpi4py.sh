#!/usr/bin/env bash
# Runs mpi4py's own tests of reductions, unchanged, with libtightwire_mpi.so in front of them: once with a threshold above all
# they sum, and once with every sum of floats compressed, in bf16, which is exact for the whole numbers they sum. Needs PyPI for
# the sources of the tests, and a build of the preset dev; not part of scripts/test.sh.
#
#   scripts/test_mpi4py.sh [ranks]      2
set -euo pipefail
cd "$(dirname "$0")/.."
ranks=${1:-2}
[[ $ranks =~ ^[0-9]+$ ]] || { sed -n '2,6s/^# \{0,1\}//p' "$0" >&2; exit 2; }
scripts/setup.sh build bench python mpi4py
cmake --preset dev >/dev/null
cmake --build --preset dev --target tightwire_mpi_preload
version=$(dpkg-query -W -f '${Version}' python3-mpi4py | sed 's/-.*//')
folder=build/mpi4py-$version
if [[ ! -e $folder/test/runtests.py ]]; then
  mkdir -p build
  python3 -m pip download --quiet --no-deps --no-binary mpi4py --dest build "mpi4py==$version"
  tar -xf "build/mpi4py-$version.tar.gz" -C build
fi
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
for settings in "int8:block=256 threshold=65536 report=on" "bf16 threshold=1 report=on"; do
  echo "== $settings"
  mpirun -np "$ranks" --oversubscribe -x LD_PRELOAD="$PWD/build/dev/bindings/mpi/libtightwire_mpi.so" -x TIGHTWIRE_MPI="$settings" \
    /usr/bin/python3 "$folder/test/runtests.py" --no-builddir -i cco_buf -i cco_nb_buf -i cco_obj -e cco_buf_inter -e cco_nb_buf_inter \
    -e cco_obj_inter
done
