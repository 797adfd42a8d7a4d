"""Instructions that compute: registers in, a register out."""
from operands import BYTES, FLOATS, NotModelled, UNSIGNED, c_type, members, raw

OPERATOR = {"add": "+", "sub": "-", "mul": "*", "div": "/", "and": "&", "or": "|", "xor": "^"}
COMPARE = {"eq": "==", "ne": "!=", "lt": "<", "le": "<=", "gt": ">", "ge": ">=", "lo": "<", "ls": "<=", "hi": ">",
           "hs": ">="}
ROUND = {"rni": "Round::nearest", "rzi": "Round::zero", "rmi": "Round::down", "rpi": "Round::up"}
DIRECTED = ("rz", "rm", "rp")


def refuse(name, modifiers):
    raise NotModelled(".".join([name, *modifiers]))


def float_arithmetic(kernel, name, modifiers, operands):
    """add, sub, mul, div, fma, sqrt, rcp, min, max: rounded to nearest, as C++ does."""
    ptx_type = modifiers[-1]
    # ptxas may fuse what is not said to be rounded, and approximations have no bits to be equal to.
    if any(m in modifiers for m in (*DIRECTED, "approx", "full", "sat")):
        refuse(name, modifiers)
    ftz = "flushed" if "ftz" in modifiers else ""
    x = [f"{ftz}({kernel.read(o, ptx_type)})" for o in operands[1:]]
    one = "1.0f" if ptx_type == "f32" else "1.0"
    if name in OPERATOR:
        value = f"{x[0]} {OPERATOR[name]} {x[1]}"
    elif name in ("fma", "mad"):
        value = f"std::fma({x[0]}, {x[1]}, {x[2]})"
    elif name == "sqrt":
        value = f"std::sqrt({x[0]})"
    elif name == "rcp":
        value = f"{one} / {x[0]}"
    elif name in ("min", "max"):
        if "NaN" in modifiers or "xorsign" in modifiers:
            refuse(name, modifiers)
        return kernel.write(operands[0], ptx_type, f"{ftz}({'least' if name == 'min' else 'greatest'}({x[0]}, {x[1]}))")
    else:
        refuse(name, modifiers)
    return kernel.write(operands[0], ptx_type, f"{ftz}(canonical({value}))")


def integer_arithmetic(kernel, name, modifiers, operands):
    ptx_type = modifiers[-1]
    if ptx_type not in BYTES or "cc" in modifiers or "sat" in modifiers:
        refuse(name, modifiers)
    x = [kernel.read(o, ptx_type) for o in operands[1:]]
    if name in ("add", "sub"):
        x = [kernel.read(o, raw(ptx_type)) for o in operands[1:]]
        return kernel.write(operands[0], raw(ptx_type), f"{x[0]} {OPERATOR[name]} {x[1]}")
    if name in ("mul", "mad"):
        return multiplication(kernel, name, modifiers, operands)
    if name in ("div", "rem"):
        function = "quotient" if name == "div" else "remainder"
        return kernel.write(operands[0], ptx_type, f"{function}<{c_type(ptx_type)}>({x[0]}, {x[1]})")
    if name in ("min", "max"):
        sign = "<" if name == "min" else ">"
        return kernel.write(operands[0], ptx_type, f"({x[0]} {sign} {x[1]} ? {x[0]} : {x[1]})")
    return refuse(name, modifiers)


def multiplication(kernel, name, modifiers, operands):
    ptx_type = modifiers[-1]
    if "wide" in modifiers:
        product_type = f"{ptx_type[0]}{16 * BYTES[ptx_type]}"
        a, b = (f"({c_type(product_type)}){kernel.read(o, ptx_type)}" for o in operands[1:3])
        product = f"({UNSIGNED[BYTES[product_type]]})({a} * {b})"
    elif "hi" in modifiers:
        product_type = ptx_type
        a, b = (kernel.read(o, ptx_type) for o in operands[1:3])
        product = f"({UNSIGNED[BYTES[ptx_type]]})high_product<{c_type(ptx_type)}>({a}, {b})"
    else:
        product_type = ptx_type
        a, b = (kernel.read(o, raw(ptx_type)) for o in operands[1:3])
        product = f"{a} * ({UNSIGNED[max(4, BYTES[ptx_type])]}){b}"
    if name == "mad":
        product += f" + {kernel.read(operands[3], raw(product_type))}"
    return kernel.write(operands[0], raw(product_type), product)


def bit_operation(kernel, name, modifiers, operands):
    ptx_type = modifiers[-1]
    target, sources = operands[0], operands[1:]

    def read(i, as_type=ptx_type):
        return kernel.read(sources[i], as_type)

    if name in ("and", "or", "xor"):
        return kernel.write(target, ptx_type, f"{read(0)} {OPERATOR[name]} {read(1)}")
    if name == "not":
        return kernel.write(target, ptx_type, ("!" if ptx_type == "pred" else "~") + read(0))
    unsigned = UNSIGNED[BYTES[ptx_type]]
    values = {
        "shl": lambda: f"shift_left<{unsigned}>({read(0, raw(ptx_type))}, {read(1, 'u32')})",
        "shr": lambda: f"shift_right<{c_type(ptx_type)}>({read(0)}, {read(1, 'u32')})",
        "shf": lambda: f"funnel_{'left' if modifiers[0] == 'l' else 'right'}({read(0)}, {read(1)}, {read(2, 'u32')}, "
                       f"{'true' if 'wrap' in modifiers else 'false'})",
        "lop3": lambda: f"lop3({read(0)}, {read(1)}, {read(2)}, {read(3, 'u32')})",
        "prmt": lambda: f"permute({read(0)}, {read(1)}, {read(2)})",
        "bfe": lambda: f"extract_bits<{c_type(ptx_type)}>({read(0)}, {read(1, 'u32')}, {read(2, 'u32')})",
        "bfi": lambda: f"insert_bits<{unsigned}>({read(0)}, {read(1)}, {read(2, 'u32')}, {read(3, 'u32')})",
        "brev": lambda: f"reverse_bits<{unsigned}>({read(0)})",
    }
    if name in values:
        return kernel.write(target, ptx_type, values[name]())
    counts = {"popc": lambda: f"std::popcount({read(0, raw(ptx_type))})",
              "clz": lambda: f"std::countl_zero({read(0, raw(ptx_type))})",
              "bfind": lambda: f"find_bit<{c_type(ptx_type)}>({read(0)})"}
    if name in counts and "shiftamt" not in modifiers:
        return kernel.write(target, "u32", counts[name]())
    return refuse(name, modifiers)


