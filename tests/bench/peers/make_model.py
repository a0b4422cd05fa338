#!/usr/bin/env python3
"""make_model.py --out DIR: the benchmark's model as a Hugging Face directory: random weights in bf16, and a tokenizer.

The shape is that of tests/bench/small/config.json, or of --config. All programs read these weights, so what they
compute is the same work; the text is noise. The same arguments give the same bytes. Needs numpy.

Weights are drawn as a trained network's are sized: what writes the residual stream is divided by sqrt(2 layers), so
that activations stay near 1, and logits have a clear winner.
"""
import argparse
import json
import math
import pathlib
import struct

import numpy as np

BOS, EOS = 1, 2
SPECIAL = ["<unk>", "<s>", "</s>"]


def tensors(config):
    """Yields name, shape, mean and deviation of each tensor."""
    hidden, ffn, vocab = config["hidden_size"], config["intermediate_size"], config["vocab_size"]
    query = config["num_attention_heads"] * config["head_dim"]
    key = config["num_key_value_heads"] * config["head_dim"]
    residual = 1 / math.sqrt(2 * config["num_hidden_layers"])
    yield "model.embed_tokens.weight", (vocab, hidden), 0, 1
    for layer in range(config["num_hidden_layers"]):
        name = f"model.layers.{layer}."
        yield name + "input_layernorm.weight", (hidden,), 1, 0.1
        yield name + "self_attn.q_proj.weight", (query, hidden), 0, 1 / math.sqrt(hidden)
        yield name + "self_attn.k_proj.weight", (key, hidden), 0, 1 / math.sqrt(hidden)
        yield name + "self_attn.v_proj.weight", (key, hidden), 0, 1 / math.sqrt(hidden)
        yield name + "self_attn.o_proj.weight", (hidden, query), 0, residual / math.sqrt(query)
        yield name + "post_attention_layernorm.weight", (hidden,), 1, 0.1
        yield name + "mlp.gate_proj.weight", (ffn, hidden), 0, 1 / math.sqrt(hidden)
        yield name + "mlp.up_proj.weight", (ffn, hidden), 0, 1 / math.sqrt(hidden)
        yield name + "mlp.down_proj.weight", (hidden, ffn), 0, residual / math.sqrt(ffn)
    yield "model.norm.weight", (hidden,), 1, 0.1
    yield "lm_head.weight", (vocab, hidden), 0, 3 / math.sqrt(hidden)


def bfloat16(values):
    """The nearest bf16 of each, ties to even."""
    bits = values.view(np.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype("<u2")


def write_weights(path, config, seed):
    header, offset = {"__metadata__": {"format": "pt"}}, 0
    for name, shape, _, _ in tensors(config):
        end = offset + 2 * math.prod(shape)
        header[name] = {"dtype": "BF16", "shape": shape, "data_offsets": [offset, end]}
        offset = end
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    random = np.random.default_rng(seed)
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for _, shape, mean, deviation in tensors(config):
            values = random.standard_normal(math.prod(shape), dtype=np.float32)
            file.write(bfloat16(values * np.float32(deviation) + np.float32(mean)).tobytes())


def byte_letters():
    """The letter that byte-level BPE writes for each byte: itself where it can be seen, else one from 256 on."""
    seen = [*range(33, 127), *range(161, 173), *range(174, 256)]
    hidden = [byte for byte in range(256) if byte not in seen]
    return [chr(byte) for byte in seen] + [chr(256 + i) for i in range(len(hidden))]


def tokenizer(vocab_size):
    """Byte-level BPE: the bytes, and as many pairs of them as the vocabulary has room for."""
    letters = byte_letters()
    tokens, merges = SPECIAL + letters, []
    for first in letters:
        for second in letters[:vocab_size - len(tokens)]:
            tokens.append(first + second)
            merges.append([first, second])
    return {
        "version": "1.0", "truncation": None, "padding": None, "normalizer": None, "post_processor": None,
        "added_tokens": [{"id": i, "content": text, "single_word": False, "lstrip": False, "rstrip": False,
                          "normalized": False, "special": True} for i, text in enumerate(SPECIAL)],
        "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True},
        "decoder": {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True},
        "model": {"type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None,
                  "end_of_word_suffix": None, "fuse_unk": False, "byte_fallback": False, "ignore_merges": False,
                  "vocab": {token: i for i, token in enumerate(tokens[:vocab_size])}, "merges": merges},
    }


def main():
    small = pathlib.Path(__file__).resolve().parents[1] / "small" / "config.json"
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", required=True, type=pathlib.Path)
    parser.add_argument("--config", default=small, type=pathlib.Path)
    parser.add_argument("--seed", default=1, type=int)
    options = parser.parse_args()
    config = json.loads(options.config.read_text())
    if config["tie_word_embeddings"]:
        parser.error("a model of tied embeddings is not written")
    config |= {"bos_token_id": BOS, "eos_token_id": EOS, "hidden_act": "silu", "use_cache": True}
    options.out.mkdir(parents=True, exist_ok=True)
    files = {
        "config.json": config,
        "generation_config.json": {"bos_token_id": BOS, "eos_token_id": EOS, "do_sample": False},
        "tokenizer.json": tokenizer(config["vocab_size"]),
        "tokenizer_config.json": {"tokenizer_class": "PreTrainedTokenizerFast", "unk_token": SPECIAL[0],
                                  "bos_token": SPECIAL[BOS], "eos_token": SPECIAL[EOS],
                                  "model_max_length": config["max_position_embeddings"]},
    }
    for name, content in files.items():
        (options.out / name).write_text(json.dumps(content, indent=1) + "\n")
    write_weights(options.out / "model.safetensors", config, options.seed)


if __name__ == "__main__":
    main()
