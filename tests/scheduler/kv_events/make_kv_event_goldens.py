#!/usr/bin/python3
"""Writes the goldens of kv_event_encoder_test.cc with Debian's python3-msgpack. The maps are those that vLLM's
classes encode to; tests/integration/check_kv_events_with_vllm.py checks that by hand.

    tests/scheduler/kv_events/make_kv_event_goldens.py
"""
import pathlib

import msgpack

FOLDER = pathlib.Path(__file__).parent / "testdata"


def stored(hashes, parent, tokens, block_size, extra_keys=None, window=None):
    event = {"type": "BlockStored", "block_hashes": hashes, "parent_block_hash": parent, "token_ids": tokens,
             "block_size": block_size, "lora_id": None, "medium": "GPU", "lora_name": None}
    if extra_keys is not None:
        event["extra_keys"] = extra_keys
    event["group_idx"] = 0
    event["kv_cache_spec_kind"] = "full_attention" if window is None else "sliding_window"
    if window is not None:
        event["kv_cache_spec_sliding_window"] = window
    return event


def removed(hashes):
    return {"type": "BlockRemoved", "block_hashes": hashes, "medium": "GPU", "group_idx": 0}


def write(name, *events):
    (FOLDER / name).write_bytes(msgpack.packb([1234.5, list(events), 0]))


FOLDER.mkdir(exist_ok=True)
write("cleared.msgpack", {"type": "AllBlocksCleared"})
write("stored.msgpack", stored([1, 2**64 - 1], None, [0, 127, 128, 65535, 65536, 2**31 - 1], 3))
write("child.msgpack", stored([300], 2**63, [5, 6], 2), removed([127, 70000]))
write("salted.msgpack", stored([7, 8, 9], None, [1, 2, 3], 1, extra_keys=[["tenant \u00e4"], None, None]))
write("binary_salt.msgpack", stored([7], None, [1], 1, extra_keys=[["ff00"]]))
write("window.msgpack", stored([7], 6, [1], 1, window=4096))
write("many.msgpack", stored(list(range(40)), None, list(range(640)), 16), removed(list(range(300))))
