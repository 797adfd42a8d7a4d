#!/usr/bin/python3
"""Decodes every golden file as docs/wire-format.md says, with nothing of the library: a second implementation, slow and in plain
Python. Fails where a value differs from the library's."""
import math
import pathlib
import struct
import sys

FOLDER = pathlib.Path(__file__).parent
COUNT = 333
# Lloyd-Max levels by bits, in 64ths.
LEVELS = [[51], [29, 97], [16, 48, 86, 138], [8, 25, 42, 60, 80, 104, 132, 175]]


def fp32(x):
    """The nearest fp32 of a double."""
    return struct.unpack("<f", struct.pack("<f", x))[0]


def from_bits(bits):
    return struct.unpack("<f", struct.pack("<I", bits))[0]


def bf16(data, at):
    return from_bits(struct.unpack_from("<H", data, at)[0] << 16)


def small_float(code, exponent_bits, fraction_bits, largest):
    """Sign, exponent, fraction, subnormals as in IEEE."""
    magnitude = code & ((1 << (exponent_bits + fraction_bits)) - 1)
    assert magnitude <= largest, "a golden file holds no NaN"
    exponent, fraction = magnitude >> fraction_bits, magnitude & ((1 << fraction_bits) - 1)
    bias = (1 << (exponent_bits - 1)) - 1
    if exponent == 0:
        value = math.ldexp(fraction, 1 - bias - fraction_bits)
    else:
        value = math.ldexp(1 + math.ldexp(fraction, -fraction_bits), exponent - bias)
    return -value if code >> (exponent_bits + fraction_bits) else value


FLOATS = {"fp8-e4m3": (4, 3, 0x7E), "fp8-e5m2": (5, 2, 0x7B), "fp4": (2, 1, 7), "mxfp8-e4m3": (4, 3, 0x7E), "mxfp8-e5m2": (5, 2, 0x7B),
          "mxfp4": (2, 1, 7), "nvfp4": (2, 1, 7), "nuq3": (2, 0, 3), "nuq4": (3, 0, 7), "nuq5": (4, 0, 15)}


# Codes that are digits: their base, how many make a number, and its bytes.
DIGITS = {"ternary-five": (3, 5, 1), "lloyd1.6": (3, 5, 1), "eden1.6": (3, 5, 1), "lloyd2.7": (6, 3, 1), "eden2.7": (6, 3, 1),
          "lloyd3.2": (9, 5, 2), "eden3.2": (9, 5, 2)}
# The levels of codebooks whose codes are digits, in 64ths.
DIGIT_LEVELS = {3: [0, 78], 6: [20, 64, 121], 9: [0, 28, 59, 94, 144]}


def digit_bytes(name, count):
    _, digits, size = DIGITS[name]
    return (count + 16 * digits - 1) // (16 * digits) * 16 * size


def digit_code(name, codes, block, i):
    """The code of element i where codes are digits."""
    base, digits, size = DIGITS[name]
    within = i % block
    at = i // block * digit_bytes(name, block) + within // (16 * digits) * 16 * size + within % 16
    number = codes[at] + (256 * codes[at + 16] if size == 2 else 0)
    digit = number // base ** (within % (16 * digits) // 16) % base
    return digit - base if digit > (base - 1) // 2 else digit


def bits_of(name):
    if name in FLOATS:
        return 1 + FLOATS[name][0] + FLOATS[name][1]
    return {"dense": 32, "bf16": 16, "fp16": 16, "ternary": 2, "sign": 1, **dict.fromkeys(DIGITS, 4)}.get(name) or int("".join(c for c in name if c.isdigit()))


def param_bytes(name):
    if name in ("dense", "bf16", "fp16"):
        return 0
    if name.endswith("-affine"):
        return 8
    if name.startswith(("mx", "nv")):
        return 1
    return 4 if name.startswith(("lloyd", "eden")) else 2


def param_at(name, block, i):
    """Where the Param of element i lies. Blocks of nvfp4 have a bf16 and then a Param for every 16 elements."""
    if name == "nvfp4":
        return i // block * (2 + block // 16) + 2 + i % block // 16
    return i // block * param_bytes(name)


def value(name, code, data, param, shared):
    bits = bits_of(name)
    if name == "dense":
        return from_bits(code)
    if name == "bf16":
        return from_bits(code << 16)
    if name == "fp16":
        return struct.unpack("<e", struct.pack("<H", code))[0]
    signed = code - (1 << bits) if code >= 0 and code >> (bits - 1) else code
    if name.endswith("-affine"):
        low, step = struct.unpack_from("<ff", data, param)
        return fp32((signed + (1 << (bits - 1))) * step + low)
    if name.startswith("mx"):
        return small_float(code, *FLOATS[name]) * math.ldexp(1, data[param] - 127)
    if name == "nvfp4":
        return small_float(code, *FLOATS[name]) * small_float(data[param], *FLOATS["fp8-e4m3"]) * bf16(data, shared)
    if name in FLOATS:
        return small_float(code, *FLOATS[name]) * bf16(data, param)
    if name in DIGITS and name != "ternary-five":
        base = DIGITS[name][0]
        index = abs(code) if base % 2 else code if code >= 0 else -1 - code
        return math.copysign(DIGIT_LEVELS[base][index] / 64, code) * struct.unpack_from("<f", data, param)[0]
    if name.startswith(("lloyd", "eden")):
        level = LEVELS[bits - 1][code & ((1 << (bits - 1)) - 1)] / 64
        return (-level if code >> (bits - 1) else level) * struct.unpack_from("<f", data, param)[0]
    if name == "sign":
        return -bf16(data, param) if code else bf16(data, param)
    return signed * bf16(data, param)


