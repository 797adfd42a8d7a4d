#!/usr/bin/env bash
# `pip install .` into a fresh virtual environment, and a wheel; uses the package from there: `import tightwire`,
# `python -m tightwire info`, two ranks. Needs PyPI, and minutes the first time; not part of scripts/test.sh.
set -euo pipefail
cd "$(dirname "$0")/.."
scripts/setup.sh build python
environment=$(mktemp -d)
trap 'rm -rf "$environment"' EXIT

/usr/bin/python3 -m venv "$environment"
"$environment/bin/pip" install --quiet .
"$environment/bin/pip" wheel --quiet --no-deps --wheel-dir "$environment/wheels" .
ls -l "$environment"/wheels/tightwire-*.whl
/usr/bin/python3 -m venv "$environment/from_wheel"
"$environment/from_wheel/bin/pip" install --quiet --no-index "$environment"/wheels/tightwire-*.whl
(cd "$environment" && from_wheel/bin/python -m tightwire info >/dev/null)

cd "$environment" # away from the sources, so that what is imported is what was installed
bin/python -m tightwire info
bin/python - <<'PROGRAM'
import array
import threading

import tightwire


def rank(communicator):
    with tightwire.Session(communicator, "int8:block=64") as session:
        session.add("weight", (64, 64))
        session.seal()
        gradient = array.array("f", [1.0 + communicator.rank] * 4096)
        session.all_reduce([gradient])
        assert session.commit() and abs(gradient[7] - 1.5) < 0.05, gradient[7]
        assert 0 < session.statistics().sent_bytes < 16384


threads = [threading.Thread(target=rank, args=(each,)) for each in tightwire.Communicator.in_process(2)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
print("tightwire", tightwire.__version__, "works from", tightwire.__file__)
PROGRAM
