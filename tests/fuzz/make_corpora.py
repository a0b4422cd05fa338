#!/usr/bin/env python3
"""Makes the seeds of text, files and events in tests/fuzz/corpus from the data of other tests.

    tests/fuzz/make_corpora.py

A seed is small and shows one thing: a tokenizer.json with all its parts and a few tokens, one string, a few
tokens, a few stop strings with text, a file of a model with small tensors, some events.

make_message_corpora.cc makes the seeds of messages.
"""

import json
import pathlib
import random
import re
import struct
import sys

HERE = pathlib.Path(__file__).resolve().parent
TEXT_DATA = HERE.parent / "scheduler" / "text" / "testdata"
MODELS = HERE.parent / "worker" / "model" / "testdata"
GATEWAY = HERE.parent / "deploy" / "gateway"
MAX_MERGES = 6
MAX_STRING_BYTES = 60


def write(target, name, data):
    folder = HERE / "corpus" / target
    folder.mkdir(parents=True, exist_ok=True)
    (folder / name).write_bytes(data)


def reduced(tokenizer):
    """Returns the same file with few merges. It keeps the tokens that the merges or other parts need."""
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


def small_tokenizer(normalizer, splits, added=(), merges=("a a",)):
    byte_level = {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": False}
    return {"added_tokens": list(added), "normalizer": normalizer,
            "pre_tokenizer": {"type": "Sequence", "pretokenizers": [*splits, byte_level]},
            "decoder": {"type": "ByteLevel"},
            "model": {"type": "BPE", "vocab": {"a": 0, "b": 1, "aa": 2}, "merges": list(merges)}}


def split(pattern):
    return {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False}


def added_token(content, number=3):
    return {"id": number, "content": content, "single_word": False, "lstrip": False, "rstrip": False,
            "normalized": False, "special": True}


def hostile_tokenizers():
    """Returns files of tokenizers that would take much time or memory."""
    metaspace = {"type": "Metaspace", "replacement": "b", "prepend_scheme": "always", "split": False}
    replace = {"type": "Replace", "pattern": {"String": "a"}, "content": "a" * 64}
    spaces = added_token(" ") | {"lstrip": True, "rstrip": True, "normalized": True, "special": False}
    return {"slow_pattern": small_tokenizer(None, [split("(a+)+c|a")]),
            "slow_text": small_tokenizer(None, [split("a*c|a")]),
            "replace": small_tokenizer({"type": "Sequence", "normalizers": [replace, replace]}, []),
            "metaspaces": small_tokenizer(None, [split("."), metaspace] * 8),
            "strips": small_tokenizer({"type": "NFKD"}, [], [spaces])}


def template(num_ids, num_uses):
    """Returns a post-processor that puts one special token of num_ids ids behind the text, num_uses times."""
    single = [{"Sequence": {"id": "A", "type_id": 0}}, *[{"SpecialToken": {"id": "x", "type_id": 0}}] * num_uses]
    return {"type": "TemplateProcessing", "single": single, "pair": [],
            "special_tokens": {"x": {"id": "x", "ids": [0] * num_ids, "tokens": ["a"] * num_ids}}}


def tokenizers_at_bounds():
    """Returns files by name. A name says whether its file is at a bound or past it."""
    files = {}
    for past, more in (("at", 0), ("past", 1)):
        files[f"last_id_{past}_bound"] = small_tokenizer(None, [], [added_token("c", 7 + more)])
        files[f"added_token_bytes_{past}_bound"] = small_tokenizer(None, [], [added_token("c" * (256 + more))])
        files[f"repeat_{past}_bound"] = small_tokenizer(None, [split("a{1,%d}" % (256 + more))])
        files[f"repeat_behind_class_{past}_bound"] = small_tokenizer(None, [split("[a:]b{%d}" % (256 + more))])
        files[f"group_{past}_bound"] = small_tokenizer(None, [split("(?<n>a)" if more else "(?<=a)b")])
        files[f"template_ids_{past}_bound"] = small_tokenizer(None, []) | {"post_processor": template(32, 32 + more)}
        files[f"pattern_bytes_{past}_bound"] = small_tokenizer(None, [split("a" * (4096 + more))])
        files[f"end_token_{past}_bound"] = small_tokenizer(None, []) | {
            "post_processor": {"type": "RobertaProcessing", "sep": ["c", 2 + more], "cls": ["a", 0],
                               "trim_offsets": True, "add_prefix_space": False}}
        files[f"merge_{past}_bound"] = small_tokenizer(None, [], merges=["b b" if more else "a a"])
    return files


def safetensors(tensors, num_bytes=None):
    """Returns a file with tensors of these names, types, shapes and sizes in bytes, one behind the other. A
    tensor's fifth number is the hole before it. num_bytes sets the size of data that the tensors do not fit."""
    header, end = {"__metadata__": {"format": "pt"}}, 0
    for name, dtype, shape, size, *hole in tensors:
        begin = end + sum(hole)
        end = begin + size
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}
    text = json.dumps(header).encode()
    data = bytes(i % 251 for i in range(end if num_bytes is None else num_bytes))
    return len(text).to_bytes(8, "little") + text + data


