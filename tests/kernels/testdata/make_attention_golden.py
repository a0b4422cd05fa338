"""Writes attention.txt: attention with sinks and with a soft cap, by Hugging Face's own functions.

gpt-oss has sinks and windows, Gemma 2 has a soft cap and windows. A row is the query of one head.

    python make_attention_golden.py > attention.txt

Made with torch 2 and transformers 5. Format, one case in 6 lines: name; num_heads num_kv_heads
head_dim query_len seq_len sliding_window scale soft_cap; sinks (none: an empty line); q [query_len,
num_heads, head_dim]; k and v [2, seq_len, num_kv_heads, head_dim]; out, shaped as q.
"""

import types

import torch
from transformers.models.gemma2 import modeling_gemma2
from transformers.models.gpt_oss import modeling_gpt_oss

HEADS, KV_HEADS, DIM, QUERIES, KEYS = 4, 2, 8, 3, 11


def mask(window):
    query = torch.arange(KEYS - QUERIES, KEYS)[:, None]
    key = torch.arange(KEYS)[None, :]
    seen = (key <= query) & ((window == 0) | (key > query - window))
    return torch.where(seen, 0.0, -torch.inf)[None, None]


def line(tensor):
    print(*(f"{x:.9g}" for x in tensor.flatten().tolist()))


def case(name, window=0, scale=0.5, size=1.0, cap=0.0, sinks=()):
    q = torch.randn(1, HEADS, QUERIES, DIM) * size
    k, v = torch.randn(2, 1, KV_HEADS, KEYS, DIM)
    module = types.SimpleNamespace(num_key_value_groups=HEADS // KV_HEADS, head_dim=DIM,
                                   training=False, sinks=torch.tensor(sinks))
    if sinks:
        out, _ = modeling_gpt_oss.eager_attention_forward(module, q, k, v, mask(window), scale)
    else:
        out, _ = modeling_gemma2.eager_attention_forward(
            module, q, k, v, mask(window), scaling=scale, softcap=cap or None)
    print(name)
    print(HEADS, KV_HEADS, DIM, QUERIES, KEYS, window, scale, cap)
    line(torch.tensor(sinks))
    line(q.transpose(1, 2))
    line(torch.stack([k, v]).transpose(2, 3))
    line(out)


torch.manual_seed(38)
case("plain")
case("window", window=4)
case("sinks", sinks=(0.5, -1.0, 2.0, 0.0))
case("sinks in a window", window=3, sinks=(3.0, -2.0, 1.0, 0.25))
case("sinks above and below all scores", size=4.0, sinks=(60.0, -60.0, 12.0, -12.0))
case("soft cap", size=4.0, cap=2.5)
case("soft cap far above the scores", cap=50.0)
case("soft cap in a window", window=5, size=8.0, cap=10.0)
