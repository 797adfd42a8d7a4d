#!/usr/bin/python3
"""Encodes input.f32 as docs/wire-format.md says, with nothing of the library: a second implementation, slow, in numpy's fp32. Fails
where a byte differs from that of a golden file."""
import math
import pathlib
import struct
import sys

import numpy

from decode import DIGIT_LEVELS, DIGITS, LEVELS, philox

FOLDER = pathlib.Path(__file__).parent
F = numpy.float32
LARGEST = F(struct.unpack("<f", struct.pack("<I", 0x7F7FFFFF))[0])
UNITS = F(1023)
# Exponent and fraction bits, largest finite code.
E4M3, E5M2, E2M1 = (4, 3, 0x7E), (5, 2, 0x7B), (2, 1, 7)
FLOATS = {"fp8-e4m3": E4M3, "fp8-e5m2": E5M2, "fp4": E2M1, "mxfp8-e4m3": E4M3, "mxfp8-e5m2": E5M2, "mxfp4": E2M1,
          "nuq3": (2, 0, 3), "nuq4": (3, 0, 7), "nuq5": (4, 0, 15)}
# Exponent of the largest float, and the least E8M0.
MX = {"mxfp8-e4m3": (8, 10), "mxfp8-e5m2": (15, 17), "mxfp4": (2, 2)}


def bits_of_fp32(x):
    return int(numpy.asarray(x, F).view(numpy.uint32))


def from_bits(bits):
    return numpy.uint32(bits).view(F)


def upper_bits(x, keep, up=False):
    """The magnitude of x to `keep` upper bits of an fp32, to nearest even or up."""
    b, low = bits_of_fp32(abs(x)), 32 - keep
    b += (1 << low) - 1 if up else (1 << (low - 1)) - 1 + (b >> low & 1)
    return from_bits(b >> low << low)


def bf16_bytes(x):
    return struct.pack("<H", bits_of_fp32(x) >> 16)


def step(quotient, largest_code, up=False, least=F(2.0**-126)):
    """A bf16 of a quotient that is not 0."""
    most = from_bits(bits_of_fp32(LARGEST / F(largest_code)) >> 16 << 16)
    return min(max(upper_bits(quotient, 16, up), least), most)


def inverse(scale):
    return F(1) / scale if scale != 0 else F(0)


def whole_codes(x, scale, low, high):
    """x times the inverse of the scale, clamped, to nearest even."""
    return [int(numpy.rint(min(max(v * inverse(scale), F(low)), F(high)))) for v in x]


def float_values(exponent_bits, fraction_bits, largest):
    bias = (1 << (exponent_bits - 1)) - 1
    values = []
    for code in range(largest + 1):
        exponent, fraction = code >> fraction_bits, code & ((1 << fraction_bits) - 1)
        values.append(math.ldexp(fraction, 1 - bias - fraction_bits) if exponent == 0
                      else math.ldexp((1 << fraction_bits) + fraction, exponent - bias - fraction_bits))
    return values


def float_code(t, kind):
    """The nearest, of two the even one; larger than the largest: that."""
    values, magnitude = float_values(*kind), abs(float(t))
    code = min(range(len(values)), key=lambda c: (abs(values[c] - magnitude), c % 2))
    return code | (1 << (kind[0] + kind[1]) if numpy.signbit(t) else 0)


def moments(x):
    """Largest magnitude, and whole numbers of 1023rds of it."""
    largest = max(abs(v) for v in x)
    inverse_unit = UNITS / largest
    return largest, [int(numpy.rint(min(abs(v) * inverse_unit, UNITS))) for v in x]


def mean(x, factor=F(1)):
    largest, q = moments(x)
    return min(F(sum(q)) / (UNITS * F(len(q))) * factor * largest, LARGEST)


# A block that is not all zeros -> its Param and codes. `bits` is of a code.


def symmetric(x, bits):
    top = (1 << (bits - 1)) - 1
    scale = step(max(abs(v) for v in x) / F(top), top)
    return bf16_bytes(scale), whole_codes(x, scale, -top, top)


def signed(x, bits):
    half = 1 << (bits - 1)
    extreme = max(x, key=lambda v: (abs(v), v < 0))
    scale = step(abs(extreme) / F(half), half) * F(1 if extreme < 0 else -1)
    return bf16_bytes(scale), whole_codes(x, scale, -half, half - 1)


