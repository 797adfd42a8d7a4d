#!/usr/bin/python3
"""Fails where a public header includes upward, pulls in a backend, branches on the compiler outside detail/, or a file is too
long to hold in mind. --self-test plants one violation of each kind and makes sure that it is found."""
import pathlib
import re
import sys
import tempfile

LONGEST_FILE = 500

# A header may include its own layer and those above it in this list.
LAYERS = [
    ["detail/", "version.hpp", "error.hpp"],
    ["element.hpp", "noise.hpp", "workspace.hpp", "statistics.hpp", "observer.hpp"],
    ["codec/"],
    ["coder.hpp", "momentum.hpp"],
    ["cuda.hpp"],
    ["host/layout.hpp", "host/loops.hpp"],
    ["cuda/"],
    ["host/"],
    ["builtin_codecs.hpp"],
    ["any_codec.hpp", "low_rank/settings.hpp", "sparse/settings.hpp"],
    ["codec.hpp"],
    ["transport.hpp", "hierarchy.hpp", "cost_model.hpp"],
    ["round_pool.hpp", "frame.hpp", "plan.hpp", "policy.hpp", "error_memory.hpp", "agreement.hpp", "consistency.hpp", "sharded_plan.hpp", "local_transport.hpp", "rendezvous.hpp", "ucx.hpp", "mixed.hpp", "shm.hpp", "open_transport.hpp", "mpi.hpp", "cuda_transport.hpp", "nccl.hpp"],
    ["hierarchical_plan.hpp", "form_by_cost.hpp"],
    ["state.hpp"],
    ["saved_state.hpp"],
    ["collective/", "sparse/", "low_rank/"],
    ["kernels.hpp"],
    ["core_codecs.hpp"],
    ["engine.hpp"],
    ["bucket.hpp", "session_options.hpp", "gradient_clipping.hpp", "telemetry.hpp"],
    ["parameter_list.hpp", "hierarchy_text.hpp"],
    ["bucket_planning.hpp", "session_description.hpp", "planned_load.hpp", "link_measurement.hpp"],
    ["bucket_opening.hpp"],
    ["simulation.hpp"],
    ["calibration.hpp"],
    ["automatic_codec.hpp", "automatic_nodes.hpp"],
    ["residual_runs.hpp"],
    ["session_state.hpp"],
    ["session.hpp", "cuda_session.hpp"],
    ["core_session.hpp"],
    ["header_only.hpp", "tightwire.hpp", "testing/"],
]
BACKEND = re.compile(r'#include [<"](cuda_runtime|nccl|ucp/|mpi)')
CONDITIONAL = re.compile(r"^\s*#\s*(if|ifdef|ifndef|elif)\b", re.M)
INCLUDE = re.compile(r"#include <tightwire/([^>]+)>")


def layer(name):
    """A file by its own name comes before the folder it is in."""
    for level, members in enumerate(LAYERS):
        if name in members:
            return level
    for level, members in enumerate(LAYERS):
        if any(m.endswith("/") and name.startswith(m) for m in members):
            return level
    return None


def violations(root):
    include = root / "include" / "tightwire"
    for path in sorted([*include.rglob("*.hpp"), *include.rglob("*.cuh")]):
        name, text = str(path.relative_to(include)), path.read_text()
        own = layer(name)
        if own is None:
            yield f"{name}: in no layer; add it to scripts/check_layers.py"
            continue
        for included in INCLUDE.findall(text):
            other = layer(included)
            if other is None or other > own:
                yield f"{name}: includes {included}, which is above it"
        if BACKEND.search(text) and path.suffix != ".cuh":
            yield f"{name}: includes a backend's header"
        if name.startswith("cuda/") != (path.suffix == ".cuh"):
            yield f"{name}: headers of device code are cuda/*.cuh, and no others"
        if CONDITIONAL.search(text) and not name.startswith("detail/"):
            yield f"{name}: preprocessor conditional outside detail/"
    folders = ["include", "src", "cuda", "transports", "bindings", "python", "tools", "tests", "bench", "examples", "convergence"]
    for folder in folders:
        suffixes = {".hpp", ".cpp", ".h", ".c", ".cuh", ".cu", ".py"}
        for path in sorted(p for p in (root / folder).rglob("*") if p.suffix in suffixes):
            lines = path.read_text().count("\n")
            if lines > LONGEST_FILE:
                yield f"{path.relative_to(root)}: {lines} lines, more than {LONGEST_FILE}"


def self_test():
    planted = {
        "error.hpp": "#include <tightwire/session.hpp>\n",
        "plan.hpp": "#include <mpi.h>\n",
        "coder.hpp": "#ifdef __clang__\n#endif\n",
        "cuda/tile.hpp": "\n",
        "cuda/kernels.cuh": "#include <tightwire/host/coder.hpp>\n",
        "cuda.hpp": "#include <cuda_runtime_api.h>\n",
        "unknown_place.hpp": "\n",
        "session.hpp": "\n" * (LONGEST_FILE + 1),
    }
    with tempfile.TemporaryDirectory() as folder:
        include = pathlib.Path(folder) / "include" / "tightwire"
        include.mkdir(parents=True)
        for name, text in planted.items():
            (include / name).parent.mkdir(exist_ok=True)
            (include / name).write_text(text)
        found = list(violations(pathlib.Path(folder)))
        for name in planted:
            if sum(name in line for line in found) < 1:
                sys.exit(f"check_layers.py: the violation planted in {name} was not found")
    print(f"check_layers.py: {len(planted)} planted violations found")


if __name__ == "__main__":
    if "--self-test" in sys.argv:
        self_test()
    else:
        found = list(violations(pathlib.Path(__file__).resolve().parent.parent))
        print("\n".join(found) or "check_layers.py: no violation")
        sys.exit(1 if found else 0)
