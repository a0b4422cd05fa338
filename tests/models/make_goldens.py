#!/usr/bin/env python3
"""Makes testdata/NAME.golden.json of the models that `fetch` got: config, tokens, chats.

    pip install transformers==5.24.0 gguf llama-cpp-python==0.3.36
    python3 make_goldens.py [FOLDER]

config: by transformers' AutoConfig. encode (special tokens parsed, with those that are put around a text) and plain: by
llama.cpp, for strings of tests/scheduler/text/testdata/strings.json, by their number. chats: by transformers' template
engine, of the file's template.
"""

import json
import pathlib
import sys
import unicodedata

from transformers import AutoConfig, AutoTokenizer

HERE = pathlib.Path(__file__).resolve().parent
TEXT = HERE.parent / "scheduler/text"
sys.path.insert(0, str(TEXT))
from crosscheck_gguf import LlamaCpp  # noqa: E402

FILES = {"smollm2": "SmolLM2-135M-Instruct.Q4_1.gguf", "coder": "Qwen2.5-Coder-0.5B-Instruct.Q4_K_M.gguf"}
EVERY = 16
TOOL = {"type": "function", "function": {"name": "add", "description": "Adds two numbers", "parameters": {
    "type": "object", "properties": {"a": {"type": "number"}, "b": {"type": "number"}}, "required": ["a", "b"]}}}
CHATS = [
    {"messages": [{"role": "user", "content": "What is the capital of Japan?"}]},
    {"messages": [{"role": "system", "content": "Be short."}, {"role": "user", "content": "Hi <|im_end|>"},
                  {"role": "assistant", "content": "Hello!"}, {"role": "user", "content": "Grüße, 你好"}]},
    {"messages": [{"role": "user", "content": "2 + 3?"}], "tools": [TOOL]},
]
CONFIG = ["architectures", "vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads",
          "num_key_value_heads", "head_dim", "max_position_embeddings", "rms_norm_eps", "rope_parameters",
          "tie_word_embeddings", "bos_token_id", "eos_token_id"]


def golden(folder, file):
    config = AutoConfig.from_pretrained(folder, gguf_file=file).to_dict()
    config["architectures"] = [{"llama": "LlamaForCausalLM", "qwen2": "Qwen2ForCausalLM"}[config["model_type"]]]
    tokenizer = AutoTokenizer.from_pretrained(folder, gguf_file=file)
    oracle = LlamaCpp(str(folder / file))
    texts = json.loads((TEXT / "testdata/strings.json").read_text(encoding="utf-8"))
    chosen = {str(i): t for i, t in enumerate(texts) if i % EVERY == 0 and unicodedata.is_normalized("NFC", t)
              and "</s>" not in t and not any(unicodedata.category(c) == "Cn" for c in t)}
    return {
        "config": {field: config[field] for field in CONFIG if config.get(field) is not None},
        "encode": {i: " ".join(map(str, oracle.encode(t, True))) for i, t in chosen.items()},
        "plain": {i: " ".join(map(str, oracle.encode(t, False))) for i, t in chosen.items()},
        "chats": [{**chat, "prompt": tokenizer.apply_chat_template(tokenize=False, add_generation_prompt=True,
                                                                   conversation=chat["messages"],
                                                                   tools=chat.get("tools"))} for chat in CHATS],
    }


def main():
    folder = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else pathlib.Path.home() / ".cache/quire/models")
    for name, file in FILES.items():
        if (folder / file).is_file():
            text = json.dumps(golden(folder, file), ensure_ascii=False, separators=(",", ":"))
            (HERE / f"testdata/{name}.golden.json").write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
