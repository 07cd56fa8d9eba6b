"""Writes graph_layout_mlx.txt: how MLX packs codes of each size. Needs `pip install "mlx[cpu]" numpy`.

The codes are recovered from mlx.core.dequantize by rounding, not from the words.
"""

import mlx.core as mx
import numpy as np

rng = np.random.default_rng(1)
print("# Made by graph_layout_mlx.py: size of a code, u32 words in hexadecimal, codes.")
for bits in (2, 3, 4, 5, 6, 8):
    w = mx.array(rng.uniform(-1, 1, (1, 64)).astype(np.float32))
    q, s, b = mx.quantize(w, group_size=64, bits=bits)
    d = np.array(mx.dequantize(q, s, b, group_size=64, bits=bits)).astype(np.float64)
    codes = np.rint((d - float(b[0, 0])) / float(s[0, 0])).astype(int)[0]
    print("bits", bits)
    print(" ".join(f"{w:08x}" for w in np.array(q)[0]))
    print(" ".join(str(c) for c in codes))
