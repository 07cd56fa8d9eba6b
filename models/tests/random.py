"""Values of random weights as the head of models/src/random.rs defines them, for models/tests/random.txt. Standard library only."""
import struct
M = (1 << 64) - 1
STEP = 0x9E3779B97F4A7C15


def mix(z):
    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9 & M
    z = (z ^ z >> 27) * 0x94D049BB133111EB & M
    return z ^ z >> 31


def key(seed, name, part):
    h = 0xCBF29CE484222325
    for b in name.encode():
        h = (h ^ b) * 0x100000001B3 & M
    return mix((seed + STEP * part & M) ^ h)


def h(k, i):
    return mix(k + STEP * i & M)


def t(k, i):
    half = h(k, i // 2) >> 32 * (i % 2) & 0xFFFFFFFF
    return sum(half.to_bytes(4, "little")) - 510


def f32(x):
    return struct.unpack("<f", struct.pack("<f", x))[0]


def bf16(x):
    b = struct.unpack("<I", struct.pack("<f", x))[0]
    return (b + 0x7FFF + (b >> 16 & 1) >> 16) & 0xFFFF


def wide(b):
    return struct.unpack("<f", struct.pack("<I", b << 16))[0]


def code(k, bits, i):
    w = 4 if bits <= 4 else 8
    n, f = divmod(i, 64 // w)
    a = [h(k, 4 * n + j) >> f * w & (1 << w) - 1 for j in range(4)]
    up = lambda x, y: (x + y + 1) // 2
    return (up(a[0], a[1]) + up(a[2], a[3])) // 2 >> w - bits


def number(seed, name, cols, i):
    return bf16(f32(t(key(seed, name, 1), i) * f32(1 / (147.8 * cols ** 0.5))))


def params(seed, name, bits, cols, g):
    base = f32(1 / (192.0 * 0.1443 * (1 << bits) * cols ** 0.5))
    s = bf16(f32(base * (192 + int(t(key(seed, name, 2), g) / 8))))
    return s, bf16(f32(-wide(s) * ((1 << bits) - 1) / 2))


def vector(seed, name, center, i):
    x = f32(f32(center) * (1 + t(key(seed, name, 1), i) / 2048))
    return bf16(-x if name == "norm" and h(key(seed, name, 2), i) & 1 else x)


for seed in (1, 2**64 - 1):
    name = "layers.0.mlp.up_proj"
    print(seed, "number", *(f"{number(seed, name, 64, i):04x}" for i in (0, 1, 63, 64, 127, 8191)))
    for bits in (2, 3, 4, 5, 6, 8):
        print(seed, bits, "codes", *(code(key(seed, name, 1), bits, i) for i in (0, 1, 2, 31, 32, 63, 64, 65, 4095, 8191)))
        print(seed, bits, "params", *(f"{s:04x}/{b:04x}" for s, b in (params(seed, name, bits, 64, g) for g in (0, 1, 2, 255))))
    for name, c in (("norm", 1), ("layers.1.self_attn.k_norm", 2 / 32**0.5), ("layers.0.layer_scalar", 0.9375)):
        print(seed, name, *(f"{vector(seed, name, c, i):04x}" for i in (0, 1, 2, 31) if name[-1] == "m" or i == 0))
