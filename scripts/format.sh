#!/usr/bin/env bash
# Formats all sources; with --check changes nothing and fails where something would change.
set -euo pipefail
cd "$(dirname "$0")/.."
git -c safe.directory="$PWD" ls-files -co --exclude-standard -z '*.hpp' '*.cpp' '*.cuh' '*.cu' '*.h' '*.c' |
  xargs -0 clang-format-14 $([[ ${1-} == --check ]] && echo --dry-run --Werror || echo -i)
