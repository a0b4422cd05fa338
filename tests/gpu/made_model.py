"""Makes model folders of Llama's architecture from nothing but a seed: no download, no dependency.

Weights are random bits: each has a random sign and mantissa and one exponent, so that magnitudes are
uniform in [2^-6, 2^-5), about what models are initialised with. Norm weights are 1.
"""
import json
import random
import struct

SHAPES = {
    "8b": {"hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32,
           "num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 128,
           "vocab_size": 128256, "max_position_embeddings": 8192, "tie_word_embeddings": False},
    "1b": {"hidden_size": 2048, "intermediate_size": 8192, "num_hidden_layers": 16,
           "num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 64,
           "vocab_size": 128256, "max_position_embeddings": 8192, "tie_word_embeddings": True},
    # A small shape, to try out the scripts that use the others.
    "tiny": {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2,
             "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 64,
             "vocab_size": 256, "max_position_embeddings": 512, "tie_word_embeddings": True},
}
BYTES_A_NUMBER = 2  # bf16
ONE = 0x3F80
EMBEDDING = "model.embed_tokens.weight"


def config_of(name):
    return {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_act": "silu",
            "rms_norm_eps": 1e-5, "rope_theta": 500000.0, "attention_bias": False,
            "mlp_bias": False, "bos_token_id": 0, "eos_token_id": None, "torch_dtype": "bfloat16",
            **SHAPES[name]}


def tensors_of(config):
    """Names and shapes."""
    hidden, inner = config["hidden_size"], config["intermediate_size"]
    q_rows = config["num_attention_heads"] * config["head_dim"]
    kv_rows = config["num_key_value_heads"] * config["head_dim"]
    yield EMBEDDING, (config["vocab_size"], hidden)
    for layer in range(config["num_hidden_layers"]):
        prefix = f"model.layers.{layer}."
        yield prefix + "input_layernorm.weight", (hidden,)
        yield prefix + "self_attn.q_proj.weight", (q_rows, hidden)
        yield prefix + "self_attn.k_proj.weight", (kv_rows, hidden)
        yield prefix + "self_attn.v_proj.weight", (kv_rows, hidden)
        yield prefix + "self_attn.o_proj.weight", (hidden, q_rows)
        yield prefix + "post_attention_layernorm.weight", (hidden,)
        yield prefix + "mlp.gate_proj.weight", (inner, hidden)
        yield prefix + "mlp.up_proj.weight", (inner, hidden)
        yield prefix + "mlp.down_proj.weight", (hidden, inner)
    yield "model.norm.weight", (hidden,)
    if not config["tie_word_embeddings"]:
        yield "lm_head.weight", (config["vocab_size"], hidden)


def count(shape):
    numbers = 1
    for size in shape:
        numbers *= size
    return numbers


def weight_bytes_of_step(config):
    """Returns the bytes of weights that a step reads. It reads a few rows of the embedding table, which count only if
    the same table is also the output's."""
    return sum(count(shape) for name, shape in tensors_of(config)
               if name != EMBEDDING or config["tie_word_embeddings"]) * BYTES_A_NUMBER


def kv_bytes_per_token(config):
    return (2 * config["num_hidden_layers"] * config["num_key_value_heads"] *
            config["head_dim"] * BYTES_A_NUMBER)


def random_numbers(rng, how_many):
    """Bytes of that many bf16: sign and mantissa of random words, one exponent."""
    mask = int.from_bytes(struct.pack("<H", 0x807F) * how_many, "little")
    exponent = int.from_bytes(struct.pack("<H", (127 - 6) << 7) * how_many, "little")
    words = int.from_bytes(rng.randbytes(how_many * BYTES_A_NUMBER), "little")
    return (words & mask | exponent).to_bytes(how_many * BYTES_A_NUMBER, "little")


def write_tensor(out, shape, numbers, rng):
    left = count(shape) * BYTES_A_NUMBER
    if len(shape) == 1:
        out.write(struct.pack("<H", ONE) * (left // BYTES_A_NUMBER))
        return
    begin = rng.randrange(len(numbers) // BYTES_A_NUMBER) * BYTES_A_NUMBER
    while left > 0:
        part = numbers[begin:begin + left]
        out.write(part)
        left -= len(part)
        begin = 0


def write_config(folder, name):
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config_of(name), indent=2), encoding="utf-8")
    return config_of(name)


def write_model(folder, name, seed=1):
    """config.json and model.safetensors. Returns the config."""
    config = write_config(folder, name)
    header, offset = {}, 0
    for tensor, shape in tensors_of(config):
        end = offset + count(shape) * BYTES_A_NUMBER
        header[tensor] = {"dtype": "BF16", "shape": list(shape), "data_offsets": [offset, end]}
        offset = end
    text = json.dumps({"__metadata__": {"format": "pt"}, **header}).encode()
    text += b" " * (-len(text) % 8)
    rng = random.Random(seed)
    # Tensors are pieces of one stretch of numbers, whose odd length keeps rows from being alike.
    numbers = random_numbers(rng, (1 << 22) - 3)
    with (folder / "model.safetensors").open("wb") as out:
        out.write(struct.pack("<Q", len(text)) + text)
        for _, shape in tensors_of(config):
            write_tensor(out, shape, numbers, rng)
    return config