def indexes_at_bounds():
    def index(shard, total_size=9):
        return json.dumps({"metadata": {"total_size": total_size}, "weight_map": {"a": shard}}).encode()

    return {"shard_at_bound": index("b.c"), "shard_in_a_folder_past_bound": index("b/c"),
            "shard_above_past_bound": index(".."), "shard_here_past_bound": index("."),
            "shard_without_a_name_past_bound": index(""), "total_size_at_bound": index("b", 2**53),
            "total_size_past_bound": index("b", 2**53 + 2), "total_size_of_halves_past_bound": index("b", 0.5),
            "least_total_size_at_bound": index("b", 0), "least_total_size_past_bound": index("b", -1)}


def write_safetensors_at_bounds():
    """Writes files past a bound, which a rule off by one lets through, and files at it. replay_main.cc compares
    their names with the results."""
    two = [("a", "F32", [2], 8), ("b", "BF16", [3], 6)]
    whole = safetensors(two)
    seeds = {"two_at_bound": whole,
             "hole_before_past_bound": safetensors([("a", "F32", [2], 8, 1)]),
             "hole_between_past_bound": safetensors([two[0], ("b", "BF16", [3], 6, 1)]),
             "overlap_past_bound": safetensors([two[0], ("b", "BF16", [3], 6, -1)], 13),
             "byte_missing_past_bound": safetensors(two, 13),
             "byte_too_many_past_bound": safetensors(two, 15),
             "short_for_its_shape_past_bound": safetensors([("a", "F32", [2], 7)]),
             "long_for_its_shape_past_bound": safetensors([("a", "F32", [2], 9)]),
             "whole_bytes_at_bound": safetensors([("a", "F4", [4], 2)]),
             "whole_bytes_past_bound": safetensors([("a", "F4", [5], 2)]),
             "header_size_at_bound": safetensors([]),
             "header_size_past_bound": (len(safetensors([])) - 7).to_bytes(8, "little") + safetensors([])[8:],
             "no_header_past_bound": bytes(8),
             "seven_bytes_past_bound": bytes(7),
             "overflow_past_bound": safetensors([("a", "F32", [2**62, 2, 2], 0)]),
             "negative_past_bound": safetensors([("a", "F32", [-2, -1], 8)])}
    for past, rank in (("at", 16), ("past", 17)):
        seeds[f"rank_{past}_bound"] = safetensors([("a", "U8", [1] * rank, 1)])
    for name, data in (seeds | indexes_at_bounds()).items():
        write("safetensors", name, data)


def gguf_string(text):
    return struct.pack("<Q", len(text)) + text


def gguf(keys=(), tensors=(), data=b"", version=3, alignment=32):
    """Returns a GGUF file. A key is (name, type, bytes of the value), a tensor (name, dims, type, offset)."""
    header = b"GGUF" + struct.pack("<IQQ", version, len(tensors), len(keys))
    for name, value_type, value in keys:
        header += gguf_string(name) + struct.pack("<I", value_type) + value
    for name, dims, tensor_type, offset in tensors:
        header += gguf_string(name) + struct.pack(f"<I{len(dims)}QIQ", len(dims), *dims, tensor_type, offset)
    return header + bytes(-len(header) % alignment) + data if data else header


