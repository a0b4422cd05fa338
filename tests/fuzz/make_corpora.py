#!/usr/bin/env python3
"""Makes the seeds of text, files and events in tests/fuzz/corpus from what other tests have.

    tests/fuzz/make_corpora.py

A seed is small and shows one thing: a tokenizer.json with all its parts and a few tokens, one string, a few
tokens, a few stop strings with text, a file of a model with small tensors, some events.

make_message_corpora.cc makes those of messages.
"""

import json
import pathlib
import random

HERE = pathlib.Path(__file__).resolve().parent
TEXT_DATA = HERE.parent / "scheduler" / "text" / "testdata"
MODELS = HERE.parent / "worker" / "model" / "testdata"
MAX_MERGES = 6
MAX_STRING_BYTES = 60


def write(target, name, data):
    folder = HERE / "corpus" / target
    folder.mkdir(parents=True, exist_ok=True)
    (folder / name).write_bytes(data)


def reduced(tokenizer):
    """The same file with few merges, the tokens that they need and those that other parts name."""
    model = tokenizer["model"]
    merges = [m.split(" ") if isinstance(m, str) else m for m in model["merges"]][:MAX_MERGES]
    named = {token["content"] for token in tokenizer["added_tokens"]} | {model.get("unk_token")}
    named |= {"<0x41>", "<0xC3>", "\u2581"}
    kept = named | {text for pair in merges for text in (*pair, "".join(pair))}
    texts = [text for text in model["vocab"] if text in kept]
    ids = {text: i for i, text in enumerate(texts)}
    for token in tokenizer["added_tokens"]:
        ids.setdefault(token["content"], len(ids))
        token["id"] = ids[token["content"]]
    model["vocab"] = {text: ids[text] for text in texts}
    model["merges"] = merges
    renumber(tokenizer.get("post_processor"), ids)
    return tokenizer


def renumber(node, ids):
    """Gives the tokens of a post-processor their new ids."""
    if not isinstance(node, dict):
        return
    for special in node.get("special_tokens", {}).values():
        special["ids"] = [ids[text] for text in special["tokens"]]
    for key in ("sep", "cls"):
        if key in node:
            node[key] = [node[key][0], ids[node[key][0]]]
    for inner in node.get("processors", []):
        renumber(inner, ids)


def hostile_files():
    """Files that ask for what is slow or large."""
    byte_level = {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": False}

    def file(normalizer, splits, added=()):
        return {"added_tokens": list(added), "normalizer": normalizer,
                "pre_tokenizer": {"type": "Sequence", "pretokenizers": [*splits, byte_level]},
                "decoder": {"type": "ByteLevel"},
                "model": {"type": "BPE", "vocab": {"a": 0, "b": 1, "aa": 2}, "merges": ["a a"]}}

    def split(pattern):
        return {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False}

    metaspace = {"type": "Metaspace", "replacement": "b", "prepend_scheme": "always", "split": False}
    replace = {"type": "Replace", "pattern": {"String": "a"}, "content": "a" * 64}
    spaces = {"id": 3, "content": " ", "single_word": False, "lstrip": True, "rstrip": True,
              "normalized": True, "special": False}
    return {"slow_pattern": file(None, [split("(a+)+c|a")]),
            "slow_text": file(None, [split("a*c|a")]),
            "replace": file({"type": "Sequence", "normalizers": [replace, replace]}, []),
            "metaspaces": file(None, [split("."), metaspace] * 8),
            "strips": file({"type": "NFKD"}, [], [spaces])}


def safetensors(tensors, num_bytes=None):
    """A file with tensors of these names, types, shapes and sizes in bytes, one behind the other, and after a
    hole where a fifth number says how large it is; of so many bytes of data where they are not to fit."""
    header, end = {"__metadata__": {"format": "pt"}}, 0
    for name, dtype, shape, size, *hole in tensors:
        begin = end + sum(hole)
        end = begin + size
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}
    text = json.dumps(header).encode()
    data = bytes(i % 251 for i in range(end if num_bytes is None else num_bytes))
    return len(text).to_bytes(8, "little") + text + data


