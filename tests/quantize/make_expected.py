#!/usr/bin/env python3
"""Makes expected.json: what MLX's own quantizer gives for inputs that models/tests/quantize.rs generates too.

    pip install "mlx[cpu]" mlx-lm numpy blake3
    python make_expected.py            # rewrites expected.json beside this file

Made with mlx 0.32.4 and mlx-lm 0.32.2 on a CPU. Two parts: matrices (every width, group and input type, with awkward rows)
through mx.quantize, and small whole models through mlx-lm's conversion (load_model, quantize_model, save_model). Values are
stored as blake3 digests of the little-endian bytes, and some groups of the matrices in full. Not part of `make test`.
"""
import json
import os
import tempfile
from pathlib import Path

import mlx.core as mx
import numpy as np
from blake3 import blake3
from mlx_lm.utils import load_model, quantize_model, save_model

HERE = Path(__file__).resolve().parent
ROWS, COLS = 32, 256
M64 = (1 << 64) - 1


def mix(x):
    """splitmix64 of each element."""
    x = x + np.uint64(0x9E3779B97F4A7C15)
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


def seed_of(name):
    """FNV-1a, 64 bits."""
    h = 0xCBF29CE484222325
    for b in name.encode():
        h = ((h ^ b) * 0x100000001B3) & M64
    return h


def noise(seed, n):
    """n float32: sums of three integers of 21 bits around 0, in steps of 2^-21. Every operation is exact."""
    with np.errstate(over="ignore"):
        u = mix(np.uint64(seed) + np.arange(n, dtype=np.uint64))
    mask = np.uint64((1 << 21) - 1)
    s = sum(((u >> np.uint64(k)) & mask).astype(np.int64) for k in (0, 21, 42)) - 3 * (1 << 20)
    return (s.astype(np.float32) * np.float32(2.0 ** -21)).astype(np.float32)


def to_bits(f, dtype):
    """float32 to the stored type, round to nearest even, as integers."""
    if dtype == "F32":
        return f.view(np.uint32)
    if dtype == "F16":
        return f.astype(np.float16).view(np.uint16)
    u = f.view(np.uint32).astype(np.uint64)
    return ((u + 0x7FFF + ((u >> 16) & 1)) >> 16).astype(np.uint16)


def matrix(dtype, bits):
    """One row a kind of trouble, then again with other noise."""
    out = np.zeros((ROWS, COLS), np.float32)
    for r in range(ROWS):
        z = noise(seed_of(f"row {r}"), COLS)
        k, j = r % 16, np.arange(COLS)
        two = np.float32(2)
        if k == 0: v = z
        elif k == 1: v = z * two ** -6
        elif k == 2: v = z * two ** -12
        elif k == 3: v = z * two ** 7
        elif k == 4: v = z * two ** -22                                    # the smallest step matters
        elif k == 5: v = np.full(COLS, z[0])                               # all equal
        elif k == 6: v = np.zeros(COLS)
        elif k == 7: v = -np.abs(z) - np.float32(0.25)                     # all negative
        elif k == 8: v = np.abs(z) + np.float32(0.25)                      # all positive
        elif k == 9: v = z * two ** (14 if dtype == "F16" else 125)        # huge
        elif k == 10: v = z * two ** (-18 if dtype == "F16" else -130)     # subnormal
        elif k == 11: v = np.where(j % 32 == 3, 1.5, np.where(j % 32 == 9, -1.5, z * two ** -2))   # both ends as far
        elif k == 12: v = np.where(z < 0, np.float32(-0.0), np.float32(0.0))
        elif k == 13:                                                      # steps of 1, values halfway between codes
            v = np.where(j % 32 == 0, 2.0 ** bits - 1, np.where(j % 32 == 1, 0.0, (j * 11 % (2 ** (bits + 1) - 1)) / 2.0))
        elif k == 14: v = np.where(j % 64 == 17, 40.0, z * two ** -5)      # an outlier
        else: v = 1 + np.round(z * 8) * two ** -7                          # a narrow range far from 0
        out[r] = v.astype(np.float32)
    return to_bits(out, dtype)


MX = {"BF16": mx.bfloat16, "F16": mx.float16, "F32": mx.float32}


def to_mx(bits, dtype):
    return mx.array(bits).view(MX[dtype])


