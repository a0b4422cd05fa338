#!/usr/bin/env python3
"""Write quantized matrices and models, and what their own tools decode them to.

    make_quantized_goldens.py --auto-gptq DIR --auto-awq DIR

Needs torch, safetensors, transformers 5, compressed-tensors 0.12.2 (the last with act-order), and the
unpacked packages auto-gptq 0.7.1 and autoawq 0.2.9, of which single files are run.

quantized_matrices/ has cases.json, with the quantization_config of each case, and one file of
tensors. A case's `expected` is the decoded matrix in the type in which the tool computes:
compressed-tensors in the type of the scales, AutoAWQ and AutoGPTQ in float32, transformers (FP8) in
float32, rounded to the type that it serves. quantized_models/ has a directory for each format, made of a golden
model, and beside it NAME_decoded, the same model with the decoded matrices as bf16.
"""
import argparse
import importlib.util
import json
import os
import shutil
import sys

import torch
from compressed_tensors.compressors.quantized_compressors.pack_quantized import pack_to_int32
from compressed_tensors.quantization import (QuantizationArgs, QuantizationConfig, QuantizationScheme,
                                             QuantizationStatus)
from compressed_tensors.quantization.lifecycle.forward import dequantize, quantize
from safetensors.torch import load_file, save_file
from transformers.integrations.finegrained_fp8 import Fp8Dequantize

HERE = os.path.dirname(os.path.abspath(__file__))
AWQ_ORDER = [0, 2, 4, 6, 1, 3, 5, 7]