def write_safetensors_at_bounds():
    """What a rule that is off by one lets through."""
    two = [("a", "F32", [2], 8), ("b", "BF16", [3], 6)]
    write("safetensors", "two", safetensors(two))
    write("safetensors", "hole_before", safetensors([("a", "F32", [2], 8, 1)]))
    write("safetensors", "hole_between", safetensors([two[0], ("b", "BF16", [3], 6, 1)]))
    write("safetensors", "overlap", safetensors([two[0], ("b", "BF16", [3], 6, -1)]))
    write("safetensors", "byte_missing", safetensors(two, 13))
    write("safetensors", "byte_too_many", safetensors(two, 15))
    write("safetensors", "short_for_its_shape", safetensors([("a", "F32", [2], 7)]))
    write("safetensors", "long_for_its_shape", safetensors([("a", "F32", [2], 9)]))
    write("safetensors", "half_a_byte", safetensors([("a", "F4", [3], 1)]))
    whole = safetensors(two)
    write("safetensors", "header_past_the_end", len(whole[8:]).to_bytes(8, "little") + whole[8:-1])
    write("safetensors", "header_to_the_end", (len(whole) - 8 - 14).to_bytes(8, "little") + whole[8:-14])
    write("safetensors", "no_header", bytes(8))
    write("safetensors", "seven_bytes", bytes(7))
    for sizes in (16, 17):
        write("safetensors", f"sizes_{sizes}", safetensors([("a", "U8", [1] * sizes, 1)]))
    write("safetensors", "size_overflows", safetensors([("a", "F32", [2**62, 2], 8)]))


def write_model_files():
    for path in sorted(MODELS.glob("*/config.json")):
        write("model_config", path.parent.name, path.read_bytes())
    write("safetensors", "index", (MODELS / "llama_sharded" / "model.safetensors.index.json").read_bytes())
    write("safetensors", "empty", safetensors([]))
    write("safetensors", "types", safetensors([("a", "F32", [2, 3], 24), ("b", "BF16", [], 2),
                                               ("c", "F4", [4], 2), ("d", "I64", [0, 5], 0)]))
    write_safetensors_at_bounds()


def main():
    write_model_files()
    events = random.Random(1)
    for i in range(8):
        write("core", f"events_{i}", events.randbytes(400))
        write("kv_cache", f"operations_{i}", events.randbytes(400))

    for name, tokenizer in hostile_files().items():
        write("tokenizer_json", name, json.dumps(tokenizer).encode())
    for path in sorted(TEXT_DATA.glob("*.tokenizer.json")):
        text = json.dumps(reduced(json.loads(path.read_text())), ensure_ascii=False)
        write("tokenizer_json", path.name, text.encode())

    strings = [s.encode() for s in json.loads((TEXT_DATA / "strings.json").read_text())]
    short = [s for s in strings if 0 < len(s) <= MAX_STRING_BYTES]
    for i, string in enumerate(short[:: max(1, len(short) // 48)]):
        write("encode", f"string_{i:02}", bytes([i % 3 | (i % 4) << 6]) + string)

    for i in range(3):
        ids = b"".join((8 + n * 37 % 900).to_bytes(2, "little") for n in range(24))
        write("detokenizer", f"tokens_{i}", bytes([i, 6]) + ids)
        write("detokenizer", f"bytes_{i}", bytes([i | 0x80, 0]) + bytes(n for b in range(0, 256, 5) for n in (b, 0)))

    write("stop_matcher", "none", bytes([0]) + b"\x03abc\x02de")
    write("stop_matcher", "overlap", bytes([2]) + b"\x04abcd\x02bc" + b"\x01a\x02bc\x01d")
    write("stop_matcher", "periodic", bytes([0x81]) + b"\x03aab" + b"\x04aaaa\x01b")
    write("stop_matcher", "character", bytes([1]) + b"\x03\xe2\x82\xac" + b"\x02\xe2\x82\x01\xac")


if __name__ == "__main__":
    main()
