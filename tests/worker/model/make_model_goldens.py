#!/usr/bin/env python3
"""Write the tiny models of tests/worker/model/testdata and what Hugging Face transformers makes of
them. Needs torch, transformers and safetensors; the test suite needs the files only.

    make_model_goldens.py [--only NAME]
    make_model_goldens.py --model-dir DIR --prompt IDS [--tokens N] --out FILE

Each model is a directory <name>/ with config.json, its safetensors files and golden.json: prompts,
the tokens of greedy decoding, the log-probability of each and the five likeliest at each step, all
computed in float32 (weights of another type are read and widened first, so that what is compared is
the arithmetic, not the rounding of activations).

The scales are those of a healthy network, as an untrained one has a flat next-token distribution
in which greedy decoding flips on rounding: projections N(0, 1/in), the two that write the residual
stream divided by sqrt(2 layers) (three times that in a tied model), norms 1 + N(0, 0.1), biases N(0, 0.2), logits of deviation 4. A
case whose two likeliest tokens come closer than MIN_MARGIN at any step is drawn again.

--model-dir writes the golden of a model that exists already. For the bundled one:

    make_model_goldens.py --model-dir deploy/model --prompt "0,588,653,260,451" \\
        --out tests/worker/model/bundled_model_golden.json

For a large one, compare with the tool model_check, which the test build makes.
"""
import argparse
import json
import math
import os
import shutil
import sys

import torch
import transformers
from safetensors.torch import load_file, save_file

HERE = os.path.dirname(os.path.abspath(__file__))
NUM_TOKENS = 24
NUM_TOP = 5
MIN_MARGIN = 0.02  # ten times the tolerance of the test
PROMPT_LENGTHS = (1, 5, 16, 17, 47, 130)
LONG_PROMPT_LENGTHS = (300,)  # crosses the 256 positions that attention works on at a time

ROPE = dict(hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4,
            num_key_value_heads=2, head_dim=8, vocab_size=96, max_position_embeddings=512,
            rms_norm_eps=1e-5, bos_token_id=1, eos_token_id=2, pad_token_id=None,
            tie_word_embeddings=False)
OPT = dict(hidden_size=32, ffn_dim=64, num_hidden_layers=2, num_attention_heads=4, vocab_size=96,
           max_position_embeddings=352, bos_token_id=2, eos_token_id=2, pad_token_id=1)
BLOOM = dict(hidden_size=36, n_layer=2, n_head=6, vocab_size=96, bos_token_id=1, eos_token_id=2, pad_token_id=3)


def rope(kind, **fields):
    return {"rope_type": kind, "rope_theta": 10000.0, **fields}


# Scaled models: heads wide enough for a ramp over the frequencies, prompts longer than the original length.
SCALED = dict(ROPE, head_dim=16, num_key_value_heads=1)
SCALED_OPTIONS = {"dtype": torch.float16, "lengths": (5, 70, 130), "tokens": 16}
SHORT_FACTORS = [1.0, 1.1, 1.25, 1.4, 1.6, 1.9, 2.3, 2.7]
LONG_FACTORS = [1.0, 1.3, 2.0, 3.1, 4.7, 6.5, 9.0, 12.5]

# Text towers: a language model beside a tiny vision tower.
TOWER_OPTIONS = {"dtype": torch.float16, "lengths": (1, 17, 60), "tokens": 16}
CLIP = dict(model_type="clip_vision_model", hidden_size=8, intermediate_size=8, num_hidden_layers=1,
            num_attention_heads=1, image_size=4, patch_size=2, projection_dim=8)
PIXTRAL = dict(model_type="pixtral", hidden_size=8, intermediate_size=8, num_hidden_layers=1, num_attention_heads=1,
               head_dim=8, image_size=4, patch_size=2)
QWEN_VISION = dict(depth=1, hidden_size=8, intermediate_size=8, num_heads=1, out_hidden_size=32, patch_size=2,
                   spatial_merge_size=1, temporal_patch_size=1, window_size=4, fullatt_block_indexes=[0])


def tower(kind, **fields):
    return {key: value for key, value in dict(ROPE, model_type=kind, **fields).items() if value is not None}


