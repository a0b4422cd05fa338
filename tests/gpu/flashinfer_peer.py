#!/usr/bin/env python3
"""Measures FlashInfer's paged decode on the cases that gpu_bench measured, where it is installed.

The method and the form of the results are torch_peer.py's. Keys and values are paged as ours are, with
the same block size, in blocks of [K or V, heads, tokens, head_dim]; its plan is made before the clock
starts. Has never run: no machine that had both a GPU and FlashInfer was at hand.
"""
import argparse
import json
import pathlib
import sys
import time

import torch_peer

WORKSPACE_BYTES = 256 << 20


def pages_of(torch, figure):
    """Number of blocks of all sequences, and their table as FlashInfer wants it, in random order."""
    batch, seq_len, block = figure["batch"], figure["seq_len"], figure["block_size"]
    per_sequence = (seq_len + block - 1) // block
    starts = torch.arange(batch + 1, dtype=torch.int32, device="cuda") * per_sequence
    order = torch.randperm(batch * per_sequence, device="cuda").to(torch.int32)
    last = torch.full((batch,), (seq_len - 1) % block + 1, dtype=torch.int32, device="cuda")
    return batch * per_sequence, starts, order, last


def measure_decode(machine, flashinfer, figure):
    torch = machine.torch
    heads, kv_heads, head_dim = figure["num_heads"], figure["num_kv_heads"], figure["head_dim"]
    num_pages, starts, order, last = pages_of(torch, figure)
    q = machine.random(figure["batch"], heads, head_dim)
    pools = [machine.random(num_pages, 2, kv_heads, figure["block_size"], head_dim)
             for _ in range(torch_peer.num_sets(figure))]
    workspace = torch.empty(WORKSPACE_BYTES, dtype=torch.uint8, device="cuda")
    wrapper = flashinfer.BatchDecodeWithPagedKVCacheWrapper(workspace, "HND",
                                                            use_tensor_cores=heads != kv_heads)
    wrapper.plan(starts, order, last, heads, kv_heads, head_dim, figure["block_size"],
                 q_data_type=torch.bfloat16, kv_data_type=torch.bfloat16)
    return machine.measure([lambda pool=pool: wrapper.run(q, pool) for pool in pools])


def is_wanted(figure):
    return (figure["group"] == "decode" and "us" in figure and figure.get("seq_len", 0) > 0 and
            figure.get("cache_dtype") == "bfloat16")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--figures", type=pathlib.Path, required=True)
    parser.add_argument("--json", type=pathlib.Path, required=True, help="appended to")
    parser.add_argument("--limit-seconds", type=float, default=1e9)
    arguments = parser.parse_args()
    start = time.monotonic()
    try:
        import flashinfer
        import torch
    except ImportError as error:
        print(f"FlashInfer: not measured: not installed ({error})")
        return 0
    if not torch.cuda.is_available():
        print("FlashInfer: not measured: PyTorch sees no GPU")
        return 0
    machine = torch_peer.Machine(torch)
    machine.raise_clocks()
    seen = set()
    with arguments.json.open("a", encoding="utf-8") as out:
        for figure in filter(is_wanted, torch_peer.read_lines(arguments.figures)):
            key = (*torch_peer.key_of(figure), figure["block_size"])
            if key in seen or time.monotonic() - start > arguments.limit_seconds:
                continue
            seen.add(key)
            try:
                peer = {"peer": "flashinfer", **measure_decode(machine, flashinfer, figure)}
            except Exception as error:  # compiled when first used: anything may be missing
                peer = {"peer": "flashinfer", "note": torch_peer.short(error)}
            line = torch_peer.complete(peer, figure)
            out.write(json.dumps(line) + "\n")
            print(torch_peer.table_line(line), flush=True)
            torch.cuda.empty_cache()
    return 0


if __name__ == "__main__":
    sys.exit(main())
