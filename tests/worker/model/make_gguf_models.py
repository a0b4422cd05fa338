#!/usr/bin/env python3
"""Writes the GGUF models of tests/worker/model/gguf_models.

    pip install accelerate gguf==0.19.0 safetensors torch transformers
    tests/worker/model/make_gguf_models.py

PLAIN: the golden models of testdata/ with weights of F32, F16 or BF16, bit for bit. QUANTIZED: random weight blocks.
<name>.json is their golden, as make_model_goldens.py writes it, of the weights that transformers reads from the file.
Quantized weights are rounded to bf16, except those of a token table that is not the output matrix. <name>_cpu.json has
the weights of a CPU: it keeps a layer's matrices exactly if it has products of all their types.
"""
import json
import pathlib

import gguf
import numpy as np
import torch
import transformers
from safetensors.torch import load_file

from make_model_goldens import MIN_MARGIN, golden, make_prompts, write_golden

HERE = pathlib.Path(__file__).resolve().parent
MODELS = HERE / "gguf_models"
ARCHITECTURES = {"llama": gguf.MODEL_ARCH.LLAMA, "qwen2": gguf.MODEL_ARCH.QWEN2, "qwen3": gguf.MODEL_ARCH.QWEN3}
PLAIN = {"llama": "F32", "llama_f16": "F16", "llama_bf16": "BF16", "llama_tied": "F32", "qwen2_tied": "BF16"}

COMMON = dict(vocab_size=96, max_position_embeddings=512, rms_norm_eps=1e-5, num_attention_heads=4,
              num_key_value_heads=2)