def load_module(name, path):
    spec = importlib.util.spec_from_file_location(name, path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


def grid_of(weight, args):
    """Views the weight as [row groups, rows, column groups, columns], each [i, :, j, :] with one scale."""
    rows, cols = weight.shape
    if args["strategy"] == "group":
        return weight.reshape(rows, 1, cols // args["group_size"], args["group_size"])
    if args["strategy"] == "block":
        height, width = args["block_structure"]
        padded = torch.nn.functional.pad(weight, (0, -cols % width, 0, -rows % height))
        return padded.reshape(padded.shape[0] // height, height, padded.shape[1] // width, width)
    return weight.reshape(rows, 1, 1, cols) if args["strategy"] == "channel" else weight.reshape(1, rows, 1, cols)


def factors(weight, args, dtype):
    """Scales and zeros from the least and greatest weight of each group; [row groups, column groups]."""
    grid = grid_of(weight.float(), args)
    low, high = grid.amin((1, 3)).clamp(max=0), grid.amax((1, 3)).clamp(min=0)
    if args.get("type") == "float":
        return (torch.maximum(-low, high) / 448).to(dtype), None
    least, most = -(1 << (args["num_bits"] - 1)), (1 << (args["num_bits"] - 1)) - 1
    if args["symmetric"]:
        return (torch.maximum(-low, high) / ((most - least) / 2)).to(dtype), None
    scale = ((high - low) / (most - least)).to(dtype)
    return scale, (least - low / scale.float()).round().clamp(least, most).to(torch.int8)


def compressed_config(name, args, act_bits=None):
    scheme = QuantizationScheme(targets=["Linear"], weights=QuantizationArgs(**args))
    if act_bits:
        scheme.input_activations = QuantizationArgs(num_bits=act_bits, type=args["type"], strategy="token",
                                                    dynamic=True)
    config = QuantizationConfig(config_groups={"group_0": scheme}, format=name, ignore=["lm_head"],
                                quantization_status=QuantizationStatus.COMPRESSED)
    return json.loads(json.dumps(config.to_dict(), default=str))


def compressed(weight, name, args, dtype, group_index=None):
    """Returns (tensors, decoded) as compressed-tensors does it."""
    args = dict({"num_bits": 8, "type": "int", "symmetric": True}, **args)
    scale, zero = factors(weight, args, dtype)
    if group_index is not None:  # the groups' columns are anywhere
        args["actorder"] = "group"
    quant_args = QuantizationArgs(**args)
    shape = (1,) if args["strategy"] == "tensor" else scale.shape
    scale, zero = scale.reshape(shape), None if zero is None else zero.reshape(shape)
    fields = dict(scale=scale, zero_point=zero, args=quant_args)
    if group_index is not None:
        fields["g_idx"] = group_index
    wide = weight.to(dtype)
    storage = torch.float8_e4m3fn if args["type"] == "float" else torch.int8
    rows, cols = weight.shape
    if args["strategy"] == "block":
        height, width = args["block_structure"]
        wide = torch.nn.functional.pad(wide, (0, -cols % width, 0, -rows % height))
    codes = quantize(x=wide, dtype=storage, **fields)
    decoded = dequantize(x_q=codes, **fields)[:rows, :cols].contiguous()
    codes = codes[:rows, :cols].contiguous()
    tensors = {"weight_scale": scale}
    if name == "pack-quantized":
        tensors["weight_packed"] = pack_to_int32(codes, args["num_bits"])
        tensors["weight_shape"] = torch.tensor(weight.shape)
        if zero is not None:
            tensors["weight_zero_point"] = pack_to_int32(zero, args["num_bits"], packed_dim=0).contiguous()
    else:
        tensors["weight"] = codes
        if zero is not None:
            tensors["weight_zero_point"] = zero
    if group_index is not None:
        tensors["weight_g_idx"] = group_index
    return tensors, decoded, compressed_config(name, args, None if name == "pack-quantized" else 8)


def fp8(weight, block, name, dtype):
    """Returns (tensors, decoded) as transformers does it."""
    args = {"type": "float", "strategy": "block" if block else "tensor", "block_structure": block}
    scale, _ = factors(weight, args, torch.float32)
    rows, cols = weight.shape
    height, width = block or (rows, cols)
    wide = scale.repeat_interleave(height, 0).repeat_interleave(width, 1)[:rows, :cols]
    codes = (weight.float() / wide).to(torch.float8_e4m3fn)
    if rows % height == 0 and cols % width == 0:
        decoded = Fp8Dequantize(None)._dequantize_one(codes, scale, dtype)
    else:  # which transformers does not decode, but DeepSeek's own script does, so
        decoded = (codes.float() * wide).to(dtype)
    config = {"quant_method": "fp8", "activation_scheme": "dynamic", "fmt": "e4m3"}
    if block:
        config["weight_block_size"] = block
    return {"weight": codes, name: scale if block else scale.reshape(())}, decoded, config


def unsigned(weight, group_size, bits, group_of):
    """Codes [cols, rows], scales [groups, rows] in float16 and zeros [groups, rows]."""
    most, rows = (1 << bits) - 1, weight.shape[0]
    num_groups = int(group_of.max()) + 1
    scales, zeros = torch.zeros(num_groups, rows), torch.zeros(num_groups, rows, dtype=torch.int32)
    for group in range(num_groups):
        part = weight[:, group_of == group].float()
        low, high = part.amin(1).clamp(max=0), part.amax(1).clamp(min=0)
        scales[group] = ((high - low) / most).half().float()
        zeros[group] = (-low / scales[group]).round().clamp(1, most).int()
    codes = (weight.float().t() / scales[group_of] + zeros[group_of]).round().clamp(0, most).int()
    return codes, scales.half(), zeros


def pack(values, bits, order=None):
    """Packs along the last dimension, lowest bits first."""
    per_word = 32 // bits
    parts = values.reshape(*values.shape[:-1], -1, per_word).long()
    word = sum(parts[..., (order or range(per_word))[i]] << (bits * i) for i in range(per_word))
    return torch.where(word >= 1 << 31, word - (1 << 32), word).to(torch.int32).contiguous()


def awq(weight, group_size, oracle):
    group_of = torch.arange(weight.shape[1]) // group_size
    codes, scales, zeros = unsigned(weight, group_size, 4, group_of)
    tensors = {"qweight": pack(codes, 4, AWQ_ORDER), "qzeros": pack(zeros, 4, AWQ_ORDER), "scales": scales}
    decoded = oracle.dequantize_gemm(tensors["qweight"], tensors["qzeros"], scales.float(), 4, group_size)
    config = {"quant_method": "awq", "bits": 4, "group_size": group_size, "zero_point": True, "version": "gemm",
              "modules_to_not_convert": None}
    return tensors, decoded.t().contiguous(), config


def gptq(weight, group_size, bits, oracle, act_order=False, version=1, most_zero=False):
    cols = weight.shape[1]
    size = cols if group_size == -1 else group_size
    group_of = torch.arange(cols) // size
    if act_order:
        group_of = group_of[torch.randperm(cols, generator=torch.Generator().manual_seed(5))]
    codes, scales, zeros = unsigned(weight, size, bits, group_of)
    if most_zero:
        zeros[0, ::3] = 1 << bits  # which only v1 can hold
    linear = oracle.QuantLinear(bits, group_size, cols, weight.shape[0], bias=False, weight_dtype=torch.float16)
    linear.qweight = pack(codes.t().contiguous(), bits).t().contiguous()
    linear.qzeros = pack(zeros - 1, bits)
    linear.g_idx = group_of.to(torch.int32)
    linear.scales = scales.float()  # products are exact, and the product with a unit matrix adds zeros
    decoded = linear(torch.eye(cols)).t().contiguous()
    tensors = {"qweight": linear.qweight, "scales": scales, "g_idx": linear.g_idx,
               "qzeros": pack(zeros, bits) if version == 2 else linear.qzeros}
    config = {"quant_method": "gptq", "bits": bits, "group_size": group_size, "desc_act": act_order, "sym": False,
              "lm_head": False, "checkpoint_format": "gptq_v2" if version == 2 else "gptq"}
    return tensors, decoded, config


def matrix_cases(gptq_oracle, awq_oracle):
    generator = torch.Generator().manual_seed(1)

    def weight(rows=40, cols=128):
        return torch.randn(rows, cols, generator=generator) * torch.rand(rows, 1, generator=generator)

    index = (torch.arange(128) // 32)[torch.randperm(128, generator=generator)].to(torch.int32)
    bf16, f16, f32 = torch.bfloat16, torch.float16, torch.float32
    group = {"strategy": "group"}
    yield "w4_group32", *compressed(weight(), "pack-quantized", dict(group, num_bits=4, group_size=32), bf16)
    yield "w4_group64_asym", *compressed(weight(), "pack-quantized",
                                         dict(group, num_bits=4, group_size=64, symmetric=False), f16)
    yield "w4_group128", *compressed(weight(), "pack-quantized", dict(group, num_bits=4, group_size=128), f32)
    yield "w4_channel_asym", *compressed(weight(44, 70), "pack-quantized",
                                         {"num_bits": 4, "strategy": "channel", "symmetric": False}, bf16)
    yield "w8_group32_asym", *compressed(weight(), "pack-quantized", dict(group, group_size=32, symmetric=False), f32)
    yield "w8_channel", *compressed(weight(43, 70), "pack-quantized", {"strategy": "channel"}, bf16)
    yield "w4_act_order", *compressed(weight(), "pack-quantized", dict(group, num_bits=4, group_size=32), bf16, index)
    yield "int8_channel", *compressed(weight(), "int-quantized", {"strategy": "channel"}, f32)
    yield "int8_tensor_asym", *compressed(weight(), "int-quantized", {"strategy": "tensor", "symmetric": False}, f32)
    yield "float8_tensor", *compressed(weight(), "float-quantized", {"strategy": "tensor", "type": "float"}, f32)
    yield "float8_channel", *compressed(weight(), "float-quantized", {"strategy": "channel", "type": "float"}, bf16)
    yield "float8_block", *compressed(weight(), "float-quantized",
                                      {"strategy": "block", "type": "float", "block_structure": [16, 32]}, f32)
    yield "fp8_block128", *fp8(weight(130, 150), [128, 128], "weight_scale_inv", bf16)
    yield "fp8_block32", *fp8(weight(64, 96), [32, 32], "weight_scale_inv", f32)
    yield "fp8_tensor", *fp8(weight(), None, "weight_scale", bf16)
    yield "awq_group32", *awq(weight(), 32, awq_oracle)
    yield "awq_group128", *awq(weight(), 128, awq_oracle)
    yield "gptq4_group32", *gptq(weight(), 32, 4, gptq_oracle, most_zero=True)
    yield "gptq8_group64", *gptq(weight(64), 64, 8, gptq_oracle)
    yield "gptq4_act_order", *gptq(weight(), 32, 4, gptq_oracle, act_order=True)
    yield "gptq4_channel_v2", *gptq(weight(), -1, 4, gptq_oracle, version=2)


def write_matrices(oracles):
    tensors, cases = {}, []
    for name, parts, decoded, config in matrix_cases(*oracles):
        tensors.update({f"{name}.{part}": value.contiguous() for part, value in parts.items()})
        tensors[f"{name}.expected"] = decoded
        cases.append({"name": name, "rows": decoded.shape[0], "cols": decoded.shape[1], "quantization_config": config})
    path = os.path.join(HERE, "quantized_matrices")
    os.makedirs(path, exist_ok=True)
    save_file(tensors, os.path.join(path, "model.safetensors"))
    with open(os.path.join(path, "cases.json"), "w") as f:
        json.dump(cases, f, indent=1, sort_keys=True)
        f.write("\n")


def model_cases(gptq_oracle, awq_oracle):
    """(name, golden model, quantize)"""
    yield "w4a16", "llama_bf16", lambda w: compressed(
        w, "pack-quantized", {"num_bits": 4, "strategy": "group", "group_size": 16, "symmetric": False}, torch.bfloat16)
    yield "w8a8", "qwen2_tied", lambda w: compressed(w, "int-quantized", {"strategy": "channel"}, torch.float32)
    yield "fp8", "llama_bf16", lambda w: fp8(w, [16, 16], "weight_scale_inv", torch.float32)
    yield "awq", "llama_f16", lambda w: awq(w, 16, awq_oracle)
    yield "gptq", "llama_f16", lambda w: gptq(w, 16, 4, gptq_oracle, act_order=True)


def write_model(path, config, tensors):
    shutil.rmtree(path, ignore_errors=True)
    os.makedirs(path)
    with open(os.path.join(path, "config.json"), "w") as f:
        json.dump(config, f, indent=1, sort_keys=True)
        f.write("\n")
    save_file(tensors, os.path.join(path, "model.safetensors"), metadata={"format": "pt"})


def write_models(oracles):
    for name, golden, convert in model_cases(*oracles):
        source = os.path.join(HERE, "testdata", golden)
        with open(os.path.join(source, "config.json")) as f:
            config = json.load(f)
        quantized, decoded = {}, {}
        for tensor, value in load_file(os.path.join(source, "model.safetensors")).items():
            if not tensor.endswith("_proj.weight"):
                quantized[tensor] = decoded[tensor] = value
                continue
            parts, weight, quantization = convert(value)
            module = tensor.removesuffix(".weight")
            quantized.update({f"{module}.{part}": part_value.contiguous() for part, part_value in parts.items()})
            if name == "gptq":
                quantized[module + ".bias"] = torch.zeros(value.shape[0], dtype=torch.float16)
            decoded[tensor] = weight.to(torch.bfloat16)
        path = os.path.join(HERE, "quantized_models", name)
        write_model(path, dict(config, quantization_config=quantization), quantized)
        write_model(path + "_decoded", config, decoded)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--auto-gptq", required=True, help="folder with auto_gptq/")
    parser.add_argument("--auto-awq", required=True, help="folder with awq/")
    args = parser.parse_args()
    oracles = (load_module("qlinear", os.path.join(args.auto_gptq, "auto_gptq/nn_modules/qlinear/qlinear_cuda.py")),
               load_module("packing", os.path.join(args.auto_awq, "awq/utils/packing_utils.py")))
    write_matrices(oracles)
    write_models(oracles)


if __name__ == "__main__":
    main()