def philox(counter, key):
    c, k = list(counter), list(key)
    for _ in range(7):
        a, b = 0xD2511F53 * c[0], 0xCD9E8D57 * c[2]
        c = [(b >> 32) ^ c[1] ^ k[0], b & 0xFFFFFFFF, (a >> 32) ^ c[3] ^ k[1], a & 0xFFFFFFFF]
        k = [(k[0] + 0x9E3779B9) & 0xFFFFFFFF, (k[1] + 0xBB67AE85) & 0xFFFFFFFF]
    return c


def rotate_back(x, size, seed):
    at = 0
    while len(x) - at >= 16:
        count = min(size, 1 << ((len(x) - at).bit_length() - 1))
        y = [v * math.ldexp(1, -((count.bit_length() - 1) // 2)) for v in x[at:at + count]]
        stride = 1
        while stride < count:
            for i in range(count):
                if i & stride == 0:
                    a, b = y[i], y[i + stride]
                    y[i], y[i + stride] = fp32(a + b), fp32(a - b)
            stride *= 2
        for e in range(count):
            word = philox((e // 128, 0, 0, 0), (seed & 0xFFFFFFFF, seed >> 32))[e // 32 % 4]
            x[at + e] = -y[e] if word >> (e % 32) & 1 else y[e]
        at += count


def decode(name, block, data, count=COUNT):
    bits = bits_of(name)
    codes_at = (param_at(name, block, count - 1) + param_bytes(name) + 15) // 16 * 16
    if name in DIGITS:
        assert len(data) == codes_at + count // block * digit_bytes(name, block) + digit_bytes(name, count % block), "size"
        return [value(name, digit_code(name, data[codes_at:], block, i), data, param_at(name, block, i), 0) for i in range(count)]
    codes = int.from_bytes(data[codes_at:], "little")
    assert len(data) == codes_at + ((count * bits + 7) // 8 + 15) // 16 * 16, "size"
    mask = (1 << bits) - 1
    return [value(name, codes >> (i * bits) & mask, data, param_at(name, block, i), i // block * (2 + block // 16)) for i in range(count)]


def indices_of(data, count, form, elements):
    """The indices of a section, and where they end."""
    at, indices = 8, []
    if form == 2:
        return list(range(elements)), at
    if form == 1:
        end = at + (elements + 7) // 8
        return [i for i in range(elements) if data[at + i // 8] >> (i % 8) & 1], end
    index = -1
    for block in range(0, count, 64):
        entries, width = min(64, count - block), data[at]
        size = (entries * width + 7) // 8
        gaps = int.from_bytes(data[at + 1 : at + 1 + size], "little")
        for i in range(entries):
            index += 1 + (gaps >> (i * width) & ((1 << width) - 1))
            indices.append(index)
        at += 1 + size
    return indices, at


def check_section(path):
    data, elements = path.read_bytes(), 1000
    count, form = int.from_bytes(data[:7], "little"), data[7]
    assert form == ["gaps", "bitmap", "all"].index(path.name.split("_")[1])
    indices, at = indices_of(data, count, form, elements)
    values = decode(path.stem.split("_")[2], 256, data[at:], count)
    expected = path.with_suffix(".entries").read_bytes()
    if struct.pack(f"<{count}I{count}f", *indices, *values) != expected:
        sys.exit(f"{path.name}: has other entries by docs/wire-format.md")


def main():
    sections = sorted(FOLDER.glob("section_*.wire"))
    for path in sections:
        check_section(path)
    if len(sections) != 6:
        sys.exit(f"{len(sections)} sections")
    files = sorted(FOLDER.glob("*.values.f32"))
    for path in files:
        stem = path.name[: -len(".values.f32")]
        rotation, seed, codec = 0, 0, stem
        if stem.startswith("hadamard"):
            words = stem.split("_")
            rotation = int(words[1])
            seed = int(words[3]) if words[2] == "seed" else 0
            codec = "_".join(words[4 if words[2] == "seed" else 2:])
        name, _, block = codec.split("_")
        x = decode(name, int(block), (FOLDER / f"{stem}.wire").read_bytes())
        if rotation:
            rotate_back(x, rotation, seed)
        expected = struct.unpack(f"<{COUNT}f", path.read_bytes())
        for i, (mine, theirs) in enumerate(zip(x, expected)):
            if struct.pack("<f", mine) != struct.pack("<f", theirs) and not mine == theirs == 0:
                sys.exit(f"{stem}: element {i} is {theirs!r}, and {mine!r} by docs/wire-format.md")
    if len(files) < 40:
        sys.exit(f"only {len(files)} golden files")
    print(f"{len(files)} formats decode as docs/wire-format.md says")


if __name__ == "__main__":
    main()
