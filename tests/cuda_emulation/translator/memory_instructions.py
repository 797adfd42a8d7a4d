"""Loads, stores and atomic operations."""
from operands import BYTES, FLOATS, NotModelled, UNSIGNED, c_type, members, raw

SPACES = ("param", "global", "shared", "local", "const")
STRONG = ("volatile", "relaxed", "acquire", "release")


def space_of(modifiers):
    for modifier in modifiers:
        if modifier.split("::")[0] in SPACES:
            return modifier.split("::")[0]
    return "generic"


def vector_length(modifiers):
    return next((int(m[1:]) for m in modifiers if m in ("v2", "v4", "v8")), 1)


def load(kernel, modifiers, operands):
    ptx_type, count, space = modifiers[-1], vector_length(modifiers), space_of(modifiers)
    size, unsigned = BYTES[ptx_type], UNSIGNED[BYTES[ptx_type]]
    strong = any(m in STRONG for m in modifiers)
    if strong and count > 1:
        raise NotModelled(".".join(["ld", *modifiers]))
    kernel.ordered |= strong and space != "shared"
    function = "load_strong" if strong else "load"
    as_stored = ptx_type if ptx_type[0] in "us" else raw(ptx_type)
    code = f"const std::byte* from = {kernel.pointer(space, operands[1], size * count, False)}; "
    targets = members(operands[0])
    for i in range(count):
        code += f"const {c_type(as_stored)} x{i} = ({c_type(as_stored)}){function}<{unsigned}>(from + {i * size}); "
    return "{ " + code + " ".join(kernel.write(t, as_stored, f"x{i}") for i, t in enumerate(targets)) + " }"


def store(kernel, modifiers, operands):
    ptx_type, count, space = modifiers[-1], vector_length(modifiers), space_of(modifiers)
    size, unsigned = BYTES[ptx_type], UNSIGNED[BYTES[ptx_type]]
    strong = any(m in STRONG for m in modifiers)
    if strong and count > 1:
        raise NotModelled(".".join(["st", *modifiers]))
    function = "store_strong" if strong else "store"
    code = f"std::byte* to = {kernel.pointer(space, operands[0], size * count, True)}; "
    for i, source in enumerate(members(operands[1])):
        code += f"{function}<{unsigned}>(to + {i * size}, {kernel.read(source, raw(ptx_type))}); "
    return "{ " + code + "}"


CHANGES = {"add": "{old} + value", "min": "({old} < value ? {old} : value)", "max": "({old} > value ? {old} : value)",
           "exch": "value", "and": "{old} & value", "or": "{old} | value", "xor": "{old} ^ value",
           "inc": "({old} >= value ? 0 : {old} + 1)", "dec": "({old} == 0 || {old} > value ? value : {old} - 1)"}


def atomic(kernel, name, modifiers, operands):
    ptx_type, space = modifiers[-1], space_of(modifiers)
    if ptx_type not in BYTES or vector_length(modifiers) > 1:
        raise NotModelled(".".join([name, *modifiers]))
    target = "_"
    if name == "atom":
        target, *operands = operands
    kind = next(m for m in modifiers if m in (*CHANGES, "cas"))
    bits, unsigned = raw(ptx_type), UNSIGNED[BYTES[ptx_type]]
    at = kernel.pointer(space, operands[0], BYTES[ptx_type], True)
    if kind == "cas":
        compared, wanted = (kernel.read(o, bits) for o in operands[1:3])
        change = f"[&]({unsigned} bits) -> {unsigned} {{ return bits == compared ? wanted : bits; }}"
        code = f"const {unsigned} compared = {compared}, wanted = {wanted}; "
    else:
        old = f"{ptx_type}(bits)" if ptx_type in FLOATS else f"({c_type(ptx_type)})bits"
        new = CHANGES[kind].format(old=old)
        new = f"bits_of({new})" if ptx_type in FLOATS else f"({unsigned})({new})"
        change = f"[&]({unsigned} bits) -> {unsigned} {{ return {new}; }}"
        code = f"const auto value = {kernel.read(operands[1], ptx_type)}; "
    return "{ " + code + kernel.write(target, bits, f"exchange<{unsigned}>({at}, {change})") + " }"