def gguf_array(element_type, count, elements):
    return b"k", 9, struct.pack("<IQ", element_type, count) + elements


def gguf_split(second_no, num_parts=2, num_tensors=2):
    """Returns two parts behind the number of 32-byte units of the first."""
    def part(number, name):
        keys = [(b"split.no", 2, struct.pack("<H", number)), (b"split.count", 2, struct.pack("<H", num_parts)),
                (b"split.tensors.count", 5, struct.pack("<i", num_tensors))]
        return gguf(keys, [(name, [2], 24, 0)], b"ab" + bytes(30))

    first = part(0, b"a")
    return bytes([len(first) // 32]) + first + part(second_no, b"b")


def write_gguf():
    """Writes GGUF files at bounds and past them, and one file with all types of values."""
    scalars = [(b"%d" % t, t, bytes([1] * n)) for t, n in enumerate((1, 1, 2, 2, 4, 4, 4, 1))]
    scalars += [(b"%d" % t, t, bytes([1] * 8)) for t in (10, 11, 12)]
    texts = gguf_array(8, 3, gguf_string(b"a") + gguf_string(b"") + gguf_string(b"bc"))
    blocks = [(b"a", [32, 2], 2, 0), (b"b", [256], 14, 64), (b"c", [2, 3], 0, 288), (b"d", [], 24, 320)]
    write("gguf", "all_at_bound", gguf([*scalars, (b"s", 8, gguf_string(b"text")), texts], blocks, bytes(321)))
    alignment = b"general.alignment"
    bounds = {"alignment": [([(alignment, 4, struct.pack("<I", n))],) for n in (8, 4)],
              "largest_alignment": [([(alignment, 4, struct.pack("<I", n))],) for n in (65_536, 131_072)],
              "power_of_two": [([(alignment, 4, struct.pack("<I", n))],) for n in (16, 24)],
              "version": [((), (), b"", n) for n in (2, 1)],
              "newest_version": [((), (), b"", n) for n in (3, 4)],
              "value_type": [([(b"k", t, bytes(8))],) for t in (12, 13)],
              "bool": [([gguf_array(7, 2, bytes([0, n]))],) for n in (1, 2)],
              "nested": [([gguf_array(t, 1, bytes(12))],) for t in (4, 9)],
              "string": [([(b"k", 8, struct.pack("<Q", n) + b"ab")],) for n in (2, 3)],
              "array": [([gguf_array(10, n, bytes(16))],) for n in (2, 3)],
              "key": [([(b"k", 0, b"a"), (name, 0, b"a")],) for name in (b"l", b"k")],
              "nameless_key": [([(name, 0, b"a")],) for name in (b"k", b"")],
              "name": [((), [(b"n" * n, [1], 24, 0)], b"a") for n in (256, 257)],
              "same_name": [((), [(b"n", [1], 24, 0), (name, [1], 24, 32)], bytes(33)) for name in (b"m", b"n")],
              "rank": [((), [(b"n", [1] * n, 24, 0)], b"a") for n in (4, 5)],
              "dimension": [((), [(b"n", [2, n], 24, 0)], bytes(2)) for n in (1, 0)],
              "product": [((), [(b"n", dims, 24, 0)], b"a") for dims in ([1, 1], [2**32 + 1, 2**32])],
              "type": [((), [(b"n", [256], t, 0)], bytes(2048)) for t in (41, 42)],
              "removed_type": [((), [(b"n", [32], t, 0)], bytes(64)) for t in (3, 4)],
              "block": [((), [(b"n", [n], 2, 0)], bytes(64)) for n in (64, 48)],
              "offset": [((), [(b"n", [1], 24, n)], bytes(33)) for n in (32, 16)],
              "end": [((), [(b"n", [n], 24, 32)], bytes(40)) for n in (8, 9)],
              "overlap": [((), [(b"m", [n], 24, 0), (b"n", [1], 24, 32)], bytes(33)) for n in (32, 33)]}
    for name, (allowed, refused) in bounds.items():
        write("gguf", f"{name}_at_bound", gguf(*allowed))
        write("gguf", f"{name}_past_bound", gguf(*refused))
    write("gguf", "split_at_bound", gguf_split(1))
    write("gguf", "split_no_past_bound", gguf_split(2))
    write("gguf", "split_count_past_bound", gguf_split(1, num_parts=3))
    write("gguf", "split_tensors_past_bound", gguf_split(1, num_tensors=3))


def gguf_strings(texts):
    return 9, struct.pack("<IQ", 8, len(texts)) + b"".join(map(gguf_string, texts))


def gguf_model(changes=(), model=b"gpt2"):
    """Returns a GGUF model with the tokens of all bytes and one merge. changes: keys with other types and values."""
    # GPT-2 writes bytes as printable characters, and the others from U+0100 on.
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in printable]
    tokens = [b"<unk>", b"<s>", b"</s>", b"on", b"o", b"n"]
    if model == b"gpt2":
        tokens[4:] = [chr(byte).encode() for byte in printable]
        tokens += [chr(256 + i).encode() for i in range(len(others))]
        num_bytes = 0
    else:
        tokens += [b"<0x%02X>" % byte for byte in range(256)]
        num_bytes = 256
    types = [2, 3, 3] + [1] * (len(tokens) - 3 - num_bytes) + [6] * num_bytes
    scores = [-float(i) for i in range(len(tokens))]
    keys = {b"general.architecture": (8, gguf_string(b"llama")),
            b"tokenizer.ggml.model": (8, gguf_string(model)),
            b"tokenizer.ggml.tokens": gguf_strings(tokens),
            b"tokenizer.ggml.token_type": (9, struct.pack(f"<IQ{len(types)}i", 5, len(types), *types)),
            b"tokenizer.ggml.scores": (9, struct.pack(f"<IQ{len(scores)}f", 6, len(scores), *scores)),
            b"tokenizer.ggml.merges": gguf_strings([b"o n"]),
            b"tokenizer.ggml.eos_token_id": (4, struct.pack("<I", 2)),
            b"llama.attention.layer_norm_rms_epsilon": (6, struct.pack("<f", 1e-5))}
    for name, number in (("block_count", 1), ("embedding_length", 64), ("feed_forward_length", 96),
                         ("attention.head_count", 4), ("attention.head_count_kv", 2), ("context_length", 256)):
        keys[b"llama." + name.encode()] = (4, struct.pack("<I", number))
    keys |= dict(changes)
    return gguf([(name, *value) for name, value in keys.items()], [(b"token_embd.weight", [1], 0, 0)], bytes(4))


def write_gguf_models():
    """Writes GGUF models of both tokenizers at bounds and past them."""
    for model in (b"gpt2", b"llama"):
        write("gguf_model", f"{model.decode()}_at_bound", gguf_model(model=model))
    bounds = {"heads": (b"llama.attention.head_count", 4, 5),
              "kv_heads": (b"llama.attention.head_count_kv", 4, 8),
              "layers": (b"llama.block_count", 1, 0),
              "eos": (b"tokenizer.ggml.eos_token_id", 258, 1 << 30)}
    for name, (key, allowed, refused) in bounds.items():
        write("gguf_model", f"{name}_at_bound", gguf_model({key: (4, struct.pack("<I", allowed))}))
        write("gguf_model", f"{name}_past_bound", gguf_model({key: (4, struct.pack("<I", refused))}))
    merges = b"tokenizer.ggml.merges"
    write("gguf_model", "merge_past_bound", gguf_model({merges: gguf_strings([b"o x y"])}))
    write("gguf_model", "pre_past_bound", gguf_model({b"tokenizer.ggml.pre": (8, gguf_string(b"unheard"))}))
    write("gguf_model", "pre_at_bound", gguf_model({b"tokenizer.ggml.pre": (8, gguf_string(b"llama-bpe"))}))


def reduced_config(path):
    """Returns a config without the fields that no model reads."""
    unread = re.compile("_name_or_path|.*2(label|id)|chunk_.*|initializer_.*|is_enc.*|output_.*|problem_.*|return_.*|"
                        "pretraining_.*|use_cache|.*dropout.*|pad_token_id|transformers_.*|init_std|prefix|layerdrop")
    return {key: value for key, value in json.loads(path.read_text()).items() if not unread.fullmatch(key)}


def quantization(config, field, allowed, refused):
    return "quantization_config", config | {field: allowed}, config | {field: refused}


def write_configs():
    """Writes the tests' configs, and configs with a number at its bound and with the next one, past it."""
    for path in sorted(MODELS.glob("*/config.json")):
        write("model_config", path.parent.name, json.dumps(reduced_config(path)).encode())
    for path in sorted(MODELS.parent.glob("quantized_models/*/config.json")):
        if not path.parent.name.endswith("_decoded"):
            write("model_config", path.parent.name, json.dumps(reduced_config(path)).encode())
    bounds = {"llama": [("vocab_size", 1 << 22, (1 << 22) + 1), ("vocab_size", 3, 0),
                        ("hidden_size", 1 << 18, (1 << 18) + 1), ("hidden_size", 1, 0),
                        ("intermediate_size", 1 << 20, (1 << 20) + 1), ("num_hidden_layers", 1024, 1025),
                        ("num_hidden_layers", 1, 0), ("num_attention_heads", 4096, 4097),
                        ("num_attention_heads", 2, 0), ("num_attention_heads", 2, 3),
                        ("num_key_value_heads", 4, 5), ("num_key_value_heads", 4, 3),
                        ("num_key_value_heads", 1, 0), ("num_key_value_heads", 4, 8), ("head_dim", 1024, 1026),
                        ("head_dim", 2, 0), ("head_dim", 8, 7), ("max_position_embeddings", 1 << 24, (1 << 24) + 1),
                        ("max_position_embeddings", 2, 1), ("rms_norm_eps", 1.0, 1.01), ("rms_norm_eps", 0, -0.5),
                        ("bos_token_id", 95, 96), ("bos_token_id", 0, -1), ("eos_token_id", 95, 96),
                        ("eos_token_id", [0, 95], [0, 96]), ("eos_token_id", 0, -1),
                        quantization({"quant_method": "awq", "bits": 4}, "group_size", 1 << 20, (1 << 20) + 1),
                        quantization({"quant_method": "awq", "bits": 4}, "group_size", -1, 0),
                        quantization({"quant_method": "gptq"}, "bits", 8, 9),
                        quantization({"quant_method": "gptq"}, "bits", 4, 3),
                        quantization({"quant_method": "fp8"}, "weight_block_size", [1, 1 << 20], [0, 1]),
                        quantization({"quant_method": "compressed-tensors"}, "ignore", ["re:a"] * 64, ["re:a"] * 65),
                        quantization({"quant_method": "compressed-tensors"}, "ignore", ["re:a+"], ["re:+"])],
              "mistral": [("sliding_window", 1, 0), ("sliding_window", 1 << 24, (1 << 24) + 1)],
              "llama3_rope_old_style": [("rope_theta", 1, 0), ("rope_theta", 1e12, 2e12)],
              "llama_yarn_rope": [("rope_scaling", {"type": "yarn", "factor": 4} | allowed, {"type": "yarn", "factor": 4} | refused)
                                  for allowed, refused in (({"beta_slow": 32}, {"beta_slow": 33}),
                                                           ({"attention_factor": 1e6}, {"attention_factor": 2e6}),
                                                           ({"mscale": 1e6, "mscale_all_dim": 1e-9}, {"mscale": -1}))],
              "llama_longrope": [("rope_scaling", {"type": "longrope", "short_factor": [1e-6] * 8, "long_factor": [1e6] * 8},
                                  {"type": "longrope", "short_factor": [1] * 8, "long_factor": [1] * 9})],
              "llava_text": [("tie_word_embeddings", True, 1), ("quantization_config", None, {"quant_method": "unheard of"})],
              "qwen2": [("layer_types", ["full_attention"] * 3, ["full_attention"] * num) for num in (2, 4)]}
    for model, fields in bounds.items():
        config = reduced_config(MODELS / model / "config.json")
        for i, (field, allowed, refused) in enumerate(fields):
            for past, value in (("at", allowed), ("past", refused)):
                text = json.dumps(config | {field: value})
                write("model_config", f"{model}_{i:02}_{field}_{past}_bound", text.encode())


def write_model_files():
    write_configs()
    index = json.loads((MODELS / "llama_sharded" / "model.safetensors.index.json").read_text())
    index["weight_map"] = dict(list(index["weight_map"].items())[::8])
    write("safetensors", "index", json.dumps(index).encode())
    write("safetensors", "empty", safetensors([]))
    write("safetensors", "types", safetensors([("a", "F32", [2, 3], 24), ("b", "BF16", [], 2),
                                               ("c", "F4", [4], 2), ("d", "I64", [0, 5], 0)]))
    write_safetensors_at_bounds()


def write_api_keys():
    line = "0123456789abcdefABCDEF" + 42 * "0"
    write("api_keys", "lines", f"# two\n\n{line} alice\r\n \t{line[::-1]}\tb.o_b-2 \n".encode())
    for past, length in (("at", 128), ("past", 129)):
        write("api_keys", f"tenant_{past}_bound", f"{line} {length * 'a'}\n{line[::-1]} a".encode())
    for past, hexadecimal in (("at", line), ("past", line[1:]), ("past", line + "0"), ("past", line[:-1] + "g")):
        write("api_keys", f"hash_{len(hexadecimal)}_{hexadecimal[-1]}_{past}_bound", f"{hexadecimal} a".encode())
    write("api_keys", "same_past_bound", f"{line} a\n{line.lower()} b".encode())
    for past, number in (("at", 1024), ("past", 1025)):
        write("api_keys", f"keys_{past}_bound", "".join(f"{i:064x} a\n" for i in range(number)).encode())


def write_http_requests():
    """The first byte is the size of the pieces, the second the limit of the body in units of 16 bytes."""
    def seed(name, text, pieces=3, limit=1):
        write("http_request", name, bytes([pieces, limit]) + text.encode("latin-1"))

    def post(headers, body=""):
        return f"POST /a HTTP/1.1\r\nHost: b\r\n{headers}\r\n{body}"

    chunked = "Transfer-Encoding: chunked\r\n"
    seed("get_at_bound", "GET /a%2Fb?c=d HTTP/1.1\r\nHost: e\r\nX: f\r\n\r\nGET")
    seed("old_at_bound", "HEAD / HTTP/1.0\r\n\r\n")
    seed("chunks_at_bound", post(chunked, "a\r\n0123456789\r\n6;x=\"y\"\r\nabcdef\r\n0\r\nX: y\r\n\r\n"))
    seed("chunks_past_bound", post(chunked, "a\r\n0123456789\r\n7\r\nabcdefg\r\n0\r\n\r\n"))
    for size, past in ((16, "at"), (17, "past")):
        seed(f"body_{past}_bound", post(f"Content-Length: {size}\r\n", size * "x"))
    for size, past in ((256, "at"), (257, "past")):
        seed(f"extension_{past}_bound", post(chunked, f"1;{(size - 1) * 'x'}\r\na\r\n0\r\n\r\n"), pieces=99)
    refused = {
        "two_lengths": post("Content-Length: 1\r\nContent-Length: 1\r\n", "a"),
        "length_and_chunks": post("Content-Length: 1\r\n" + chunked, "0\r\n\r\n"),
        "list_of_lengths": post("Content-Length: 1, 1\r\n", "a"),
        "two_encodings": post("Transfer-Encoding: gzip, chunked\r\n", "0\r\n\r\n"),
        "other_encoding": post("Transfer-Encoding: gzip\r\n", "0\r\n\r\n"),
        "folded": post("X: a\r\n b\r\n"),
        "line_feed": post("X: a\nY: b\r\n"),
        "return": post("X: a\rY: b\r\n"),
        "control_byte": post("X: a\x01\r\n"),
        "control_byte_in_a_quoted_extension": post(chunked, "1;x=\"\n\"\r\na\r\n0\r\n\r\n"),
        "two_hosts": post("Host: c\r\n"),
        "no_host": "GET / HTTP/1.1\r\n\r\n",
        "absolute_target": "GET http://b/a HTTP/1.1\r\nHost: b\r\n\r\n",
        "byte_of_the_target": "GET /a\x80 HTTP/1.1\r\nHost: b\r\n\r\n",
        "hidden_control_byte": "GET /a%0a HTTP/1.1\r\nHost: b\r\n\r\n",
        "http_2": "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    }
    for name, text in refused.items():
        seed(f"{name}_past_bound", text)


def write_http_responses():
    """The first byte is the size of the pieces; the second is 1 for the answer to HEAD."""
    def seed(name, text, pieces=3, is_head=0):
        write("http_response", name, bytes([pieces, is_head]) + text.encode("latin-1"))

    def answer(headers, body="", status="200 OK"):
        return f"HTTP/1.1 {status}\r\n{headers}\r\n{body}"

    chunked = "Transfer-Encoding: chunked\r\n"
    events = "\xef\xbb\xbfdata: a\rdata:b\r\n\r\n:c\nid: 1\ndata\n\ndata: [DONE]\n\ndata: d\n\n"
    seed("length_at_bound", answer("Content-Length: 2\r\nContent-Type: text/plain\r\n", "ab"))
    seed("to_the_end_at_bound", answer("Connection: close\r\n", events))
    seed("events_at_bound", answer(chunked, f"{len(events):x}\r\n{events}\r\n0\r\nX: y\r\n\r\n"))
    seed("head_at_bound", answer("Content-Length: 2\r\n"), is_head=1)
    seed("interim_at_bound", answer("", answer("Content-Length: 0\r\n"), "100 Continue"))
    seed("nothing_at_bound", answer("", status="204 No Content"))
    for size, past in ((64, "at"), (65, "past")):
        seed(f"event_{past}_bound", answer("", "data: " + (size - 6) * "x" + "\n\n"))
    refused = {
        "cut": answer("Content-Length: 2\r\n", "a"),
        "cut_in_a_chunk": answer(chunked, "2\r\na"),
        "cut_in_the_header": "HTTP/1.1 200 OK\r\n",
        "two_lengths": answer("Content-Length: 1\r\nContent-Length: 2\r\n", "ab"),
        "size_of_a_chunk": answer(chunked, "g\r\na\r\n0\r\n\r\n"),
        "control_byte_in_a_quoted_extension": answer(chunked, "1;x=\"\n\"\r\na\r\n0\r\n\r\n"),
        "version": "HTTP/2 200 OK\r\n\r\n",
    }
    for name, text in refused.items():
        seed(f"{name}_past_bound", text)


OPENAI_ROUTES = ("completions", "chat", "tokenize", "detokenize")


def write_openai():
    """The first byte is the route. Lists are one longer past a bound than at it."""
    lines = (HERE.parent / "deploy/gateway/testdata/openai_bodies.txt").read_text().splitlines()
    rows = [line.split(" ", 4) for line in lines if not line.startswith("#")]
    accepted = [(route, body) for route, status, _, _, body in rows if status == "200"]
    for i, (route, body) in enumerate(accepted):
        if i % 5 == 0:
            write("openai", f"{route}_{i:03}", bytes([OPENAI_ROUTES.index(route)]) + body.encode())
    bounds = {
        "prompts": (128, lambda n: {"prompt": ["a"] * n}),
        "n": (16, lambda n: {"prompt": "a", "n": n}),
        "stop": (16, lambda n: {"prompt": "a", "stop": ["x"] * n}),
        "stop_bytes": (256, lambda n: {"prompt": "a", "stop": "x" * n}),
        "stop_token_ids": (64, lambda n: {"prompt": "a", "stop_token_ids": [1] * n}),
        "logit_bias": (300, lambda n: {"prompt": "a", "logit_bias": {str(i): 1 for i in range(n)}}),
        "salt": (128, lambda n: {"prompt": "a", "cache_salt": "x" * n}),
        "request_id": (100, lambda n: {"prompt": "a", "request_id": "x" * n}),
        "model": (256, lambda n: {"prompt": "a", "model": "x" * n}),
        "max_tokens": (2**31 - 1, lambda n: {"prompt": "a", "max_tokens": n}),
        "seed": (2**63 - 1, lambda n: {"prompt": "a", "seed": n}),
    }
    for name, (bound, body) in bounds.items():
        write("openai", f"{name}_at_bound", b"\0" + json.dumps(body(bound)).encode())
        write("openai", f"{name}_past_bound", b"\0" + json.dumps(body(bound + 1)).encode())
    variables = [{f"k{i}": 1 for i in range(n)} for n in (64, 65)]
    for name, kwargs in zip(("at", "past"), variables):
        body = json.dumps({"messages": [{"role": "user"}], "chat_template_kwargs": kwargs})
        write("openai", f"template_variables_{name}_bound", b"\1" + body.encode())


def write_chat_templates():
    sys.path.insert(0, str(GATEWAY))
    import conversations  # pylint: disable=import-outside-toplevel
    import template_cases  # pylint: disable=import-outside-toplevel
    variables = dict(conversations.all_variables())["tool call/2"]
    for name, source in template_cases.CHATS.items():
        write("chat_template", name, source.encode() + b"\0" + json.dumps(variables)[:900].encode())
    for i in range(0, len(template_cases.SMALL), 4):
        source = "\n".join(template_cases.SMALL[i:i + 4])
        write("chat_template", f"small_{i}", source.encode("utf-8", "replace"))
    write("chat_template", "depth_at_bound", b"{{ " + b"(" * 59 + b"1" + b")" * 59 + b" }}")
    write("chat_template", "depth_past_bound", b"{{ " + b"(" * 60 + b"1" + b")" * 60 + b" }}")


def main():
    write_openai()
    write_model_files()
    write_gguf()
    write_gguf_models()
    write_api_keys()
    write_http_requests()
    write_http_responses()
    write_chat_templates()
    events = random.Random(1)
    for i in range(8):
        write("core", f"events_{i}", events.randbytes(400))
        write("kv_cache", f"operations_{i}", events.randbytes(400))

    for name, tokenizer in (hostile_tokenizers() | tokenizers_at_bounds()).items():
        write("tokenizer_json", name, json.dumps(tokenizer).encode())
    for path in sorted(TEXT_DATA.glob("*.tokenizer.json")):
        text = json.dumps(reduced(json.loads(path.read_text())), ensure_ascii=False)
        write("tokenizer_json", path.name, text.encode())

    strings = [s.encode() for s in json.loads((TEXT_DATA / "strings.json").read_text())]
    short = [s for s in strings if 0 < len(s) <= MAX_STRING_BYTES]
    for i, string in enumerate(short[:: max(1, len(short) // 48)]):
        write("encode", f"string_{i:02}", bytes([i % 3 | (i % 4) << 6]) + string)
    added = [b"<|end_of_text|>", b"</s>", b" <|end|>[LEFT]  [RIGHT]  word <Tool>"]
    for i, text in enumerate(added):
        for choice in (i, i | 0x80):
            write("encode", f"added_{choice:03}", bytes([choice]) + b"one " + text + b"day" + text * 2)
        write("encode", f"long_word_{i}", bytes([i]) + b"theretherearethreehundredreasons" * 4 + b"\xc3\xa9" * 9)
    for i, text in enumerate((b"\xed\x9f\xbf", b"\xed\xa0\x80", b"\xf4\x8f\xbf\xbf", b"\xf4\x90\x80\x80",
                              b"\xc2\x80", b"\xc1\xbf", b"\xe0\xa0\x80", b"\xe0\x9f\xbf")):
        past = "past" if i % 2 else "at"
        write("encode", f"utf8_{i // 2}_{past}_bound", b"\x00a" + text)

    for i in range(3):
        ids = b"".join((8 + n * 37 % 900).to_bytes(2, "little") for n in range(24))
        write("detokenizer", f"tokens_{i}", bytes([i, 6]) + ids)
        write("detokenizer", f"bytes_{i}", bytes([i | 0x80, 0]) + bytes(n for b in range(0, 256, 5) for n in (b, 0)))

    write("stop_matcher", "none", bytes([0]) + b"\x03abc\x02de")
    write("stop_matcher", "overlap", bytes([2]) + b"\x04abcd\x02bc" + b"\x01a\x02bc\x01d")
    write("stop_matcher", "periodic", bytes([0x81]) + b"\x03aab" + b"\x04aaaa\x01b")
    write("stop_matcher", "equal", bytes([3]) + b"\x01b\x02ab\x02ab" + b"\x03xab")
    write("stop_matcher", "bytes_at_limit", bytes([1]) + b"\xff" + b"a" * 256)
    write("stop_matcher", "bytes_over_limit", bytes([1]) + b"\xff" + b"a" * 257)
    write("stop_matcher", "character", bytes([1]) + b"\x03\xe2\x82\xac" + b"\x02\xe2\x82\x01\xac")


if __name__ == "__main__":
    main()