# name: (architecture, configuration, types of the layers' matrices, type of the token table, type of the output matrix)
# The types are those of q, k, v, o, gate, up and down.
QUANTIZED = {
    "llama_k_quants": ("llama", dict(COMMON, hidden_size=256, intermediate_size=256, head_dim=32),
                       ["Q4_K Q5_K Q6_K Q5_1 IQ4_XS Q2_K Q3_K"], "Q6_K", None),
    "qwen2_small_blocks": ("qwen2", dict(COMMON, hidden_size=64, intermediate_size=128, head_dim=16),
                           ["Q4_0 Q4_1 Q5_0 Q5_1 Q8_0 IQ4_NL Q4_0", "Q5_1 MXFP4 Q4_1 IQ4_NL Q5_0 Q5_0 Q8_0"],
                           "Q5_1", "Q8_0"),
    # transformers ignores another head size than 128 in files of qwen3.
    "qwen3_some_plain": ("qwen3", dict(COMMON, hidden_size=64, intermediate_size=128, num_attention_heads=2,
                                       head_dim=128),
                         ["Q8_0 Q8_0 F16 Q8_0 BF16 Q4_0 F16"], "F16", "Q4_1"),
}
CPU_PRODUCTS = {"Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "Q4_K", "Q5_K", "Q6_K", "IQ4_NL", "IQ4_XS"}
FUSED = [("q_proj", "k_proj", "v_proj"), ("gate_proj", "up_proj")]
# Places of the binary16 numbers in a block: scale, then minimum.
HALVES = {"Q4_0": [0], "Q4_1": [0, 2], "Q5_0": [0], "Q5_1": [0, 2], "Q8_0": [0], "Q2_K": [80, 82], "Q3_K": [108],
          "Q4_K": [0, 2], "Q5_K": [0, 2], "Q6_K": [208], "IQ4_NL": [0], "IQ4_XS": [0]}
# Minimums that make the mean of random codes 0, in units of the scale.
MINIMUMS = {"Q4_1": -7.5, "Q5_1": -15.5, "Q2_K": 1.5, "Q4_K": 7.5, "Q5_K": 15.5}


def type_of(name):
    return gguf.GGMLQuantizationType[name]


def blocks_like(weights, type_name, random):
    """Random blocks with the shape and the deviation of the weights; or the weights, if their type is plain."""
    if type_name not in HALVES and type_name != "MXFP4":
        return gguf.quants.quantize(weights, type_of(type_name))
    block_weights, block_bytes = gguf.GGML_QUANT_SIZES[type_of(type_name)]
    rows, cols = weights.shape
    blocks = random.integers(0, 256, (rows * cols // block_weights, block_bytes), dtype=np.uint8)
    if type_name == "MXFP4":
        blocks[:, 0] = random.integers(123, 126, len(blocks))
        return blocks.reshape(rows, -1)

    def set_scales(scale):
        sizes = scale * random.uniform(0.5, 1.5, len(blocks))
        for place, factor in zip(HALVES[type_name], [1, MINIMUMS.get(type_name)]):
            blocks[:, place:place + 2] = (factor * sizes).astype("<f2").view(np.uint8).reshape(-1, 2)

    set_scales(1.0)
    deviation = gguf.quants.dequantize(blocks, type_of(type_name)).std()
    set_scales(weights.std() / deviation)
    return blocks.reshape(rows, -1)


def permuted(weights, num_heads):
    """Rows i and i + half of each head side by side, as convert_hf_to_gguf.py writes q and k of Llama."""
    return weights.reshape(num_heads, 2, len(weights) // num_heads // 2, -1).swapaxes(1, 2).reshape(weights.shape)


def write_model(name, architecture, config, tensors):
    """tensors: Hugging Face name to (array, name of the type)."""
    writer = gguf.GGUFWriter(MODELS / f"{name}.gguf", architecture)
    writer.add_name(name)
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_head_count_kv(config["num_key_value_heads"])
    writer.add_key_length(config["head_dim"])
    writer.add_value_length(config["head_dim"])
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_rope_freq_base(10000.0)
    writer.add_rope_dimension_count(config["head_dim"])
    writer.add_vocab_size(config["vocab_size"])
    writer.add_tokenizer_model("llama")
    writer.add_token_list(["<unk>", "<s>", "</s>"] + [f"t{i}" for i in range(3, config["vocab_size"])])
    writer.add_token_scores([0.0] * config["vocab_size"])
    writer.add_token_types([2, 3, 3] + [1] * (config["vocab_size"] - 3))
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    names = gguf.get_tensor_name_map(ARCHITECTURES[architecture], config["num_hidden_layers"])
    for hugging_face_name, (array, type_name) in tensors.items():
        gguf_name = names.get_name(hugging_face_name, try_suffixes=(".weight", ".bias"))
        writer.add_tensor(gguf_name, array, raw_dtype=type_of(type_name))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def write_plain(name, type_name):
    folder = HERE / "testdata" / name
    config = json.loads((folder / "config.json").read_text())
    config.setdefault("head_dim", config["hidden_size"] // config["num_attention_heads"])
    architecture = config["model_type"]
    tensors = {}
    for tensor_name, tensor in load_file(folder / "model.safetensors").items():
        array = tensor.float().numpy()
        if architecture == "llama" and ("q_proj" in tensor_name or "k_proj" in tensor_name):
            is_q = "q_proj" in tensor_name
            array = permuted(array, config["num_attention_heads" if is_q else "num_key_value_heads"])
        kind = type_name if array.ndim == 2 else "F32"
        tensors[tensor_name] = (gguf.quants.quantize(array, type_of(kind)), kind)
    write_model(name, architecture, config, tensors)


def random_tensors(name, seed):
    architecture, config, types, table_type, output_type = QUANTIZED[name]
    random = np.random.default_rng(seed)
    hidden, inner = config["hidden_size"], config["intermediate_size"]
    q, kv = (config[n] * config["head_dim"] for n in ("num_attention_heads", "num_key_value_heads"))
    tensors = {}

    def add(tensor_name, rows, cols, type_name, deviation):
        weights = random.standard_normal((rows, cols), dtype=np.float32) * np.float32(deviation)
        tensors[tensor_name] = (blocks_like(weights, type_name, random), type_name)

    def add_vector(tensor_name, size, mean, deviation):
        vector = mean + deviation * random.standard_normal(size, dtype=np.float32)
        tensors[tensor_name] = (vector.astype(np.float32), "F32")

    add("model.embed_tokens.weight", config["vocab_size"], hidden, table_type, 1.0 if output_type else 4 / hidden**0.5)
    for layer, layer_types in enumerate(types):
        prefix = f"model.layers.{layer}."
        shapes = {"self_attn.q_proj": (q, hidden), "self_attn.k_proj": (kv, hidden), "self_attn.v_proj": (kv, hidden),
                  "self_attn.o_proj": (hidden, q), "mlp.gate_proj": (inner, hidden), "mlp.up_proj": (inner, hidden),
                  "mlp.down_proj": (hidden, inner)}
        for (module, (rows, cols)), type_name in zip(shapes.items(), layer_types.split()):
            add(f"{prefix}{module}.weight", rows, cols, type_name, 2 / cols**0.5)
            if architecture == "qwen2" and module.split(".")[1] in ("q_proj", "k_proj", "v_proj"):
                add_vector(f"{prefix}{module}.bias", rows, 0, 0.2)
        if architecture == "qwen3":
            add_vector(f"{prefix}self_attn.q_norm.weight", config["head_dim"], 1, 0.1)
            add_vector(f"{prefix}self_attn.k_norm.weight", config["head_dim"], 1, 0.1)
        add_vector(f"{prefix}input_layernorm.weight", hidden, 1, 0.1)
        add_vector(f"{prefix}post_attention_layernorm.weight", hidden, 1, 0.1)
    add_vector("model.norm.weight", hidden, 1, 0.1)
    if output_type:
        add("lm_head.weight", config["vocab_size"], hidden, output_type, 4 / hidden**0.5)
    return tensors


def is_kept_on_cpu(tensor_name, tensors):
    """Whether a CPU multiplies by the quantized weights themselves."""
    module = tensor_name.split(".")[-2]
    fused = next((group for group in FUSED if module in group), (module,))
    return all(tensors[tensor_name.replace(module, other)][1] in CPU_PRODUCTS for other in fused)


def golden_of(name, tensors, prompts, is_exact):
    model = transformers.AutoModelForCausalLM.from_pretrained(MODELS, gguf_file=f"{name}.gguf",
                                                              dtype=torch.float32).eval()
    model.config._attn_implementation = "eager"
    with torch.no_grad():
        for tensor_name, parameter in model.named_parameters():
            if tensors[tensor_name][1] not in ("F32", "F16", "BF16") and not is_exact(tensor_name):
                parameter.copy_(parameter.bfloat16().float())
    return golden(model, prompts)


def write_quantized(name):
    architecture, config, types, _, output_type = QUANTIZED[name]
    for seed in range(1, 200):
        tensors = random_tensors(name, seed)
        write_model(name, architecture, dict(config, num_hidden_layers=len(types)), tensors)
        prompts = make_prompts(config["vocab_size"], (1, 5, 47, 130), seed)

        def is_table(tensor_name):
            return tensor_name == "model.embed_tokens.weight" and output_type

        cases, margin = golden_of(name, tensors, prompts, is_table)
        cpu_cases, cpu_margin = golden_of(name, tensors, prompts,
                                          lambda n: is_table(n) or is_kept_on_cpu(n, tensors))
        margin = min(margin, cpu_margin)
        distinct = len({step["token"] for case in cases for step in case["steps"]})
        if margin >= MIN_MARGIN and distinct >= 8:
            break
    else:
        raise SystemExit(f"{name}: no seed with clear winners")
    write_golden(MODELS / f"{name}.json", cases)
    write_golden(MODELS / f"{name}_cpu.json", cpu_cases)
    print(f"{name}: seed {seed}, margin {margin:.3f}, {distinct} distinct tokens", flush=True)


def main():
    torch.set_num_threads(1)
    MODELS.mkdir(exist_ok=True)
    for name, type_name in PLAIN.items():
        write_plain(name, type_name)
    for name in QUANTIZED:
        write_quantized(name)


if __name__ == "__main__":
    main()