# name: (class, config, options). Options: dtype, shards, old_style (field names before
# transformers 5), prefix (of tensor names: from, to), published (BLOOM as bigscience wrote it),
# lengths and tokens (of prompts and answers), served (the longest context, for scalings that depend on it),
# hub (names and fields of a wrapper as on the hub; without it, as transformers 5 saves it).
CASES = {
    "llama": ("Llama", dict(ROPE), {}),
    "llama_bf16": ("Llama", dict(ROPE), {"dtype": torch.bfloat16}),
    "llama_f16": ("Llama", dict(ROPE), {"dtype": torch.float16}),
    "llama_sharded": ("Llama", dict(ROPE, num_hidden_layers=3), {"shards": 3}),
    "llama_tied": ("Llama", dict(ROPE, tie_word_embeddings=True), {}),
    "llama_biased": ("Llama", dict(ROPE, attention_bias=True, mlp_bias=True), {}),
    "llama_odd_sizes": ("Llama", dict(ROPE, hidden_size=36, intermediate_size=44, num_attention_heads=3,
                                      num_key_value_heads=1, head_dim=12, vocab_size=97,
                                      hidden_act="gelu_pytorch_tanh"), {}),
    "llama3_rope": ("Llama", dict(ROPE, head_dim=16, max_position_embeddings=2048,
                                  rope_parameters=rope("llama3", rope_theta=500000.0, factor=8.0,
                                                       low_freq_factor=1.0, high_freq_factor=4.0,
                                                       original_max_position_embeddings=64)), {}),
    "llama3_rope_old_style": ("Llama", dict(ROPE, head_dim=16, max_position_embeddings=2048,
                                            rope_parameters=rope("llama3", rope_theta=10000.0, factor=4.0,
                                                                 low_freq_factor=1.0, high_freq_factor=2.0,
                                                                 original_max_position_embeddings=128)),
                              {"old_style": True}),
    "llama_linear_rope": ("Llama", dict(ROPE, rope_parameters=rope("linear", factor=4.0)), {}),
    "llama_dynamic_rope": ("Llama", dict(SCALED, max_position_embeddings=64, rope_parameters=rope("dynamic", factor=3.0)),
                           dict(SCALED_OPTIONS, served=192)),
    "llama_yarn_rope": ("Llama", dict(SCALED, rope_parameters=rope(
        "yarn", factor=8.0, original_max_position_embeddings=64, beta_fast=3, beta_slow=0.5, truncate=False)),
                        dict(SCALED_OPTIONS, old_style=True)),
    "qwen2_yarn_rope": ("Qwen2", dict(SCALED, max_position_embeddings=64, rope_parameters=rope(
        "yarn", factor=4.0, original_max_position_embeddings=64, mscale=1.4, mscale_all_dim=0.6)), SCALED_OPTIONS),
    "llama_longrope": ("Llama", dict(SCALED, rope_parameters=rope(
        "longrope", short_factor=SHORT_FACTORS, long_factor=LONG_FACTORS, original_max_position_embeddings=64)),
                       dict(SCALED_OPTIONS, old_style=True, served=512)),
    "llama_longrope_short": ("Llama", dict(SCALED, max_position_embeddings=128, rope_parameters=rope(
        "longrope", short_factor=SHORT_FACTORS, long_factor=LONG_FACTORS, original_max_position_embeddings=128,
        attention_factor=1.25)), dict(SCALED_OPTIONS, lengths=(5, 100), served=128)),
    "llama_proportional_rope": ("Llama", dict(SCALED, rope_parameters=rope(
        "proportional", factor=2.0, partial_rotary_factor=0.6)), SCALED_OPTIONS),
    "mistral": ("Mistral", dict(ROPE, sliding_window=24), {}),
    "mistral_no_window": ("Mistral", dict(ROPE, sliding_window=None), {"old_style": True}),
    "qwen2": ("Qwen2", dict(ROPE, num_hidden_layers=3, use_sliding_window=True, sliding_window=40,
                            max_window_layers=1), {}),
    "qwen2_tied": ("Qwen2", dict(ROPE, tie_word_embeddings=True), {"dtype": torch.bfloat16, "old_style": True}),
    "qwen3": ("Qwen3", dict(ROPE, head_dim=16, num_key_value_heads=1, attention_bias=True, use_sliding_window=True,
                            sliding_window=33, layer_types=["sliding_attention", "full_attention"]), {}),
    "opt": ("OPT", dict(OPT), {}),
    "opt_post_norm": ("OPT", dict(OPT, do_layer_norm_before=False, word_embed_proj_dim=24), {}),
    "opt_plain": ("OPT", dict(OPT, enable_bias=False, layer_norm_elementwise_affine=False,
                              word_embed_proj_dim=16, activation_function="gelu", tie_word_embeddings=False), {"prefix": ("model.decoder.", "decoder.")}),
    "llava_text": ("Llava", dict(text_config=tower("llama"), vision_config=CLIP, image_token_index=2, vision_feature_layer=-1),
                   dict(TOWER_OPTIONS, hub=[("model.language_model.", "language_model.model."), ("lm_head.", "language_model.lm_head."),
                                            ("model.", "")])),
    "mistral3_text": ("Mistral3", dict(text_config=tower("mistral", sliding_window=None, head_dim=16), vision_config=PIXTRAL,
                                       image_token_index=2, tie_word_embeddings=False), TOWER_OPTIONS),
    "qwen2_5_vl_text": ("Qwen2_5_VL", dict(
        text_config=tower("qwen2_5_vl_text", rope_parameters=rope("default", rope_theta=1e6, mrope_section=[1, 1, 2]), head_dim=None),
        vision_config=QWEN_VISION, image_token_id=3, video_token_id=3, vision_start_token_id=3),
                        dict(TOWER_OPTIONS, flat=True, hub=[("model.language_model.", "model."), ("model.visual.", "visual.")])),
    "qwen3_vl_text": ("Qwen3VL", dict(
        text_config=tower("qwen3_vl_text", rope_parameters=rope("default", rope_theta=5e6, mrope_section=[2, 1, 1])),
        vision_config=dict(QWEN_VISION, num_position_embeddings=4, deepstack_visual_indexes=[]),
        image_token_id=3, video_token_id=3, vision_start_token_id=3, vision_end_token_id=3), TOWER_OPTIONS),
    "bloom": ("Bloom", dict(BLOOM), {}),
    "bloom_published": ("Bloom", dict(BLOOM, hidden_size=32, n_head=4, n_layer=3),
                        {"dtype": torch.float16, "prefix": ("transformer.", ""), "published": True}),
    "bloom_residual_after_norm": ("Bloom", dict(BLOOM, n_head=3, layer_norm_epsilon=1e-3, tie_word_embeddings=False,
                                                apply_residual_connection_post_layernorm=True), {}),
}


