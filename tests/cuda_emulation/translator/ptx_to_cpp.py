#!/usr/bin/env python3
"""Makes C++ of the PTX that nvcc made of kernels. Compiled and linked with the emulation's runtime, in place of
libcudart, it is what the host code of nvcc then launches.

usage: ptx_to_cpp.py in.ptx out.cpp
"""
import pathlib
import re
import sys

from kernel import Kernel
from operands import BYTES, UNSIGNED, c_type

ITEM = re.compile(
    r"\s*(?:(?P<directive>\.(?:version|target|address_size|file)[^\n]*\n)|(?P<section>\.section[^{]*\{[^}]*\})"
    r"|(?P<function>(?:\.(?:visible|weak|extern)\s+)*\.(?P<kind>entry|func)\b)"
    r"|(?P<variable>(?:\.(?:visible|weak|extern|common)\s+)*\.(?P<space>global|const|shared)\b))")


class Module:
    def __init__(self, text):
        self.files, self.globals, self.shared, self.kernels, self.variables = {}, {}, {}, [], []
        text = re.sub(r"//[^\n]*", "", re.sub(r"/\*.*?\*/", "", text, flags=re.S))
        for match in re.finditer(r'\.file\s+(\d+)\s+"([^"]*)"', text):
            self.files[int(match[1])] = match[2]
        at = 0
        while at < len(text):
            match = ITEM.match(text, at)
            if not match:  # what is of no consequence here: .alias, .pragma
                at = text.find("\n", at + 1) % (len(text) + 1)
            elif match["function"]:
                at = self.add_function(text, match)
            elif match["variable"]:
                at = text.index(";", match.end()) + 1
                self.add_variable(match["space"], text[match.end():at - 1])
            else:
                at = match.end()

    def add_function(self, text, match):
        begin, declaration_end = text.find("{", match.end()), text.find(";", match.end())
        if 0 <= declaration_end and (begin < 0 or declaration_end < begin):
            return declaration_end + 1
        depth, end = 1, begin + 1
        while depth > 0:
            depth += (text[end] == "{") - (text[end] == "}")
            end += 1
        if match["kind"] == "entry":
            self.kernels.append(Kernel(text[match.end():begin], text[begin + 1:end - 1], self))
        return end

    def add_variable(self, space, text):
        match = re.fullmatch(r"\s*(?:\.attribute\([^)]*\)\s*)?(?:\.align\s+(\d+)\s+)?\.(\w+)\s+([\w$%.]+)((?:\[\d*\])*)"
                             r"\s*(?:=\s*(.*))?", text, re.S)
        if not match:
            return
        align, ptx_type, name = int(match[1] or BYTES[match[2]]), match[2], match[3]
        sizes = re.findall(r"\[(\d*)\]", match[4])
        count = 1
        for size in sizes:
            count *= int(size or 0)
        if space == "shared":
            self.shared[name] = (align, None if "" in sizes else count * BYTES[ptx_type])
            return
        variable = "global_" + re.sub(r"\W", "_", name)
        self.globals[name] = variable
        initial = re.sub(r"[{}]", "", match[5]) if match[5] and re.fullmatch(r"[\s{},0-9xXa-fA-F-]*", match[5]) else ""
        kind = UNSIGNED[BYTES[ptx_type]] if ptx_type.startswith("f") else c_type(ptx_type)
        self.variables += [f"alignas({align}) static {kind} {variable}[{max(count, 1)}] = {{{initial}}};",
                           f'static const bool known_{variable} = (add_variable("{name}", {variable}, sizeof {variable}), '
                           "true);"]


HEAD = """#include "ptx.hpp"
namespace cuda_emulation { void add_variable(const char*, void*, std::size_t); }
using namespace cuda_emulation;
using namespace cuda_emulation::ptx;
"""


def main():
    source, target = sys.argv[1:3]
    with open(source) as file:
        module = Module(file.read())
    text = HEAD + "\n".join(module.variables) + "\n"
    for number, kernel in enumerate(module.kernels):
        text += kernel.cpp(number) + f'\n#line 1 "{source}"\n'
    # Left as it is where only code of the host changed, which saves minutes of compiling.
    target = pathlib.Path(target)
    if not target.exists() or target.read_text() != text:
        target.write_text(text)
    for missing in sorted({m for kernel in module.kernels for m in kernel.not_modelled}):
        print(f"{source}: not modelled: {missing}")


if __name__ == "__main__":
    main()
