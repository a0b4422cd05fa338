#!/usr/bin/env python3
"""Makes testdata/bpe.gguf and spm.gguf, vocabularies without weights, and what Hugging Face makes of strings.json.

    pip install gguf==0.19.0 tokenizers==0.23.3 transformers==5.24.0
    python3 make_gguf_tokenizer_goldens.py

bpe: for each tokenizer.ggml.pre, a tokenizer with the parts of the published tokenizer.json. spm: the tokenizer that
transformers' own converter makes of such a file. crosscheck_gguf.py compares the same with llama.cpp.
"""

import json
import unicodedata

import gguf
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers
from transformers.integrations.gguf.gguf_tokenizer_mapping import convert_gguf_tokenizer

from make_tokenizer_golden import (LLAMA3_PATTERN, OUT, QWEN2_PATTERN, SPECIAL_TEXT, dump, llama2, strings, train)

NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = range(1, 7)
BPE_ADDED = [("<|endoftext|>", CONTROL), ("<|im_start|>", CONTROL), ("<|im_end|>", CONTROL), ("", NORMAL),
             ("<Tool>", USER_DEFINED), ("[PAD7]", UNUSED),
             ("\u0120dog", NORMAL)]  # no merges lead to it: only ignore_merges finds it
SPM_ADDED = [("[INST]", CONTROL), ("big dog", USER_DEFINED), ("[PAD9]", UNUSED)]

GPT2_PATTERN = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
TEKKEN_PATTERN = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+"
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|\p{N}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


def split(pattern):
    return pre_tokenizers.Split(Regex(pattern), "isolated")


def byte_level(use_regex=False):
    return pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=use_regex)


# Name in the file: (pre-tokenizer, ignore_merges, adds bos)
PRE = {
    # llama.cpp's own, for files that name none; no model was trained with it.
    "default": ([split(r"[\p{P}\$\+<=>\^~\|]+"), split(GPT2_PATTERN), split(r"\p{N}+"), split(r"[0-9][0-9][0-9]"),
                 byte_level()], False, False),
    "gpt-2": ([byte_level(True)], False, False),
    "smollm": ([pre_tokenizers.Digits(individual_digits=True), byte_level(True)], False, False),
    "llama-bpe": ([split(LLAMA3_PATTERN), byte_level()], True, True),
    "smaug-bpe": ([split(LLAMA3_PATTERN), byte_level()], False, False),
    "qwen2": ([split(QWEN2_PATTERN), byte_level()], False, False),
    "tekken": ([split(TEKKEN_PATTERN), byte_level()], True, True),
    "deepseek-coder": ([split(r"[\r\n]"), split(r"\s?\p{L}+"), split(r"\s?\p{P}+"), split("[一-龥ࠀ-一가-퟿]+"),
                        pre_tokenizers.Digits(individual_digits=True), byte_level()], False, False),
}
NEEDS_PCRE2 = {"default", "tekken", "deepseek-coder"}


def bpe_vocabulary():
    data = train(byte_level(True), [], pre_tokenizers.ByteLevel.alphabet(), vocab_size=700)
    tokens = sorted(data["model"]["vocab"], key=data["model"]["vocab"].get)
    return tokens, data["model"]["merges"]


def write_bpe(tokens, merges):
    writer = gguf.GGUFWriter(OUT / "bpe.gguf", "llama")
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("smollm")
    writer.add_token_list(tokens + [text for text, _ in BPE_ADDED])
    writer.add_token_types([NORMAL] * len(tokens) + [kind for _, kind in BPE_ADDED])
    writer.add_token_merges([" ".join(pair) for pair in merges])
    writer.add_bos_token_id(len(tokens) + 1)
    writer.add_eos_token_id(len(tokens) + 2)
    write(writer)