def make_class(kind):
    return getattr(transformers, kind + "ForCausalLM", None) or getattr(transformers, kind + "ForConditionalGeneration")


def make_config(kind, fields):
    fields = dict(fields)
    if kind == "Qwen2":
        fields.pop("head_dim")
    return getattr(transformers, kind + "Config")(**fields)


def randomize(model, config, seed):
    """Healthy scales; see the head of this file."""
    generator = torch.Generator().manual_seed(seed)
    residual = 1.0 / math.sqrt(2 * config.num_hidden_layers)
    if config.tie_word_embeddings:
        residual *= 3  # or the token that went in would win every time
    width = getattr(config, "word_embed_proj_dim", config.hidden_size)
    with torch.no_grad():
        for name, value in model.named_parameters():
            noise = torch.randn(value.shape, generator=generator)
            if name.endswith(".bias"):
                value.copy_(noise * 0.2)
            elif "embeddings_layernorm" in name and config.tie_word_embeddings:
                value.copy_(noise)  # of any sign: as above
            elif "norm" in name or "ln_f" in name:
                value.copy_(1.0 + 0.1 * noise)
            elif "embed_positions" in name:
                value.copy_(noise)
            elif "embed_tokens" in name or "word_embeddings" in name:
                value.copy_(noise * (4.0 / math.sqrt(width) if config.tie_word_embeddings else 1.0))
            elif value.ndim < 2:
                value.copy_(noise)
            elif "lm_head" in name:
                value.copy_(noise * (4.0 / math.sqrt(width)))
            else:
                scale = 1.0 / math.sqrt(value.shape[1])
                if any(part in name for part in ("o_proj", "out_proj", "down_proj", "fc2", "attention.dense", "4h_to_h")):
                    scale *= residual
                value.copy_(noise * scale)


def old_style(fields):
    """config.json as transformers 4 wrote it."""
    fields = dict(fields)
    parameters = dict(fields.pop("rope_parameters", None) or {})
    fields["rope_theta"] = parameters.pop("rope_theta", 10000.0)
    if parameters.get("rope_type", "default") == "default":
        fields["rope_scaling"] = None
    else:
        fields["rope_scaling"] = parameters
    if "dtype" in fields:
        fields["torch_dtype"] = fields.pop("dtype")
    return fields


def renamed(name, rules):
    """The name under the first rule (from, to) whose prefix it has."""
    for old, new in rules:
        if name.startswith(old):
            return new + name[len(old):]
    return name


