"""Writes gguf_blocks.bin and gguf_quantized.bin: weight blocks and their weights, by ggml's package.

    pip install gguf==0.19.0
    python make_gguf_goldens.py

A file is a sequence of records: the line "NAME NUMBER BLOCK_WEIGHTS BLOCK_BYTES NUM_BLOCKS"; the
blocks; the weights, as little-endian fp32. In gguf_blocks.bin the weights are decoded from the
blocks: random bytes with chosen scales, all bits set, no bit set. In gguf_quantized.bin the blocks
are made from the weights.
"""

import gguf
import numpy as np
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType

# Places of the binary16 numbers in a block: scale, then minimum.
HALVES = {"Q4_0": [0], "Q4_1": [0, 2], "Q5_0": [0], "Q5_1": [0, 2], "Q8_0": [0], "Q2_K": [80, 82],
          "Q3_K": [108], "Q4_K": [0, 2], "Q5_K": [0, 2], "Q6_K": [208], "IQ4_NL": [0],
          "IQ4_XS": [0]}
# For each block (scale, minimum): ordinary, both negative, subnormal, the largest with all bits of
# the codes set, -0 with none set, and the smallest subnormal number.
SCALES = [(0x2A11, 0x3123), (0xA8F7, 0xB2D5), (0x0213, 0x83FF), (0x7BFF, 0xFBFF), (0x8000, 0x0000),
          (0x0001, 0x2001)]
EXPONENTS = [127, 0, 1, 254, 252, 2]  # of MXFP4; 254 makes infinite weights
SPECIAL_HALVES = [0, 0x8000, 1, 0x8001, 0x3FF, 0x400, 0x7BFF, 0xFBFF, 0x7C00, 0xFC00, 0x3555]
SPECIAL_BFLOATS = [0, 0x8000, 1, 0x807F, 0x0080, 0x7F7F, 0xFF7F, 0x7F80, 0xFF80, 0x3EAB]
SPECIAL_FLOATS = [0.0, -0.0, 1e-45, -1.17e-38, 3.4e38, np.inf, -np.inf, 1 / 3]

random = np.random.default_rng(39)


def quantized_blocks(name, block_bytes):
    blocks = random.integers(0, 256, (len(SCALES), block_bytes), dtype=np.uint8)
    blocks[3], blocks[4] = 0xFF, 0
    if name == "MXFP4":
        blocks[:, 0] = EXPONENTS
        return blocks
    for block, scales in zip(blocks, SCALES):
        for place, half in zip(HALVES[name], scales):
            block[place:place + 2] = np.array([half], dtype="<u2").view(np.uint8)
    return blocks


def plain_blocks(name, block_bytes):
    if name == "F32":
        numbers = np.array([*SPECIAL_FLOATS, *random.standard_normal(8)], dtype="<f4")
    else:
        special = SPECIAL_HALVES if name == "F16" else SPECIAL_BFLOATS
        numbers = np.array([*special, *random.integers(0, 0x7000, 8)], dtype="<u2")
    return numbers.view(np.uint8).reshape(-1, block_bytes)


def write(file, name, blocks, weights):
    kind = GGMLQuantizationType[name]
    file.write(f"{name} {kind.value} {' '.join(map(str, GGML_QUANT_SIZES[kind]))} {len(blocks)}\n"
               .encode())
    file.write(blocks.tobytes())
    file.write(weights.astype("<f4", copy=False).tobytes())


def row_rounded_otherwise_by_division(divisor):
    """A row where weight / scale, instead of weight * (1 / scale), rounds to another code."""
    while True:
        row = random.standard_normal(32).astype(np.float32)
        scale = abs(row).max() / np.float32(divisor)
        row[1:9] = (np.arange(1, 9, dtype=np.float32) - np.float32(0.5)) * scale
        quotients, products = row / scale, row * (np.float32(1) / scale)
        if any(np.floor(quotients + np.float32(0.5)) != np.floor(products + np.float32(0.5))):
            return row


def quantizer_weights():
    """Rows of 32: ordinary, ties, zeros, large, both signs of one size, tiny, scales that are 0."""
    rows = [random.standard_normal(32) * 0.02,
            np.arange(-127, 129, 8) / 2,      # with 127 / 2: every second code of Q8_0 is a tie
            np.arange(-8, 8, 0.5),            # every second code of Q4_0 is a tie
            np.zeros(32), random.standard_normal(32) * 1e4,
            np.resize([-3.0, 3.0, -0.0, 1.5], 32), np.resize([3.0, -3.0, 2.9], 32),
            random.standard_normal(32) * 1e-6, random.standard_normal(32) * 1e-30,
            row_rounded_otherwise_by_division(127), row_rounded_otherwise_by_division(8)]
    rows[1][0], rows[1][1] = 127, -127
    return np.array(rows, dtype=np.float32)


with np.errstate(all="ignore"):
    with open("gguf_blocks.bin", "wb") as out:
        for name in ["F32", "F16", *HALVES, "BF16", "MXFP4"]:
            block_bytes = GGML_QUANT_SIZES[GGMLQuantizationType[name]][1]
            make = plain_blocks if name in ("F32", "F16", "BF16") else quantized_blocks
            made = make(name, block_bytes)
            write(out, name, made, gguf.dequantize(made, GGMLQuantizationType[name]))
    with open("gguf_quantized.bin", "wb") as out:
        for name in ["Q8_0", "Q4_0"]:
            made = quantizer_weights()
            write(out, name, gguf.quantize(made, GGMLQuantizationType[name]), made)