def raw(a):
    """Bytes of an mx array."""
    if a.dtype in (mx.bfloat16, mx.float16):
        a = a.view(mx.uint16)
    return np.ascontiguousarray(np.array(a)).tobytes()


def digest(b):
    return blake3(b).hexdigest()[:32]


def matrices():
    out = []
    for dtype in ("BF16", "F16", "F32"):
        for bits in (2, 3, 4, 5, 6, 8):
            w = matrix(dtype, bits)
            for group in (32, 64, 128):
                q, s, b = (raw(x) for x in mx.quantize(to_mx(w, dtype), group_size=group, bits=bits))
                size, words = (4 if dtype == "F32" else 2), group * bits // 8
                # The first group of rows 0, 9, 11 and 15.
                some = []
                for r in (0, 9, 11, 15):
                    g = r * COLS // group
                    some.append([r, q[g * words:(g + 1) * words].hex(), s[g * size:(g + 1) * size].hex(),
                                 b[g * size:(g + 1) * size].hex()])
                out.append({"dtype": dtype, "bits": bits, "group": group, "input": digest(w.tobytes()),
                            "weight": digest(q), "scales": digest(s), "biases": digest(b), "groups": some})
    return out


ROPE = {"full_attention": {"partial_rotary_factor": 0.25, "rope_theta": 1000000.0, "rope_type": "proportional"},
        "sliding_attention": {"rope_theta": 10000.0, "rope_type": "default"}}
S, F = "sliding_attention", "full_attention"
BASE = {"attention_bias": False, "attention_k_eq_v": True, "bos_token_id": 2, "dtype": "bfloat16", "enable_moe_block": False,
        "eos_token_id": 1, "final_logit_softcapping": 30.0, "global_head_dim": 64, "head_dim": 32,
        "hidden_activation": "gelu_pytorch_tanh", "hidden_size": 64, "hidden_size_per_layer_input": 0, "intermediate_size": 64,
        "layer_types": [S, F], "max_position_embeddings": 4096, "model_type": "gemma4_text", "moe_intermediate_size": None,
        "num_attention_heads": 4, "num_experts": None, "num_global_key_value_heads": 1, "num_hidden_layers": 2,
        "num_key_value_heads": 2, "num_kv_shared_layers": 0, "pad_token_id": 0, "rms_norm_eps": 1e-06, "rope_parameters": ROPE,
        "sliding_window": 16, "tie_word_embeddings": True, "top_k_experts": None, "use_double_wide_mlp": False,
        "vocab_size": 96, "vocab_size_per_layer_input": 96}
MOE = {**BASE, "enable_moe_block": True, "moe_intermediate_size": 128, "num_experts": 4, "top_k_experts": 2,
       "hidden_size": 128, "intermediate_size": 192}
PLE = {**BASE, "attention_k_eq_v": False, "hidden_size_per_layer_input": 32, "layer_types": [S, F, S, F],
       "num_global_key_value_heads": None, "num_hidden_layers": 4, "num_kv_shared_layers": 2, "use_double_wide_mlp": True}


