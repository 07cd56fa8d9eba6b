#!/usr/bin/env python3
"""Writes the configurations of the GPU checks that are not in the repository, each in a folder of its own: make.py FOLDER.
They come from that of 26B-A4B (tests/configs): `wide` has its widths, 6 layers and 32 experts; `moe-N` is tiny, with N experts."""
import copy
import json
import pathlib
import sys

here = pathlib.Path(__file__).resolve().parent
base = json.loads((here / "../../configs/26b-a4b-mlx-4bit/config.json").read_text())


def of(layers, **changes):
    c = copy.deepcopy(base)
    c["text_config"].update(num_hidden_layers=layers, layer_types=base["text_config"]["layer_types"][6 - layers : 6], **changes)
    for key in ("quantization", "quantization_config"):
        # Modules of layers that there are no more.
        kept = lambda name: ".layers." not in name or int(name.split(".layers.")[1].split(".")[0]) < layers
        if key in c:
            c[key] = {k: v for k, v in c[key].items() if kept(k)}
    return c


models = {"wide": of(6, num_experts=32)}
for n in (1, 2, 8, 128):
    models[f"moe-{n}"] = of(
        2, num_experts=n, top_k_experts=min(n, 8 if n > 8 else 2), hidden_size=128, intermediate_size=128,
        moe_intermediate_size=64, num_attention_heads=4, num_key_value_heads=2, num_global_key_value_heads=1, head_dim=32,
        global_head_dim=64, sliding_window=32, vocab_size=512, vocab_size_per_layer_input=512, max_position_embeddings=4096,
    )
for name, config in models.items():
    folder = pathlib.Path(sys.argv[1]) / name
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config, indent=1) + "\n")
