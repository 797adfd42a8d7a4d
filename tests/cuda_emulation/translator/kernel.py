"""One kernel of PTX as a function of C++."""
import re

import arithmetic_instructions as arithmetic
import memory_instructions as memory
from operands import BYTES, FLOATS, NotModelled, Operands, UNSIGNED, members, split

REDUCE = {"and": "bit_and", "or": "bit_or", "xor": "bit_xor", "add": "add"}
SHUFFLE = {"up": "up", "down": "down", "bfly": "butterfly", "idx": "index"}


class Kernel(Operands):
    def __init__(self, head, body, module):
        super().__init__(module.globals)
        self.name = re.match(r"\s*([\w$%.]+)", head)[1]
        self.files, self.code, self.declarations, self.not_modelled = module.files, [], [], []
        self.shared_bytes, self.ordered, self.jump_tables = 0, False, {}
        self.read_head(head)
        for name, (align, size) in module.shared.items():
            if re.search(r"\b" + re.escape(name) + r"\b", body):
                self.add_shared(name, align, size)
        for statement in statements(body):
            self.add_statement(statement)

    def read_head(self, head):
        self.layout, end = [], 0
        pattern = r"\.param\s+(?:\.align\s+(\d+)\s+)?\.(\w+)\s+(?:\.ptr[\s\w.]*?\s)?([\w$%.]+)(?:\[(\d+)\])?\s*[,)]"
        for match in re.finditer(pattern, head):
            size, align = BYTES[match[2]] * int(match[4] or 1), int(match[1] or BYTES[match[2]])
            begin = (end + align - 1) // align * align
            self.parameters[match[3]] = begin
            self.layout.append((begin, size))
            end = begin + size
        bounds = re.search(r"\.maxntid\s+(\d+)(?:\s*,\s*(\d+))?(?:\s*,\s*(\d+))?", head)
        self.most_threads = int(bounds[1]) * int(bounds[2] or 1) * int(bounds[3] or 1) if bounds else 0

    def add_shared(self, name, align, size):
        """`size` None: what the launch asked for."""
        if size is None:
            self.shared[name] = "dynamic_shared_at"
            return
        self.shared_bytes = (self.shared_bytes + align - 1) // align * align
        self.shared[name] = f"{self.shared_bytes}u"
        self.shared_bytes += size

    def add_statement(self, statement):
        try:
            code = self.translate(statement)
        except NotModelled as error:
            self.not_modelled.append(str(error))
            text = str(error).replace("\\", "").replace('"', "")
            code = f'fault(cudaErrorIllegalInstruction, "PTX that is not modelled: {text}");'
        if code:
            self.code.append(code)

    def translate(self, statement):
        if statement.startswith(".reg"):
            return self.declare_registers(statement)
        if match := re.match(r"\.(local|shared)\s+(?:\.align\s+(\d+)\s+)?\.(\w+)\s+([\w$%]+)(?:\[(\d+)\])?", statement):
            return self.declare_memory(match)
        if match := re.match(r"\.loc\s+(\d+)\s+(\d+)", statement):
            file = self.files.get(int(match[1]))
            return f'\n#line {match[2]} "{file}"\n' if file else None
        if statement.startswith(".pragma"):
            return None
        if match := re.fullmatch(r"([$\w]+):\s*(?:\.branchtargets\s+(.*))?", statement):
            if match[2]:
                self.jump_tables[match[1]] = split(match[2])
                return None
            return label(match[1]) + ":;"
        match = re.fullmatch(r"(?:@(!?)([%\w$]+)\s+)?([\w.:]+)\s*(.*)", statement)
        if not match or match[3].startswith("."):
            raise NotModelled(statement)
        code = self.instruction(match[3].split("."), split(match[4]))
        return f"if ({match[1]}{self.variable(match[2])}) {{ {code} }}" if match[2] else code

    def declare_registers(self, statement):
        match = re.fullmatch(r"\.reg\s+\.(\w+)\s+(.*)", statement)
        if match[1] != "pred" and match[1] not in BYTES:
            raise NotModelled(statement)
        for name in split(match[2]):
            counted = re.fullmatch(r"(%?[\w$]+)<(\d+)>", name)
            names = [f"{counted[1]}{i}" for i in range(int(counted[2]))] if counted else [name]
            self.registers.update(dict.fromkeys(names, match[1]))

    def declare_memory(self, match):
        size, align = BYTES[match[3]] * int(match[5] or 1), int(match[2] or BYTES[match[3]])
        if match[1] == "shared":
            self.add_shared(match[4], align, size)
            return
        self.local[match[4]] = "local_" + re.sub(r"\W", "_", match[4])
        self.declarations.append(f"alignas({align}) std::byte {self.local[match[4]]}[{size}];")

    def instruction(self, parts, operands):
        name, modifiers = parts[0], parts[1:]
        ptx_type = modifiers[-1] if modifiers else ""
        if name == "ld":
            return memory.load(self, modifiers, operands)
        if name == "st":
            return memory.store(self, modifiers, operands)
        if name in ("atom", "red"):
            return memory.atomic(self, name, modifiers, operands)
        if name == "mov":
            return arithmetic.move(self, modifiers, operands)
        if name == "cvta":
            return self.convert_address(modifiers, operands)
        if name == "cvt":
            return arithmetic.conversion(self, modifiers, operands)
        if name == "setp":
            return arithmetic.comparison(self, modifiers, operands)
        if name == "selp":
            return arithmetic.select(self, modifiers, operands)
        if name in ("neg", "abs", "copysign"):
            return arithmetic.sign_operation(self, name, modifiers, operands)
        if ptx_type in FLOATS:
            return arithmetic.float_arithmetic(self, name, modifiers, operands)
        if name in ("add", "sub", "mul", "mad", "div", "rem", "min", "max"):
            return arithmetic.integer_arithmetic(self, name, modifiers, operands)
        if name in ("and", "or", "xor", "not", "shl", "shr", "shf", "lop3", "prmt", "bfe", "bfi", "brev", "popc", "clz",
                    "bfind"):
            return arithmetic.bit_operation(self, name, modifiers, operands)
        return self.control(name, modifiers, operands)

    def convert_address(self, modifiers, operands):
        """Between addresses in shared memory, which begin at 0, and those that are good for any memory."""
        address = self.read(operands[1], "u64")
        if "shared" in modifiers:
            base = "(std::uint64_t)shared_memory"
            address = f"{address} - {base}" if "to" in modifiers else f"{base} + {address}"
        return self.write(operands[0], "u64", address)

    def control(self, name, modifiers, operands):
        if name == "bra":
            return f"goto {label(operands[0])};"
        if name == "brx":
            cases = " ".join(f"case {i}: goto {label(t)};" for i, t in enumerate(self.jump_tables[operands[1]]))
            return f"switch ({self.read(operands[0], 'u32')}) {{ {cases} default: __builtin_unreachable(); }}"
        if name in ("ret", "exit"):
            return "return;"
        if name in ("bar", "barrier"):
            return self.barrier(name, modifiers, operands)
        if name in ("membar", "fence", "prefetch", "griddepcontrol"):
            return ";"  # memory is in order already
        if name == "nanosleep":
            self.ordered = True
            return "yield();"
        if name == "trap":
            return 'fault(cudaErrorLaunchFailure, "trap");'
        if name == "activemask":
            return self.write(operands[0], "b32", "active_mask()")
        return self.warp_instruction(name, modifiers, operands)

    def barrier(self, name, modifiers, operands):
        if "warp" in modifiers:
            return f"sync_warp({self.read(operands[0], 'u32')});"
        if "red" in modifiers:
            how = "count" if "popc" in modifiers else "all" if "and" in modifiers else "any"
            call = f"sync_block_voting(BlockVote::{how}, {self.read(operands[-1], 'pred')})"
            return self.write(operands[0], "u32" if how == "count" else "pred", call)
        if "sync" in modifiers and operands == ["0"]:
            return "sync_block();"
        raise NotModelled(".".join([name, *modifiers]) + " " + ", ".join(operands))

    def warp_instruction(self, name, modifiers, operands):
        if name == "vote":
            how = next(m for m in modifiers if m in ("ballot", "any", "all", "uni")).replace("uni", "uniform")
            call = f"vote(Vote::{how}, {self.read(operands[1], 'pred')}, {self.read(operands[2], 'u32')})"
            return self.write(operands[0], "u32" if how == "ballot" else "pred", call)
        if name == "shfl":
            how = next(SHUFFLE[m] for m in modifiers if m in SHUFFLE)
            arguments = ", ".join(self.read(o, "b32") for o in operands[1:5])
            targets = members(operands[0])
            code = f"bool in_range = false; const std::uint32_t taken = shuffle(Shuffle::{how}, {arguments}, &in_range); "
            code += self.write(targets[0], "b32", "taken")
            if len(targets) > 1 and targets[1] != "_":
                code += " " + self.write(targets[1], "pred", "in_range")
            return "{ " + code + " }"
        if name == "redux" and modifiers[-1] not in FLOATS:
            how = modifiers[1]
            if how in ("min", "max"):
                how += "_signed" if modifiers[-1][0] == "s" else "_unsigned"
            call = f"reduce(Reduce::{REDUCE.get(how, how)}, {self.read(operands[1], 'u32')}, {self.read(operands[2], 'u32')})"
            return self.write(operands[0], "b32", call)
        if name == "match" and "any" in modifiers:
            call = f"match_any({self.read(operands[1], modifiers[-1])}, {self.read(operands[2], 'u32')})"
            return self.write(operands[0], "b32", call)
        raise NotModelled(".".join([name, *modifiers]))

    def cpp(self, number):
        """The function, and an object that makes it known under the kernel's name."""
        code = "\n".join(self.code)
        used = set(re.findall(r"\bv\w+", code))
        lines = [f"static void body_{number}([[maybe_unused]] const std::byte* parameters) {{"]
        for register, ptx_type in self.registers.items():
            if self.variable(register) in used:
                kind = "bool" if ptx_type == "pred" else UNSIGNED[BYTES[ptx_type]]
                lines.append(f"{kind} {self.variable(register)} = 0;")
        lines += [*self.declarations, code, "}"]
        offsets = ", ".join(str(begin) for begin, _ in self.layout) or "0"
        sizes = ", ".join(str(size) for _, size in self.layout) or "0"
        lines += [f"static const std::uint32_t offsets_{number}[] = {{{offsets}}}, sizes_{number}[] = {{{sizes}}};",
                  f"static const bool known_{number} = (add_kernel({{\"{self.name}\", body_{number}, offsets_{number}, "
                  f"sizes_{number}, {len(self.layout)}, {self.shared_bytes}, {self.most_threads}, "
                  f"{'true' if self.ordered else 'false'}}}), true);"]
        return "\n".join(lines)


def label(name):
    return re.sub(r"\W", "_", name)


def statements(body):
    """Those of a body, in a line each: instructions, declarations, labels, source lines."""
    body = re.sub(r"(\.loc\s+\d+\s+\d+\s+\d+(?:\s*,[^\n]*)?)\s*\n", r"\1;\n", body)
    body = re.sub(r"([$\w]+)\s*:\s*\n", r"\1:;\n", body)
    for statement in body.split(";"):
        statement = re.sub(r"^[{}\s]+", "", statement)
        if "{" not in statement:
            statement = re.sub(r"[}\s]+$", "", statement)
        if statement.strip():
            yield " ".join(statement.split())
