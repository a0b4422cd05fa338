#!/usr/bin/env python3
"""Makes the GGUF files in testdata/, and what the package `gguf` reads from them.

    pip install gguf==0.19.0
    tests/common/model/make_gguf_goldens.py

all_types.gguf: values of every type, and one block of every tensor type. split-0000*.gguf: three parts.
*.json: keys with types and values, tensors with types, sizes and places, by gguf.GGUFReader. Byte j of tensor i is
(7 * i + 13 * j) % 256.
"""

import json
import pathlib

import gguf
import numpy

TESTDATA = pathlib.Path(__file__).resolve().parent / "testdata"
# gguf 0.19.0 counts 40 bytes for a block of Q8_1. It has 36 in ggml, and is in no file.
TYPES = [t for t in gguf.GGMLQuantizationType if t.name != "Q8_1"]
INTEGERS = {"uint8": 8, "int8": 8, "uint16": 16, "int16": 16, "uint32": 32, "int32": 32, "uint64": 64, "int64": 64}


def bounds(name):
    bits = INTEGERS[name]
    return (0, 2**bits - 1) if name.startswith("u") else (-2**(bits - 1), 2**(bits - 1) - 1)


def add_tensor(writer, index, name, ggml_type, num_rows):
    block_bytes = gguf.GGML_QUANT_SIZES[ggml_type][1]
    values = (7 * index + 13 * numpy.arange(num_rows * block_bytes)) % 256
    writer.add_tensor(name, values.astype(numpy.uint8).reshape(num_rows, block_bytes), raw_dtype=ggml_type)


def add_values(writer):
    for name in INTEGERS:
        low, high = bounds(name)
        getattr(writer, f"add_{name}")(f"{name}.low", low)
        getattr(writer, f"add_{name}")(f"{name}.high", high)
        writer.add_key_value(f"{name}.array", [low, 1, high], gguf.GGUFValueType.ARRAY,
                             gguf.GGUFValueType[name.upper()])
    writer.add_float32("float32", 1e-5)
    writer.add_float64("float64", -1e-300)
    writer.add_array("float32.array", [0.5, -3.0e38, 1e-40])
    writer.add_key_value("float64.array", [0.1, 1e300], gguf.GGUFValueType.ARRAY, gguf.GGUFValueType.FLOAT64)
    writer.add_bool("bool.true", True)
    writer.add_bool("bool.false", False)
    writer.add_array("bool.array", [True, False, True])
    writer.add_string("string", "gr\u00fc\u00df \u4f60\n")
    writer.add_array("string.array", ["a", "", "\u2581the", "\U0001f600"])


def write(writer):
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def value_of(field):
    contents = field.contents()
    return contents if isinstance(contents, list) else [contents]


def described(path):
    """Returns what GGUFReader reads."""
    reader = gguf.GGUFReader(path)
    keys = {name: {"type": "array" if len(field.types) > 1 else field.types[0].name.lower(),
                   "element_type": field.types[-1].name.lower(), "values": value_of(field)}
            for name, field in reader.fields.items() if not name.startswith("GGUF.")}
    tensors = [{"name": t.name, "type": t.tensor_type.name, "dims": t.shape.tolist(), "offset": int(t.data_offset),
                "bytes": int(t.n_bytes)} for t in reader.tensors]
    return {"keys": keys, "tensors": tensors}


def dump(name, golden):
    (TESTDATA / name).write_text(json.dumps(golden, separators=(",", ":"), default=lambda x: x.item()) + "\n")


def main():
    TESTDATA.mkdir(exist_ok=True)
    path = TESTDATA / "all_types.gguf"
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_custom_alignment(64)
    add_values(writer)
    for i, ggml_type in enumerate(TYPES):
        add_tensor(writer, i, f"tensor.{ggml_type.name}", ggml_type, 1 if i % 3 else 2)
    write(writer)
    dump("all_types.json", described(path))

    writer = gguf.GGUFWriter(TESTDATA / "split.gguf", "qwen2", split_max_tensors=2)
    writer.add_string("general.name", "three parts")
    for i in range(5):
        add_tensor(writer, i, f"blk.{i}.weight", gguf.GGMLQuantizationType.Q8_0, i + 1)
    write(writer)
    parts = [described(path) for path in sorted(TESTDATA.glob("split-*.gguf"))]
    dump("split.json", {"parts": parts})


if __name__ == "__main__":
    main()