def published_wrapper(fields, options):
    """config.json of a wrapper as on the hub: before transformers 5, and for some without text_config."""
    text = old_style(fields.pop("text_config"))
    fields.pop("tie_word_embeddings", None)
    if not options.get("flat"):
        return dict(old_style(fields), text_config=text)
    text["rope_scaling"] = {"type": "mrope", "mrope_section": [1, 1, 2]}
    fields["rope_parameters"] = dict(rope_theta=text["rope_theta"], **text["rope_scaling"], rope_type="mrope")
    return {**text, **old_style(fields), "rope_scaling": text["rope_scaling"]}


def published_bloom(fields):
    """config.json with the names and the extras of the models that bigscience published."""
    fields = old_style(fields)
    for field in ("rope_theta", "rope_scaling"):
        fields.pop(field)
    fields["n_embed"] = fields.pop("hidden_size")
    fields["num_attention_heads"] = fields.pop("n_head")
    fields.update(seq_length=2048, n_inner=None, offset_alibi=100, skip_bias_add=True, skip_bias_add_qkv=False,
                  bias_dropout_fusion=True, attention_softmax_in_fp32=True, masked_softmax_fusion=True,
                  unk_token_id=0, pretraining_tp=2)
    return fields


def write_model(path, model, config, options):
    shutil.rmtree(path, ignore_errors=True)
    os.makedirs(path)
    dtype = options.get("dtype", torch.float32)
    tensors = {name: value.detach().to(dtype).contiguous() for name, value in model.state_dict().items()}
    if config.tie_word_embeddings:
        tensors.pop("lm_head.weight")
    tensors = {renamed(name, options.get("hub", [])): value for name, value in tensors.items()}
    if "prefix" in options:
        tensors = {name.replace(*options["prefix"]): value for name, value in tensors.items()}
    fields = config.to_dict()
    fields["architectures"] = [type(model).__name__]
    fields["dtype"] = str(dtype).removeprefix("torch.")
    fields.pop("transformers_version", None)
    if options.get("old_style"):
        fields = old_style(fields)
    if options.get("published"):
        fields = published_bloom(fields)
    if "hub" in options:
        fields = published_wrapper(fields, options)
    with open(os.path.join(path, "config.json"), "w") as f:
        json.dump(fields, f, indent=1, sort_keys=True)
        f.write("\n")
    shards = options.get("shards", 1)
    if shards == 1:
        save_file(tensors, os.path.join(path, "model.safetensors"), metadata={"format": "pt"})
        return
    weight_map, names = {}, sorted(tensors)
    for i in range(shards):
        file = f"model-{i + 1:05d}-of-{shards:05d}.safetensors"
        part = {name: tensors[name] for name in names[i::shards]}
        save_file(part, os.path.join(path, file), metadata={"format": "pt"})
        weight_map.update({name: file for name in part})
    total = sum(value.numel() * value.element_size() for value in tensors.values())
    with open(os.path.join(path, "model.safetensors.index.json"), "w") as f:
        json.dump({"metadata": {"total_size": total}, "weight_map": weight_map}, f, indent=1, sort_keys=True)
        f.write("\n")


def decode(model, prompt, num_tokens):
    """Greedy decoding with every step computed from the whole sequence: no cache to trust."""
    tokens, steps, margin = list(prompt), [], math.inf
    for _ in range(num_tokens):
        with torch.no_grad():
            logits = model(torch.tensor([tokens]), use_cache=False).logits[0, -1].double()
        logprobs = torch.log_softmax(logits, dim=-1)
        top = torch.topk(logprobs, NUM_TOP)
        margin = min(margin, float(top.values[0] - top.values[1]))
        steps.append({"token": int(top.indices[0]), "logprob": round(float(top.values[0]), 7),
                      "top_tokens": [int(t) for t in top.indices],
                      "top_logprobs": [round(float(v), 7) for v in top.values]})
        tokens.append(int(top.indices[0]))
    return steps, margin


def make_prompts(vocab_size, lengths, seed):
    generator = torch.Generator().manual_seed(seed)
    return [[int(t) for t in torch.randint(3, vocab_size, (n,), generator=generator)] for n in lengths]


def fix_rope(model, served):
    """Frequencies of transformers for one length, instead of each sequence's length."""
    rotary = model.model.rotary_emb
    compute = transformers.modeling_rope_utils.ROPE_INIT_FUNCTIONS[rotary.rope_type]
    rotary.inv_freq, rotary.attention_scaling = compute(model.config, "cpu", seq_len=served)
    rotary.rope_type = "fixed"


