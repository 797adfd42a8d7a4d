#!/usr/bin/env bash
# Installs the Debian packages that tightwire needs, by purpose. Does nothing, quickly, when all are there.
#
#   scripts/setup.sh build|decoders|test|quickstart|convergence|bench|python|torch...     as root where something is missing
set -euo pipefail

build="build-essential cmake ninja-build pkg-config ccache libssl-dev libucx-dev ucx-utils libxxhash-dev libcli11-dev libfmt-dev
       nlohmann-json3-dev libtomlplusplus-dev libhwloc-dev"
quickstart="$build libtorch-dev libopenblas0-pthread dataset-fashion-mnist zlib1g-dev"
convergence="$quickstart python3 python3-numpy python3-matplotlib bible-kjv bible-kjv-text"
bench="$build libbenchmark-dev libopenblas-dev openmpi-bin libopenmpi-dev iproute2 python3-torch python3-matplotlib"
decoders="$build libgtest-dev"
python="python3-venv python3-pip"
mpi4py="python3-mpi4py"
torch="python3-torch python3-numpy mypy"
test="$convergence $bench $torch $decoders git gfortran clang-14 clang-format-14 clang-tidy-14 python3-minimal"

[[ $# -gt 0 ]] || { sed -n '2,4s/^# \{0,1\}//p' "$0" >&2; exit 2; }
wanted=""
for purpose in "$@"; do
  case $purpose in
    build | decoders | test | quickstart | convergence | bench | python | torch | mpi4py) wanted+=" ${!purpose}" ;;
    *) echo "setup.sh: unknown purpose \"$purpose\"; known: build, decoders, test, quickstart, convergence, bench, python, torch, mpi4py" >&2; exit 2 ;;
  esac
done

missing=()
for package in $(tr ' ' '\n' <<<"$wanted" | sort -u); do
  [[ $(dpkg-query -W -f '${db:Status-Status}' "$package" 2>/dev/null) == installed ]] || missing+=("$package")
done
[[ ${#missing[@]} -gt 0 ]] || exit 0

echo "Installing: ${missing[*]}"
[[ $(id -u) == 0 ]] || { echo "setup.sh: run it as root, or install these packages by other means" >&2; exit 1; }
export DEBIAN_FRONTEND=noninteractive
apt-get -o DPkg::Lock::Timeout=300 -qq update
apt-get -o DPkg::Lock::Timeout=300 -qq install -y --no-install-recommends "${missing[@]}" >/dev/null
