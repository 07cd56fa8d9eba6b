#!/usr/bin/env python3
"""Compares what `isobit quantize` wrote with MLX and with a reference folder, by hand. Not part of `make test`.

    pip install "mlx[cpu]" mlx-lm numpy
    isobit quantize HF -o OUT --recipe mixed
    python check_results.py OUT [--reference MLX_FOLDER] [--hf HF] [--text PROMPT]

--reference: every tensor of OUT has to be in MLX_FOLDER with the same bytes, and the other way round, but for keys and values
             of layers that use an earlier layer's (mlx-lm drops those).
--hf:        quantizes HF with mlx-lm itself, by OUT's own configuration, and compares every tensor.
Always:      mlx-lm loads OUT strictly and its logits are finite; with --reference or --hf they equal those of the other model.
--text:      also loads the tokenizer, and generates.
"""
import argparse
import glob
import json
import os
import sys
from pathlib import Path

import mlx.core as mx
import numpy as np
from mlx.utils import tree_flatten
from mlx_lm.utils import load_model, quantize_model


def tensors(folder):
    out = {}
    for f in sorted(glob.glob(os.path.join(folder, "model*.safetensors"))):
        out.update(mx.load(f))
    return out


def same(a, b):
    if a.dtype != b.dtype or a.shape != b.shape:
        return False
    kind = {2: mx.uint16, 4: mx.uint32}[a.dtype.size]
    return bool(mx.array_equal(a.view(kind), b.view(kind)))


def compare(ours, theirs, sharing):
    def surplus(n):
        return any(f"layers.{i}.self_attn.{k}" in n for i in sharing for k in ("k_proj", "v_proj", "k_norm"))
    theirs = {n: t for n, t in theirs.items() if not surplus(n)}
    bad = sorted(set(ours) ^ set(theirs)) + sorted(n for n in set(ours) & set(theirs) if not same(ours[n], theirs[n]))
    print(f"{len(ours)} tensors, {len(bad)} differ", *bad[:5], sep="\n  " if bad else " ")
    return not bad


def logits(model, vocab):
    ids = [2] + [(7 * i + 3) % vocab for i in range(47)]
    return np.array(model(mx.array([ids])).astype(mx.float32))


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("out")
    ap.add_argument("--reference")
    ap.add_argument("--hf")
    ap.add_argument("--text")
    a = ap.parse_args()
    model, conf = load_model(Path(a.out), lazy=False)
    text = conf["text_config"]
    n, shared = text["num_hidden_layers"], text.get("num_kv_shared_layers", 0)
    z = logits(model, text["vocab_size"])
    ok = bool(np.isfinite(z).all())
    print("mlx-lm loads it; logits finite:", ok)
    ours = tensors(a.out)
    if a.reference:
        ok &= compare(ours, tensors(a.reference), range(n - shared, n))
        ok &= bool((logits(load_model(Path(a.reference), lazy=False)[0], text["vocab_size"]) == z).all())
    if a.hf:
        q = conf["quantization"]
        conf = json.loads((Path(a.hf) / "config.json").read_text())
        # A text-only export is mlx-lm's gemma4_text, without our prefix.
        prefix = "" if "text_config" in conf else "language_model."
        other, conf = load_model(Path(a.hf), lazy=False, model_config={"vocab_size": text["vocab_size"]})
        other, _ = quantize_model(other, conf, q["group_size"], q["bits"],
                                  quant_predicate=lambda p, _: q.get(prefix + p, True))
        ok &= compare(ours, {prefix + n: t for n, t in tree_flatten(other.parameters())}, [])
        ok &= bool((logits(other, text["vocab_size"]) == z).all())
    if a.text:
        from mlx_lm import generate, load
        m, t = load(a.out)
        print(generate(m, t, prompt=t.apply_chat_template([{"role": "user", "content": a.text}], add_generation_prompt=True),
                       max_tokens=60))
    print("ok" if ok else "BAD")
    sys.exit(0 if ok else 1)


main()
