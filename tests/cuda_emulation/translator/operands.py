"""Types and operands of PTX as C++."""
import re

BYTES = {f"{kind}{8 * n}": n for kind in "usb" for n in (1, 2, 4, 8)} | {"f32": 4, "f64": 8}
UNSIGNED = {1: "std::uint8_t", 2: "std::uint16_t", 4: "std::uint32_t", 8: "std::uint64_t"}
SIGNED = {1: "std::int8_t", 2: "std::int16_t", 4: "std::int32_t", 8: "std::int64_t"}
FLOATS = ("f32", "f64")

SPECIAL = {"%laneid": "lane", "%warpid": "warp", "%lanemask_eq": "(1u << lane)", "%lanemask_lt": "((1u << lane) - 1u)",
           "%lanemask_le": "(2u * (1u << lane) - 1u)", "%lanemask_gt": "(~(2u * (1u << lane) - 1u))",
           "%lanemask_ge": "(~((1u << lane) - 1u))", "%dynamic_smem_size": "(shared_bytes - dynamic_shared_at)",
           "%smid": "0u", "%clock": "0u", "%clock64": "0u", "%globaltimer": "0u"}
for register, variable in (("tid", "thread_index"), ("ntid", "block_size"), ("ctaid", "block_index"),
                           ("nctaid", "grid_size")):
    SPECIAL |= {f"%{register}.{axis}": f"{variable}.{axis}" for axis in "xyz"}


class NotModelled(Exception):
    """An instruction that the emulation does not know. A kernel that reaches it ends with an error that names it."""


def c_type(ptx_type):
    """The integer of C++ for a type that is no float."""
    return (SIGNED if ptx_type[0] == "s" else UNSIGNED)[BYTES[ptx_type]]


def raw(ptx_type):
    """The same bits as an unsigned integer."""
    return f"u{8 * BYTES[ptx_type]}"


def split(text):
    """Operands, which are separated by commas outside braces and brackets."""
    parts, depth, current = [], 0, ""
    for letter in text:
        depth += (letter in "{[(") - (letter in "}])")
        if letter == "," and depth == 0:
            parts.append(current.strip())
            current = ""
        else:
            current += letter
    return parts + [current.strip()] if current.strip() else parts


def members(operand):
    """Those of a vector: "{%r1, %r2}", or of a pair: "%r1|%p1"; else the operand alone."""
    if operand.startswith("{"):
        return split(operand[1:-1])
    return operand.split("|")


class Operands:
    """Reads and writes operands of one kernel: registers hold unsigned integers, whatever type an instruction gives them."""

    def __init__(self, globals_):
        self.registers, self.shared, self.local, self.parameters = {}, {}, {}, {}
        self.globals = globals_

    @staticmethod
    def variable(register):
        return "v" + re.sub(r"\W", "_", register)

    def width(self, register):
        return BYTES[self.registers[register]]

    def read(self, operand, ptx_type):
        if ptx_type == "pred":
            if operand.startswith("!"):
                return "!" + self.read(operand[1:], ptx_type)
            return {"0": "false", "1": "true", "-1": "true"}.get(operand) or self.variable(operand)
        if operand in self.registers:
            return self.as_type(self.variable(operand), ptx_type)
        if operand in SPECIAL:
            return f"(({c_type(ptx_type)})({SPECIAL[operand]}))"
        if match := re.fullmatch(r"0[fF]([0-9a-fA-F]{8})", operand):
            return self.as_type(f"0x{match[1]}u", ptx_type)
        if match := re.fullmatch(r"0[dD]([0-9a-fA-F]{16})", operand):
            return self.as_type(f"0x{match[1]}ull", ptx_type)
        if re.fullmatch(r"-?(0[xX][0-9a-fA-F]+|\d+)U?", operand):
            return self.as_type(f"{int(operand.rstrip('U'), 0) % 2**64}ull", ptx_type)
        if (address := self.symbol(operand)) is not None:
            return f"(({c_type(ptx_type)})({address}))"
        raise NotModelled("operand " + operand)

    @staticmethod
    def as_type(bits, ptx_type):
        if ptx_type in FLOATS:
            return f"{ptx_type}({bits})"
        return f"(({c_type(ptx_type)}){bits})"

    def write(self, operand, ptx_type, value):
        if operand == "_":
            return f"(void)({value});"
        if ptx_type == "pred":
            return f"{self.variable(operand)} = {value};"
        width = self.width(operand)
        if ptx_type in FLOATS:
            value = f"bits_of({value})"
        elif ptx_type[0] == "s":  # a wider register gets the sign
            value = f"({SIGNED[width]})({c_type(ptx_type)})({value})"
        else:
            value = f"({c_type(ptx_type)})({value})"
        return f"{self.variable(operand)} = ({UNSIGNED[width]})({value});"

    def symbol(self, operand):
        """The address of a variable, plus an offset; None if it is none. Of shared memory the place within it."""
        match = re.fullmatch(r"([\w$%.]+?)(?:\+(-?\d+))?", operand)
        if not match:
            return None
        name, offset = match[1], match[2] or "0"
        if name in self.shared:
            return f"({self.shared[name]} + {offset})"
        if name in self.local:
            return f"((std::uint64_t){self.local[name]} + {offset})"
        if name in self.parameters:
            return f"((std::uint64_t)(parameters + {self.parameters[name]}) + {offset})"
        if name in self.globals:
            return f"((std::uint64_t){self.globals[name]} + {offset})"
        return None

    def address(self, operand):
        """"[%rd1+16]": an integer. True if a parameter lies there."""
        inside = operand[1:-1].strip()
        match = re.fullmatch(r"(%[\w$]+)(?:\s*\+\s*(-?\d+))?", inside)
        if match and match[1] in self.registers:
            return f"({self.variable(match[1])} + (std::int64_t){match[2] or 0})", False
        match = re.fullmatch(r"([\w$%.]+)(?:\s*\+\s*(-?\d+))?", inside)
        if match:
            address = self.symbol(match[1] + (f"+{match[2]}" if match[2] else ""))
            if address is not None:
                return address, match[1] in self.parameters
        raise NotModelled("address " + inside)

    def pointer(self, space, operand, size, writes):
        """Where an access goes, checked."""
        address, is_parameter = self.address(operand)
        flag = "true" if writes else "false"
        if is_parameter or space in ("param", "local", "const"):
            return f"((std::byte*)(std::uint64_t)({address}))"
        if space == "shared":
            return f"checked_shared((std::uint32_t)({address}), {size}, {flag})"
        return f"checked((std::uint64_t)({address}), {size}, {flag})"
