#!/usr/bin/env python3
"""Compares Quire's tokens of a GGUF file with llama.cpp's on random strings.

    python3 crosscheck_gguf.py BUILD/bin/text_tool FILE.gguf... [--count 3000] [--seed 1]

Special tokens are parsed with bos and eos added, then read as plain text without both. Texts that differ on purpose are
left out: not in NFC, which Qwen's own tokenizer makes; with newer Unicode; and with "</s>", which llama.cpp takes for a
control token in byte-level vocabularies, too. About 1 % differ with the pre-tokenizer tekken, whose marks (\\p{M})
llama.cpp cuts off. A developer's tool: it needs `pip install llama-cpp-python tokenizers`.
"""

import argparse
import json
import random
import subprocess
import sys
import unicodedata

import llama_cpp

from crosscheck_tokenizer import random_text
from make_tokenizer_golden import HAND_WRITTEN, SPECIAL_TEXT


class LlamaCpp:
    def __init__(self, path):
        llama_cpp.llama_log_set(QUIET, None)
        parameters = llama_cpp.llama_model_default_params()
        parameters.vocab_only = True
        self.model = llama_cpp.llama_model_load_from_file(path.encode(), parameters)
        self.vocab = llama_cpp.llama_model_get_vocab(self.model)
        self.is_bpe = llama_cpp.llama_vocab_type(self.vocab) == llama_cpp.LLAMA_VOCAB_TYPE_BPE

    def encode(self, text, special):
        data = text.encode()
        ids = (llama_cpp.llama_token * (len(data) + 16))()
        count = llama_cpp.llama_tokenize(self.vocab, data, len(data), ids, len(ids), special, special)
        return list(ids[:count])

    def special_texts(self):
        count = llama_cpp.llama_vocab_n_tokens(self.vocab)
        kinds = llama_cpp.LLAMA_TOKEN_ATTR_CONTROL | llama_cpp.LLAMA_TOKEN_ATTR_USER_DEFINED
        return [llama_cpp.llama_vocab_get_text(self.vocab, i).decode() for i in range(count)
                if llama_cpp.llama_vocab_get_attr(self.vocab, i) & kinds]


QUIET = llama_cpp.llama_log_callback(lambda level, text, data: None)


def texts_for(oracle, count, seed):
    rng = random.Random(seed)
    special = oracle.special_texts() + SPECIAL_TEXT
    texts = list(HAND_WRITTEN)
    while len(texts) < count:
        text = random_text(rng)
        if rng.random() < 0.3:
            cut = rng.randrange(len(text) + 1)
            text = text[:cut] + rng.choice(special) + text[cut:]
        texts.append(text)
    return [t for t in texts if unicodedata.is_normalized("NFC", t) and not (oracle.is_bpe and "</s>" in t)
            and not any(unicodedata.category(c) == "Cn" for c in t)]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("text_tool")
    parser.add_argument("files", nargs="+")
    parser.add_argument("--count", type=int, default=3000)
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    for path in arguments.files:
        oracle = LlamaCpp(path)
        texts = texts_for(oracle, arguments.count, arguments.seed)
        lines = "".join(json.dumps(text) + "\n" for text in texts)
        for mode, special in (("encode", True), ("plain", False)):
            out = subprocess.run([arguments.text_tool, mode, path], input=lines, capture_output=True, text=True,
                                 check=True).stdout.splitlines()
            ours = [[int(word) for word in line.split()] for line in out]
            assert len(ours) == len(texts)
            wrong = [(t, o, oracle.encode(t, special)) for t, o in zip(texts, ours) if o != oracle.encode(t, special)]
            print(f"{path} {mode}: {len(wrong)} of {len(texts)} differ")
            for text, mine, theirs in wrong[:12]:
                print("  ", ascii(text), mine, theirs)


if __name__ == "__main__":
    sys.exit(main())