def affine(x, bits):
    low, high, top = min(x), max(x), (1 << bits) - 1
    scale = max(upper_bits((high - low) / F(top), 16, up=True), F(2.0**-119)) if high != low else F(0)
    codes = whole_codes([v - low for v in x], scale, 0, top)
    return struct.pack("<ff", low, scale), [c - (1 << (bits - 1)) for c in codes]


def scaled_float(x, name):
    kind = FLOATS[name]
    values = float_values(*kind)
    largest = F(values[-1])
    smallest = next(v for v in values if v > 0)
    scale = step(max(abs(v) for v in x) / largest, largest, least=F(2.0**-126 / smallest))
    return bf16_bytes(scale), [float_code(v * inverse(scale), kind) for v in x]


def mx(x, name):
    exponent, least = MX[name]
    e8m0 = max((bits_of_fp32(max(abs(v) for v in x)) >> 23) - exponent, least)
    return bytes([e8m0]), [float_code(v * F(2.0 ** (127 - e8m0)), FLOATS[name]) for v in x]


def nvfp4(x):
    shared = max(upper_bits(max(abs(v) for v in x) / F(6 * 448), 16, up=True), F(2.0**-116))
    params, codes = bf16_bytes(shared), []
    for at in range(0, len(x), 16):
        part = x[at:at + 16]
        code = float_code(max(abs(v) for v in part) / (F(6) * shared), E4M3)
        scale = F(float_values(*E4M3)[code]) * shared
        scale = scale if scale >= F(2.0**-126) else F(0)
        params += bytes([code])
        codes += [float_code(v * inverse(scale), E2M1) for v in part]
    return params, codes


def qsgd(x, bits):
    top = (1 << (bits - 1)) - 1
    largest, q = moments(x)
    norm = min(numpy.sqrt(F(sum(v * v for v in q))) / UNITS * largest, LARGEST)
    scale = step(norm / F(top), top, up=True)
    return bf16_bytes(scale), whole_codes(x, scale, -top, top)


def ternary(x):
    scale = step(mean(x, F(1.534)), 1)
    return bf16_bytes(scale), whole_codes(x, scale, -1, 1)


def sign(x):
    return bf16_bytes(step(mean(x), 1)), [int(numpy.signbit(v)) for v in x]


def codebook_step(x):
    return min(max(upper_bits(x, 24), F(2.0**-120)), F(2.0**126))


def codebook(x, name):
    base = DIGITS[name][0] if name in DIGITS else 0
    levels = DIGIT_LEVELS[base] if base else LEVELS[int(name[-1]) - 1]
    largest, q = moments(x)
    squares = sum(v * v for v in q)
    root = codebook_step(numpy.sqrt(F(squares) / F(len(q))) / UNITS * largest)
    boundaries = [F(a + b) / F(128) for a, b in zip(levels, levels[1:])]
    chosen = [sum(abs(v * inverse(root)) >= b for b in boundaries) for v in x]
    products = sum(u * levels[c] for u, c in zip(q, chosen))
    squared_levels = sum(levels[c] ** 2 for c in chosen)
    ratio = F(squares) / F(products) if name.startswith("eden") else F(products) / F(squared_levels)
    scale = codebook_step(ratio * F(64) / UNITS * largest)
    if base:
        below = 0 if base % 2 else -1
        return struct.pack("<f", scale), [below - c if numpy.signbit(v) else c for v, c in zip(x, chosen)]
    return struct.pack("<f", scale), [c | (len(levels) if numpy.signbit(v) else 0) for v, c in zip(x, chosen)]


def block_of(name, bits):
    if name.endswith("-affine"):
        return lambda x: affine(x, bits)
    if name.startswith("int"):
        of_zero = name.endswith("-signed") or (bits <= 5 and not name.endswith("-symmetric"))
        return lambda x: (signed if of_zero else symmetric)(x, bits)
    if name in MX:
        return lambda x: mx(x, name)
    if name in FLOATS:
        return lambda x: scaled_float(x, name)
    if name.startswith(("lloyd", "eden")):
        return lambda x: codebook(x, name)
    return {"nvfp4": nvfp4, "ternary": ternary, "ternary-five": ternary, "sign": sign}.get(name) or (lambda x: qsgd(x, bits))


