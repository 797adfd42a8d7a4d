#!/usr/bin/env python3
"""Fails where the PTX of codec kernels holds what rounds otherwise than the host: fused multiply-adds, products and sums that
ptxas may fuse, approximations, flushing of subnormals; and where a kernel cannot be what it should be for other reasons: local
memory, calls, no access of 16 bytes.

usage: check_ptx.py file.ptx...   or   check_ptx.py --self-test
"""
import re
import sys

FORBIDDEN = {
    r"\bfma\.": "a fused multiply-add",
    r"\bmad\.(rn\.)?f": "a fused multiply-add",
    r"\b(add|sub|mul)\.(ftz\.)?f(32|64)\b": "an operation without a rounding, which ptxas may fuse",
    r"\.approx\b": "an approximation",
    r"\bdiv\.full\b": "an approximation",
    r"\.ftz\b": "subnormals flushed to zero",
    r"\.f64\b": "double precision",
    r"\.local\b": "local memory",
    r"\bcall\b": "a call",
    r"\b(atom|red)\.[\w.]*\.add\.[\w.]*f(16|32|64)": "a sum in no fixed order",
}
# Kernels of products add them to sums unrounded, as the host does; the compiler fuses nothing by itself (--fmad=false).
FUSED = ("product_kernel", r"\bfma\.rn\.f32\b")
# What every kernel of a verb moves 16 bytes at a time: the gradient, the residual, codes and elements out.
WIDE = {"encode_kernel": (3, 3), "combine_kernel": (3, 4), "decode_kernel": (0, 2), "left_product_kernel": (4, 1),
        "right_product_kernel": (8, 0), "write_product_kernel": (1, 1)}


def kernels(text):
    for part in re.split(r"\.entry\s+", re.sub(r"//[^\n]*", "", text))[1:]:
        yield part.split("(", 1)[0].strip(), part


def violations(text):
    found = False
    for name, body in kernels(text):
        found = True
        searched = re.sub(FUSED[1], "fused", body) if FUSED[0] in name else body
        for pattern, what in FORBIDDEN.items():
            if match := re.search(pattern, searched):
                line = searched[searched.rfind("\n", 0, match.start()) + 1:searched.find("\n", match.end())].strip()
                yield f"{name}: {what}: {line}"
        for verb, (loads, stores) in WIDE.items():
            if verb in name:
                wide_loads = len(re.findall(r"\bld\.global[\w.]*\.v(4\.[bfu]32|2\.[bfu]64)", body))
                wide_stores = len(re.findall(r"\bst\.global[\w.]*\.v(4\.[bfu]32|2\.[bfu]64)", body))
                if wide_loads < loads or wide_stores < stores:
                    yield f"{name}: {wide_loads} loads and {wide_stores} stores of 16 bytes; expected {loads} and {stores}"
    if not found:
        yield "no kernel"


SOUND = ".visible .entry k(.param .u64 p)\n{ mul.rn.f32 %f1, %f2, %f3; add.rn.f32 %f1, %f1, %f4; div.rn.f32 %f1, %f1, %f2; }\n"


def self_test():
    planted = ["fma.rn.f32 %f1, %f2, %f3, %f4;", "mul.f32 %f1, %f2, %f3;", "add.f32 %f1, %f2, %f3;",
               "rcp.approx.ftz.f32 %f1, %f2;", "add.rn.ftz.f32 %f1, %f2, %f3;", "div.full.f32 %f1, %f2, %f3;",
               "st.local.f32 [%rd1], %f1;", "call.uni f, (p);", "cvt.f64.f32 %fd1, %f1;",
               "red.global.add.f32 [%rd1], %f1;"]
    if list(violations(SOUND)):
        sys.exit(f"check_ptx.py: a false alarm: {list(violations(SOUND))}")
    of_products = SOUND.replace("entry k", "entry a_product_kernel")
    if list(violations(of_products.replace("div.rn.f32", "fma.rn.f32"))):
        sys.exit("check_ptx.py: a false alarm about a product")
    for statement in planted:
        for sound in (SOUND,) if statement.startswith("fma.rn.f32") else (SOUND, of_products):
            if not list(violations(sound.replace("div.rn.f32 %f1, %f1, %f2;", statement))):
                sys.exit(f"check_ptx.py: not found: {statement}")
    if not list(violations(SOUND.replace("entry k", "entry encode_kernel"))):
        sys.exit("check_ptx.py: not found: a kernel without accesses of 16 bytes")
    if not list(violations("")):
        sys.exit("check_ptx.py: not found: a file without kernels")
    print(f"check_ptx.py: {len(planted) + 2} planted violations found")


def main():
    if sys.argv[1:] == ["--self-test"]:
        return self_test()
    found = []
    for path in sys.argv[1:]:
        with open(path) as file:
            found += [f"{path}: {violation}" for violation in violations(file.read())]
    print("\n".join(found) or f"check_ptx.py: no violation in {len(sys.argv) - 1} files")
    return sys.exit(1 if found else 0)


if __name__ == "__main__":
    main()