def write(writer):
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def bpe_tokenizer(pre, tokens, merges):
    steps, ignore_merges, adds_bos = PRE[pre]
    vocab = {text: i for i, text in enumerate(tokens)}
    added = {text: len(tokens) + i for i, (text, _) in enumerate(BPE_ADDED)}
    vocab.update({text: i for text, i in added.items() if text in ("<Tool>", "[PAD7]")})
    # Hugging Face numbers added tokens itself: the special ones must be in the model to keep their ids.
    vocab.update(added)
    tokenizer = Tokenizer(models.BPE(vocab, [tuple(pair) for pair in merges], ignore_merges=ignore_merges))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(steps)
    if pre == "qwen2":
        tokenizer.normalizer = normalizers.NFC()
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([text for text, kind in BPE_ADDED if kind == CONTROL])
    tokenizer.add_tokens([AddedToken("<Tool>", normalized=False)])
    for text, kind in BPE_ADDED:
        assert kind == NORMAL or tokenizer.token_to_id(text) == added[text]
    return tokenizer, [added["<|im_start|>"]] if adds_bos else []


def spm_vocabulary():
    data = llama2()
    tokens = sorted(data["model"]["vocab"], key=data["model"]["vocab"].get)
    kinds = [UNKNOWN, CONTROL, CONTROL] + [BYTE] * 256 + [NORMAL] * (len(tokens) - 259)
    scores = [0.0] * 259 + [-float(i) for i in range(len(tokens) - 259)]
    for text, kind in SPM_ADDED:
        tokens.append(text)
        kinds.append(kind)
        scores.append(-1000.0)
    return tokens, kinds, scores


def write_spm(tokens, kinds, scores):
    writer = gguf.GGUFWriter(OUT / "spm.gguf", "llama")
    writer.add_tokenizer_model("llama")
    writer.add_token_list(tokens)
    writer.add_token_scores(scores)
    writer.add_token_types(kinds)
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_unk_token_id(0)
    write(writer)


def spm_tokenizer(tokens, kinds, scores):
    fields = {"tokenizer_type": "llama", "tokens": list(tokens), "scores": list(scores), "token_type": list(kinds),
              "bos_token_id": 1, "eos_token_id": 2, "unk_token_id": 0}
    # Of transformers' builders, that of phi3 normalizes as the published tokenizer.json of Llama 2 does.
    tokenizer, _ = convert_gguf_tokenizer("phi3", fields)
    for text, _ in SPM_ADDED:
        assert tokenizer.token_to_id(text) == tokens.index(text)
    return tokenizer, [1]


def golden(tokenizer, prefix, texts, first_special, every, skips_new):
    """Ids by the number of the string: with special tokens parsed and the prefix, and without both."""
    result = {"encode": {}, "plain": {}, "decode": {}}
    for i in list(range(0, first_special, every)) + list(range(first_special, len(texts), max(1, every // 2))):
        if skips_new and any(unicodedata.category(c) == "Cn" for c in texts[i]):
            continue
        tokenizer.encode_special_tokens = False
        ids = prefix + tokenizer.encode(texts[i], add_special_tokens=False).ids
        result["encode"][str(i)] = " ".join(map(str, ids))
        back = tokenizer.decode(ids)
        if back != texts[i]:
            result["decode"][str(i)] = back
        tokenizer.encode_special_tokens = True
        plain = tokenizer.encode(texts[i], add_special_tokens=False).ids
        result["plain"][str(i)] = " ".join(map(str, plain))
    return result


def main():
    texts, first_special = strings()
    assert json.loads((OUT / "strings.json").read_text()) == texts
    assert {"<Tool>", "[INST]", "big dog", "<|im_end|>"} <= set(SPECIAL_TEXT)
    tokens, merges = bpe_vocabulary()
    write_bpe(tokens, merges)
    by_pre = {pre: golden(*bpe_tokenizer(pre, tokens, merges), texts, first_special, 3 if pre == "smollm" else 9,
                          pre in NEEDS_PCRE2) for pre in PRE}
    dump(OUT / "bpe.golden.json", by_pre)
    vocabulary = spm_vocabulary()
    write_spm(*vocabulary)
    dump(OUT / "spm.golden.json", {"spm": golden(*spm_tokenizer(*vocabulary), texts, first_special, 3, False)})


if __name__ == "__main__":
    main()
