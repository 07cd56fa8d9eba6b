#!/usr/bin/env python3
"""Registers, spills, shared memory and occupancy of an artifact's kernels for one GPU target, as a Markdown table.

Usage: tests/gpu/table.py ARTIFACT sm_121 [PTXAS]
Occupancy is what registers, shared memory and threads allow on one multiprocessor (65,536 registers, given out by 256 to a warp;
48 warps and 100 KB of shared memory on sm_121, 64 and 228 on sm_90; 1 KB of each block is the system's).
"""
import json
import pathlib
import re
import subprocess
import sys
import tempfile

artifact, target = sys.argv[1:3]
ptxas = sys.argv[3] if len(sys.argv) > 3 else ".tools/bin/ptxas"
most_warps, most_shared = {"sm_90": (64, 228 * 1024), "sm_121": (48, 100 * 1024)}[target]
print("| kernel | threads | registers | spilled bytes | shared bytes | blocks a multiprocessor | warps |")
print("|---|---|---|---|---|---|---|")
spilled = 0
for ptx in sorted(pathlib.Path(artifact).glob(f"gpu/{target}/kernels/*.ptx")):
    with tempfile.TemporaryDirectory() as d:
        out = subprocess.run([ptxas, f"-arch={target}", "-v", str(ptx), "-o", f"{d}/x"], capture_output=True, text=True)
    if out.returncode:
        sys.exit(out.stderr)
    registers = int(re.search(r"Used (\d+) registers", out.stderr)[1])
    spill = sum(int(n) for n in re.findall(r"(\d+) bytes spill", out.stderr))
    shared = int((re.search(r"(\d+) bytes smem", out.stderr) or [0, 0])[1])
    threads = int(re.search(r"\.maxntid (\d+)", ptx.read_text())[1])
    warps = threads // 32
    of_warp = -(-registers * 32 // 256) * 256
    blocks = min(65536 // of_warp // warps, most_warps // warps, most_shared // (shared + 1024), 24)
    spilled += spill
    print(f"| `{ptx.stem}` | {threads} | {registers} | {spill} | {shared} | {blocks} | {blocks * warps} |")
sys.exit(1 if spilled else 0)
