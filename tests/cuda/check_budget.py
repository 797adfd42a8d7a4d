#!/usr/bin/env python3
"""Holds kernels to a budget, by what ptxas makes of their PTX: registers, so that enough blocks fit a multiprocessor; no stack, no
spills.

usage: check_budget.py <ptxas> <architecture> file.ptx...   or   check_budget.py --self-test
"""
import re
import subprocess
import sys

REGISTERS = {"encode_kernel": 80, "combine_kernel": 96, "decode_kernel": 56, "frames_kernel": 40, "drawn_kernel": 40,
             "chosen_kernel": 40, "product_kernel": 80, "momentum_kernel": 40}
REPORT = re.compile(r"Compiling entry function '(?P<name>\S+)'.*?(?P<stack>\d+) bytes stack frame, (?P<stores>\d+) bytes spill "
                    r"stores, (?P<loads>\d+) bytes spill loads.*?Used (?P<registers>\d+) registers", re.S)


def violations(report):
    found = list(REPORT.finditer(report))
    for kernel in found:
        name, registers = kernel["name"], int(kernel["registers"])
        budget = next((most for verb, most in REGISTERS.items() if verb in name), None)
        if budget is None:
            yield f"{name}: a kernel without a budget"
        elif registers > budget:
            yield f"{name}: {registers} registers, more than {budget}"
        if int(kernel["stack"]) or int(kernel["stores"]) or int(kernel["loads"]):
            yield f"{name}: {kernel['stack']} bytes of stack, {kernel['stores']} spilled"
    if not found:
        yield "no kernel in what ptxas says"


def self_test():
    sound = ("ptxas info : Compiling entry function 'decode_kernel' for 'sm_90'\n 0 bytes stack frame, 0 bytes spill stores, "
             "0 bytes spill loads\nptxas info : Used 30 registers\n")
    if list(violations(sound)):
        sys.exit("check_budget.py: a false alarm")
    for planted in (sound.replace("Used 30", "Used 200"), sound.replace("0 bytes stack", "8 bytes stack"),
                    sound.replace("0 bytes spill stores", "4 bytes spill stores"), sound.replace("decode", "other"), ""):
        if not list(violations(planted)):
            sys.exit(f"check_budget.py: not found: {planted}")
    print("check_budget.py: 5 planted violations found")


def main():
    if sys.argv[1:] == ["--self-test"]:
        return self_test()
    ptxas, architecture, *paths = sys.argv[1:]
    found, most = [], {}
    for path in paths:
        run = subprocess.run([ptxas, "-v", f"-arch=sm_{architecture}", path, "-o", "/dev/null"], capture_output=True, text=True,
                             check=False)
        if run.returncode:
            sys.exit(run.stderr)
        found += [f"{path}: {violation}" for violation in violations(run.stderr)]
        for kernel in REPORT.finditer(run.stderr):
            verb = next((v for v in REGISTERS if v in kernel["name"]), "other")
            most[verb] = max(most.get(verb, 0), int(kernel["registers"]))
    print("\n".join(found) or f"check_budget.py: within the budget; most registers: {most}")
    return sys.exit(1 if found else 0)


if __name__ == "__main__":
    main()