def hf_tensors(c, surplus):
    """Name and shape of what a Hugging Face folder holds, without prefix."""
    H, V, L, P = c["hidden_size"], c["vocab_size"], c["num_hidden_layers"], c["hidden_size_per_layer_input"]
    first = L - c["num_kv_shared_layers"]
    out = {"embed_tokens.weight": [V, H], "norm.weight": [H]}
    if not c["tie_word_embeddings"]:
        out["lm_head.weight"] = [V, H]
    if P:
        out.update({"embed_tokens_per_layer.weight": [V, L * P], "per_layer_model_projection.weight": [L * P, H],
                    "per_layer_projection_norm.weight": [P]})
    for i, kind in enumerate(c["layer_types"]):
        full = kind == F
        d = c["global_head_dim"] if full else c["head_dim"]
        nk = c["num_global_key_value_heads"] if full and c["attention_k_eq_v"] else c["num_key_value_heads"]
        nq, m = c["num_attention_heads"], c["intermediate_size"] * (2 if c["use_double_wide_mlp"] and i >= first else 1)
        t = {"self_attn.q_proj.weight": [nq * d, H], "self_attn.o_proj.weight": [H, nq * d], "self_attn.q_norm.weight": [d],
             "mlp.gate_proj.weight": [m, H], "mlp.up_proj.weight": [m, H], "mlp.down_proj.weight": [H, m], "layer_scalar": [1]}
        for n in ("input_layernorm", "post_attention_layernorm", "pre_feedforward_layernorm", "post_feedforward_layernorm"):
            t[n + ".weight"] = [H]
        if i < first or surplus:
            t["self_attn.k_proj.weight"], t["self_attn.k_norm.weight"] = [nk * d, H], [d]
            if not (full and c["attention_k_eq_v"]):
                t["self_attn.v_proj.weight"] = [nk * d, H]
        if c["enable_moe_block"]:
            E, M = c["num_experts"], c["moe_intermediate_size"]
            for n in ("post_feedforward_layernorm_1", "post_feedforward_layernorm_2", "pre_feedforward_layernorm_2"):
                t[n + ".weight"] = [H]
            t.update({"router.proj.weight": [E, H], "router.scale": [H], "router.per_expert_scale": [E],
                      "experts.gate_up_proj": [E, 2 * M, H], "experts.down_proj": [E, H, M]})
        if P:
            t.update({"per_layer_input_gate.weight": [P, H], "per_layer_projection.weight": [H, P],
                      "post_per_layer_input_norm.weight": [H]})
        out.update({f"layers.{i}.{k}": v for k, v in t.items()})
    return out


def mixed(path, _):
    """The predicate of mlx-vlm 0.4 and 0.5 (mlx_vlm/models/gemma4/language.py)."""
    if "router" in path or any(path.endswith(f"mlp.{p}_proj") for p in ("gate", "up", "down")):
        return {"group_size": 64, "bits": 8}
    return True


def model(name, c, dtype, bits, group, recipe, surplus=False):
    tensors = hf_tensors(c, surplus)
    with tempfile.TemporaryDirectory() as tmp:
        src, dst = Path(tmp, "hf"), Path(tmp, "mlx")
        src.mkdir()
        config = {"model_type": "gemma4", "vocab_size": c["vocab_size"], "text_config": c}
        (src / "config.json").write_text(json.dumps(config))
        # An output projection of its own is known to mlx-lm under MLX's names only.
        prefix = "model.language_model." if c["tie_word_embeddings"] else "language_model.model."
        at = {n: "language_model." + n if n == "lm_head.weight" else prefix + n for n in tensors}
        w = {at[n]: to_mx(to_bits(noise(seed_of(n), int(np.prod(s))).reshape(s) * np.float32(0.0625), dtype),
                                                dtype) for n, s in tensors.items()}
        mx.save_safetensors(str(src / "model.safetensors"), w)
        m, conf = load_model(src, lazy=False)
        m, conf = quantize_model(m, conf, group, bits, quant_predicate=mixed if recipe == "mixed" else None)
        save_model(dst, m)
        got = mx.load(str(dst / "model.safetensors"))
    names = {mx.bfloat16: "BF16", mx.float16: "F16", mx.float32: "F32", mx.uint32: "U32"}
    return {"name": name, "dtype": dtype, "bits": bits, "group": group, "recipe": recipe, "text_config": c, "hf": tensors,
            "mlx": {n: [names[a.dtype], list(a.shape), digest(raw(a))] for n, a in sorted(got.items())},
            "quantization": conf["quantization"]}


def main():
    models = [model("moe", MOE, "BF16", 4, 64, "mixed"), model("moe", MOE, "F32", 3, 128, "uniform"),
              model("dense", BASE, "F16", 8, 32, "uniform"), model("dense", BASE, "BF16", 5, 64, "mixed"),
              model("untied", {**BASE, "tie_word_embeddings": False}, "BF16", 4, 64, "uniform"),
              model("ple", PLE, "BF16", 4, 32, "uniform", True), model("ple", PLE, "BF16", 6, 64, "uniform")]
    text = json.dumps({"matrices": matrices(), "models": models}, indent=None, separators=(",", ":"))
    text = text.replace('{"dtype"', '\n{"dtype"').replace('{"name"', '\n{"name"')
    (HERE / "expected.json").write_text(text + "\n")
    print(len(text), "bytes", {m["name"]: len(m["mlx"]) for m in models})


main()
