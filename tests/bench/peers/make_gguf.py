#!/usr/bin/env python3
"""make_gguf.py --model DIR --out FILE: a Llama of bf16 with byte-level BPE, as llama.cpp reads it. Needs numpy and gguf.

The tokenizer goes along for the text of answers: prompts are token ids. As in llama.cpp's own converter, rows of Q and
K are reordered, since it rotates neighbours where the others rotate halves, and norms are fp32.
"""
import argparse
import json
import math
import pathlib

import gguf
import numpy as np

NAMES = {"self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v",
         "self_attn.o_proj": "attn_output", "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up",
         "mlp.down_proj": "ffn_down", "input_layernorm": "attn_norm", "post_attention_layernorm": "ffn_norm"}
ENDS = {"model.embed_tokens.weight": "token_embd.weight", "model.norm.weight": "output_norm.weight",
        "lm_head.weight": "output.weight"}


def name_in_gguf(name):
    if name in ENDS:
        return ENDS[name]
    _, _, layer, rest = name.split(".", 3)
    return f"blk.{layer}.{NAMES[rest.removesuffix('.weight')]}.weight"


def read_tensors(path):
    """Yields name and bf16 bits."""
    with open(path, "rb") as file:
        header = json.loads(file.read(int.from_bytes(file.read(8), "little")))
        start = file.tell()
    header.pop("__metadata__", None)
    for name, entry in header.items():
        assert entry["dtype"] == "BF16", name
        yield name, np.fromfile(path, "<u2", math.prod(entry["shape"]),
                                offset=start + entry["data_offsets"][0]).reshape(entry["shape"])


def neighbours(rows, heads):
    """Reorders rows so that the pairs of a rotation, the two halves of a head, become neighbours."""
    width = rows.shape[0] // heads
    return rows.reshape(heads, 2, width // 2, -1).swapaxes(1, 2).reshape(rows.shape)


def add_tokenizer(writer, model, vocab_size):
    """Writes the tokens in the order of their ids. Ids without a token get a name that no text has."""
    file = json.loads((model / "tokenizer.json").read_text())
    texts = {number: text for text, number in file["model"]["vocab"].items()}
    special = {token["id"]: token["content"] for token in file["added_tokens"]}
    texts |= special
    merges = [pair if isinstance(pair, str) else " ".join(pair) for pair in file["model"]["merges"]]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list([texts.get(i, f"[unused {i}]") for i in range(vocab_size)])
    writer.add_token_types([gguf.TokenType.CONTROL if i in special else
                            gguf.TokenType.NORMAL if i in texts else gguf.TokenType.UNUSED for i in range(vocab_size)])
    writer.add_token_merges(merges)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", required=True, type=pathlib.Path)
    parser.add_argument("--out", required=True, type=pathlib.Path)
    options = parser.parse_args()
    config = json.loads((options.model / "config.json").read_text())
    writer = gguf.GGUFWriter(options.out, "llama")
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_head_count_kv(config["num_key_value_heads"])
    writer.add_key_length(config["head_dim"])
    writer.add_value_length(config["head_dim"])
    writer.add_rope_dimension_count(config["head_dim"])
    writer.add_rope_freq_base(config["rope_theta"])
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_vocab_size(config["vocab_size"])
    add_tokenizer(writer, options.model, config["vocab_size"])
    writer.add_bos_token_id(config["bos_token_id"])
    writer.add_eos_token_id(config["eos_token_id"])
    writer.add_file_type(gguf.LlamaFileType.MOSTLY_BF16)
    for name, bits in read_tensors(options.model / "model.safetensors"):
        if "q_proj" in name or "k_proj" in name:
            heads = "num_attention_heads" if "q_proj" in name else "num_key_value_heads"
            bits = neighbours(bits, config[heads])
        if bits.ndim == 1:
            writer.add_tensor(name_in_gguf(name), (bits.astype(np.uint32) << 16).view(np.float32))
        else:
            writer.add_tensor(name_in_gguf(name), bits.view(np.uint8), raw_dtype=gguf.GGMLQuantizationType.BF16)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


if __name__ == "__main__":
    main()