def noise(i, seed=0x0123456789ABCDEF, use=3, parameter=5, stream=2):
    """Of element i of a parameter, in (-1/2, 1/2); arguments as tests/golden/README.md has them."""
    call = i // 128 * 16 + i % 16
    word = philox((call & 0xFFFFFFFF, call >> 32, use, parameter),
                  ((seed & 0xFFFFFFFF) ^ (stream * 0x9E3779B9 & 0xFFFFFFFF), seed >> 32))[i // 16 % 4]
    random = word & 0xFFFF if i % 128 < 64 else word >> 16
    return F(random / 65536 - (0.5 - 2.0**-17))


def drawn_code(t, kind, nu):
    """The small float that the noise makes of a magnitude, with the sign of t."""
    exponent_bits, fraction_bits, largest = kind
    values, bias, fall_away = float_values(*kind), (1 << (exponent_bits - 1)) - 1, 23 - fraction_bits
    magnitude = min(abs(t), F(values[largest]))
    if magnitude >= F(2.0 ** (1 - bias)):
        jitter = int(numpy.rint(nu * F(1 << fall_away)))
        code = (bits_of_fp32(magnitude) - ((127 - bias) << 23) + (1 << (fall_away - 1)) + jitter) >> fall_away
    else:
        unit = F(2.0 ** (1 - bias - fraction_bits))
        code = int(numpy.rint(max(magnitude + nu * unit, F(0)) / unit))
    return code | (1 << (exponent_bits + fraction_bits) if numpy.signbit(t) else 0)


def stochastic(name, bits, x, nu):
    """Params and codes of a block that is not all zeros."""
    largest, top = max(abs(v) for v in x), (1 << (bits - 1)) - 1
    if name in MX:
        kind, (exponent, least) = FLOATS[name], MX[name]
        e8m0 = max((bits_of_fp32(largest) >> 23) - exponent, least)
        e8m0 += largest > F(float_values(*kind)[-1]) * F(2.0 ** (e8m0 - 127))
        return bytes([e8m0]), [drawn_code(v * F(2.0 ** (127 - e8m0)), kind, n) for v, n in zip(x, nu)]
    if name == "nvfp4":
        shared = max(upper_bits(largest / F(6 * 448), 16, up=True), F(2.0**-116))
        params, codes, values = bf16_bytes(shared), [], float_values(*E4M3)
        for at in range(0, len(x), 16):
            wanted = max(abs(v) for v in x[at:at + 16]) / (F(6) * shared)
            code = next(c for c, value in enumerate(values) if F(value) >= wanted)
            params += bytes([code])
            scale = F(values[code]) * shared
            codes += [drawn_code(v * inverse(scale), E2M1, n) for v, n in zip(x[at:at + 16], nu[at:at + 16])]
        return params, codes
    if name in FLOATS:
        values = float_values(*FLOATS[name])
        scale = step(largest / F(values[-1]), values[-1], up=True, least=F(2.0**-126 / values[1]))
        return bf16_bytes(scale), [drawn_code(v * inverse(scale), FLOATS[name], n) for v, n in zip(x, nu)]
    if name.endswith("-affine"):
        params, steps = affine(x, bits)[0], (1 << bits) - 1
        low, scale = (F(v) for v in struct.unpack("<ff", params))
        codes = [int(numpy.rint(min(max((v - low) * inverse(scale) + n, F(0)), F(steps)))) for v, n in zip(x, nu)]
        return params, [c - (1 << (bits - 1)) for c in codes]
    scale = step(largest / F(top), 8 if name == "int4" else top, up=True)
    return bf16_bytes(scale), [int(numpy.rint(min(max(v * inverse(scale) + n, F(-top)), F(top)))) for v, n in zip(x, nu)]


def bits_of(name):
    if name in FLOATS:
        return 1 + FLOATS[name][0] + FLOATS[name][1]
    return {"nvfp4": 4, "ternary": 2, "sign": 1, **dict.fromkeys(DIGITS, 4)}.get(name) or int("".join(c for c in name if c.isdigit()))


def param_bytes(name, elements):
    if name == "nvfp4":
        return 2 + (elements + 15) // 16
    return 8 if name.endswith("-affine") else 1 if name in MX else 4 if name.startswith(("lloyd", "eden")) else 2


def zeros(x, name, bits):
    """Of affine codes 0 is the lowest; those with a sign bit keep it."""
    if name.endswith("-affine"):
        return [-(1 << (bits - 1))] * len(x)
    if name in DIGITS:
        return [-1 if DIGITS[name][0] % 2 == 0 and numpy.signbit(v) else 0 for v in x]
    has_sign = (name in FLOATS or name.startswith(("lloyd", "eden", "nvfp4", "sign")))
    return [int(has_sign and numpy.signbit(v)) << (bits - 1) for v in x]


def as_digits(name, codes):
    """Of a block."""
    base, digits, size = DIGITS[name]
    data = b""
    for at in range(0, len(codes), 16 * digits):
        run = [int(code) % base for code in codes[at:at + 16 * digits]] + [0] * 80
        numbers = [sum(run[i + 16 * k] * base**k for k in range(digits)) for i in range(16)]
        data += b"".join(bytes(number >> (8 * byte) & 255 for number in numbers) for byte in range(size))
    return data


def padded(data):
    return data + bytes(-len(data) % 16)


def encode(name, block, x, nu=None):
    if name == "dense":
        return padded(x.tobytes())
    if name == "bf16":
        return padded(b"".join(struct.pack("<H", bits_of_fp32(upper_bits(v, 16)) >> 16 | int(numpy.signbit(v)) << 15) for v in x))
    if name == "fp16":
        return padded(numpy.clip(x, -65504, 65504).astype(numpy.float16).tobytes())
    bits = bits_of(name)
    params, codes = b"", []
    for at in range(0, len(x), block):
        part = list(x[at:at + block])
        if any(v != 0 for v in part):
            param, of_block = stochastic(name, bits, part, nu[at:at + block]) if nu else block_of(name, bits)(part)
        else:
            param, of_block = bytes(param_bytes(name, len(part))), zeros(part, name, bits)
        params += param
        codes += of_block
    if name in DIGITS:
        return padded(params) + b"".join(as_digits(name, codes[at:at + block]) for at in range(0, len(codes), block))
    fields = sum((int(code) & ((1 << bits) - 1)) << (i * bits) for i, code in enumerate(codes))
    return padded(params) + padded(fields.to_bytes((len(codes) * bits + 7) // 8, "little"))


def rotate(x, size, seed):
    x, at = x.copy(), 0
    while len(x) - at >= 16:
        count = min(size, 1 << ((len(x) - at).bit_length() - 1))
        k = count.bit_length() - 1
        words = [philox((e // 128, 0, 0, 0), (seed & 0xFFFFFFFF, seed >> 32))[e // 32 % 4] >> (e % 32) & 1 for e in range(count)]
        y = x[at:at + count] * numpy.where(words, F(-(2.0 ** -((k + 1) // 2))), F(2.0 ** -((k + 1) // 2)))
        stride = 1
        while stride < count:
            pairs = y.reshape(-1, 2, stride)
            y = numpy.stack([pairs[:, 0] + pairs[:, 1], pairs[:, 0] - pairs[:, 1]], axis=1).reshape(-1)
            stride *= 2
        x[at:at + count] = y
        at += count
    return x


def compare(stem, mine):
    theirs = (FOLDER / f"{stem}.wire").read_bytes()
    if mine != theirs:
        at = next((i for i, (a, b) in enumerate(zip(mine, theirs)) if a != b), min(len(mine), len(theirs)))
        sys.exit(f"{stem}.wire: byte {at} of {len(theirs)} is another by docs/wire-format.md, of {len(mine)}")


def main():
    x = numpy.fromfile(FOLDER / "input.f32", "<f4")
    files = sorted(FOLDER.glob("*.values.f32"))
    for path in files:
        stem = path.name[: -len(".values.f32")]
        words = stem.split("_")
        rotated = x
        if words[0] == "hadamard":
            seeded = words[2] == "seed"
            rotated = rotate(x, int(words[1]), int(words[3]) if seeded else 0)
            words = words[4 if seeded else 2:]
        compare(stem, encode(words[0], int(words[2]), rotated))
    drawn = sorted(FOLDER.glob("stochastic_*.wire"))
    nu = [noise(256 + i) for i in range(len(x))]
    for path in drawn:
        _, name, _, block = path.stem.split("_")
        compare(path.stem, encode(name, int(block), x, nu))
    if len(files) < 40 or len(drawn) < 7:
        sys.exit(f"only {len(files)} golden files, and {len(drawn)} stochastic ones")
    print(f"{len(files)} formats are encoded as docs/wire-format.md says, {len(drawn)} of them stochastically too")


main()