def load_as_float32(path):
    """The model as transformers loads it, computing in float32."""
    config = transformers.AutoConfig.from_pretrained(path)
    if hasattr(config, "vision_config"):
        model, info = getattr(transformers, config.architectures[0]).from_pretrained(
            path, dtype=torch.float32, attn_implementation="eager", output_loading_info=True)
        assert not info["missing_keys"] and not info["unexpected_keys"], info
        return model.eval()
    model = getattr(transformers, config.architectures[0])(config).float().eval()
    files = [f for f in sorted(os.listdir(path)) if f.endswith(".safetensors")]
    tensors = {}
    for file in files:
        tensors.update(load_file(os.path.join(path, file)))
    if any(n.startswith("decoder.") for n in tensors):
        tensors = {n.replace("decoder.", "model.decoder."): v for n, v in tensors.items()}
    if "word_embeddings.weight" in tensors:
        tensors = {"transformer." + n: v for n, v in tensors.items()}
    tensors = {n: v.float() for n, v in tensors.items()}
    missing, unexpected = model.load_state_dict(tensors, strict=False)
    assert not unexpected and set(missing) <= {"lm_head.weight"}, (missing, unexpected)
    model.tie_weights()
    model.config._attn_implementation = "eager"
    return model


def golden(model, prompts, num_tokens=NUM_TOKENS):
    cases, margin = [], math.inf
    for prompt in prompts:
        steps, smallest = decode(model, prompt, num_tokens)
        margin = min(margin, smallest)
        cases.append({"prompt": prompt, "steps": steps})
    return cases, margin


def write_golden(path, cases):
    with open(path, "w") as f:
        f.write('{"source": "transformers %s, torch %s, float32",\n "cases": [\n' %
                (transformers.__version__, torch.__version__.split("+")[0]))
        for i, case in enumerate(cases):
            f.write('  {"prompt": %s,\n   "steps": [\n' % json.dumps(case["prompt"], separators=(",", ":")))
            f.write(",\n".join("    " + json.dumps(s, separators=(",", ":")) for s in case["steps"]))
            f.write("]}%s\n" % ("," if i + 1 < len(cases) else ""))
        f.write(" ]}\n")


def make_case(name):
    kind, fields, options = CASES[name]
    config = make_config(kind, fields)
    text_config = getattr(config, "text_config", config)
    path = os.path.join(HERE, "testdata", name)
    lengths = options.get("lengths", PROMPT_LENGTHS + (LONG_PROMPT_LENGTHS if name in ("llama", "qwen2", "opt", "bloom") else ()))
    for seed in range(1, 200):
        model = make_class(kind)(config).float().eval()
        randomize(model, text_config, seed)
        write_model(path, model, config, options)
        model = load_as_float32(path)
        if "served" in options:
            fix_rope(model, options["served"])
        cases, margin = golden(model, make_prompts(text_config.vocab_size, lengths, seed), options.get("tokens", NUM_TOKENS))
        distinct = len({s["token"] for c in cases for s in c["steps"]})
        if margin >= MIN_MARGIN and distinct >= 15:
            break
    else:
        sys.exit(f"{name}: no seed with clear winners")
    write_golden(os.path.join(path, "golden.json"), cases)
    for file in os.listdir(path):
        os.chmod(os.path.join(path, file), 0o644)
    size = sum(os.path.getsize(os.path.join(path, f)) for f in os.listdir(path))
    print(f"{name}: seed {seed}, margin {margin:.3f}, {distinct} distinct tokens, {size} bytes", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=CASES, nargs="+")
    parser.add_argument("--model-dir", help="write the golden of this model instead")
    parser.add_argument("--prompt", help="with --model-dir: token ids, comma-separated; may be given as a;b")
    parser.add_argument("--tokens", type=int, default=NUM_TOKENS, help="with --model-dir: how many")
    parser.add_argument("--out", help="with --model-dir: the golden file")
    args = parser.parse_args()
    torch.set_num_threads(1)
    if args.model_dir:
        model = load_as_float32(args.model_dir)
        prompts = [[int(t) for t in p.split(",")] for p in args.prompt.split(";")]
        cases, margin = golden(model, prompts, args.tokens)
        write_golden(args.out, cases)
        print(f"{args.model_dir}: margin {margin:.4f}")
        return
    for name in args.only or CASES:
        make_case(name)


if __name__ == "__main__":
    main()