def sign_operation(kernel, name, modifiers, operands):
    """neg, abs and copysign; of floats they change the sign bit and no more."""
    ptx_type = modifiers[-1]
    if ptx_type in FLOATS:
        bits = raw(ptx_type)
        top = "0x80000000u" if ptx_type == "f32" else "0x8000000000000000ull"
        if name == "copysign":
            sign, rest = (kernel.read(o, bits) for o in operands[1:])
            return kernel.write(operands[0], bits, f"({sign} & {top}) | ({rest} & ~{top})")
        changed = f"{kernel.read(operands[1], bits)} " + (f"^ {top}" if name == "neg" else f"& ~{top}")
        return kernel.write(operands[0], bits, changed)
    x, unsigned = kernel.read(operands[1], ptx_type), UNSIGNED[BYTES[ptx_type]]
    negative = f"({unsigned})0 - ({unsigned}){x}"
    return kernel.write(operands[0], raw(ptx_type), negative if name == "neg" else f"({x} < 0 ? {negative} : ({unsigned}){x})")


def comparison(kernel, modifiers, operands):
    """setp: compares, and joins what comes out with another predicate."""
    ptx_type, how = modifiers[-1], modifiers[0]
    x, y = kernel.read(operands[1], ptx_type), kernel.read(operands[2], ptx_type)
    if ptx_type not in FLOATS or how in ("eq", "lt", "le", "gt", "ge"):
        result = f"({x} {COMPARE[how]} {y})"
    elif how == "num":
        result = f"({x} == {x} && {y} == {y})"
    elif how == "nan":
        result = f"({x} != {x} || {y} != {y})"
    elif how == "ne":  # false with a NaN
        result = f"({x} < {y} || {x} > {y})"
    else:  # equ, neu, ...: true with a NaN
        opposite = {"equ": "ne", "neu": "eq", "ltu": "ge", "leu": "gt", "gtu": "le", "geu": "lt"}[how]
        result = f"!({x} < {y} || {x} > {y})" if opposite == "ne" else f"!({x} {COMPARE[opposite]} {y})"
    joins = {"and": "&&", "or": "||", "xor": "!="}
    join = next((m for m in modifiers[1:-1] if m in joins), None)
    suffix = f" {joins[join]} {kernel.read(operands[3], 'pred')}" if join else ""
    targets = members(operands[0])
    code = f"const bool holds = {result}; " + kernel.write(targets[0], "pred", "holds" + suffix)
    if len(targets) > 1:
        code += " " + kernel.write(targets[1], "pred", "!holds" + suffix)
    return "{ " + code + " }"


def select(kernel, modifiers, operands):
    bits = raw(modifiers[-1])
    chosen = f"{kernel.read(operands[3], 'pred')} ? {kernel.read(operands[1], bits)} : {kernel.read(operands[2], bits)}"
    return kernel.write(operands[0], bits, chosen)


def move(kernel, modifiers, operands):
    ptx_type, (target, source) = modifiers[-1], operands
    if ptx_type == "pred":
        return kernel.write(target, "pred", kernel.read(source, "pred"))
    bits = raw(ptx_type)
    if target.startswith("{"):  # takes apart
        parts = members(target)
        width = 8 * BYTES[ptx_type] // len(parts)
        whole = kernel.read(source, bits)
        return " ".join(kernel.write(p, f"u{width}", f"{whole} >> {width * i}") for i, p in enumerate(parts) if p != "_")
    if source.startswith("{"):  # puts together
        parts = members(source)
        width = 8 * BYTES[ptx_type] // len(parts)
        pieces = [f"(({UNSIGNED[BYTES[ptx_type]]}){kernel.read(p, f'u{width}')} << {width * i})" for i, p in enumerate(parts)]
        return kernel.write(target, bits, " | ".join(pieces))
    return kernel.write(target, bits, kernel.read(source, bits))


def conversion(kernel, modifiers, operands):
    to, source = modifiers[-2], modifiers[-1]
    if to not in BYTES or source not in BYTES or any(m in modifiers for m in (*DIRECTED, "sat", "ftz")):
        refuse("cvt", modifiers)
    x = kernel.read(operands[1], source)
    rounding = next((ROUND[m] for m in modifiers if m in ROUND), None)
    if source in FLOATS and to not in FLOATS:
        return kernel.write(operands[0], to, f"to_integer<{c_type(to)}>({x}, {rounding})")
    if source in FLOATS and rounding:
        x = f"rounded({x}, {rounding})"
    if to in FLOATS:
        return kernel.write(operands[0], to, f"({'float' if to == 'f32' else 'double'})({x})")
    return kernel.write(operands[0], to, f"({c_type(to)})({x})")
