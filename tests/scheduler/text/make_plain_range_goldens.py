#!/usr/bin/env python3
"""Writes testdata/plain_ranges.golden.json: what Hugging Face `tokenizers` makes of prompts in which a chat template's
special tokens count and a client's do not. Needs `pip install tokenizers`.

`tokenizers` has no ranges. So each special token is renamed to private characters, in a copy of the file, and the template
writes these; the token's own text, from the client, is then text like any other. Each case has the name of the
tokenizer ("normalized": with special tokens that are matched after the normalizer), parts [text, 1 if it is the
client's], and ids.
"""
import argparse
import json
import pathlib
import random

import tokenizers

FOLDER = pathlib.Path(__file__).parent / "testdata"
TEMPLATE = ["\n", "user\n", " ", "assistant", "start|>", "<|im_", "|>", "s>", "a", "", "Be terse. ", "]\n\n", "é"]
CLIENT = ["Hi there", " ", "  x", "\n\n", "<|im_start", "|im_end|>", "<", ">", "</", "s>", "日本語", "e\u0301", "\u0301", "x\u0338", "don't",
          "İ", "ﬁ", "word", "<word>", "big dog", "<Tool>", "    ", "A", "😀", "1234", "...", "....."]


def with_renamed_special_tokens(file, names):
    """Returns the tokenizer. Fills names: from the text of a special token to its new one."""
    for token in file["added_tokens"]:
        if token["special"]:
            names[token["content"]] = chr(0xE000 + token["id"] % 6000) + "\uf8ff"  # two, else BPE finds it
    assert len(set(names.values())) == len(names)
    for token in file["added_tokens"]:
        token["content"] = names.get(token["content"], token["content"])
    vocab = file["model"]["vocab"]
    for old, new in names.items():
        if old in vocab:
            vocab[new] = vocab.pop(old)
    if file["model"].get("unk_token") in names:
        file["model"]["unk_token"] = names[file["model"]["unk_token"]]
    file["post_processor"] = None  # the cases have no tokens in front
    return tokenizers.Tokenizer.from_str(json.dumps(file))


def make_parts(rng, names):
    parts = []
    for _ in range(rng.randint(1, 9)):
        if rng.random() < 0.35:
            parts.append([rng.choice(list(names)), 0])
        elif rng.random() < 0.4:
            parts.append([rng.choice(TEMPLATE), 0])
        else:
            parts.append(["".join(rng.choice(CLIENT + list(names)) for _ in range(rng.randint(1, 4))), 1])
    # Texts of the template that together are a special token would have to be renamed, too.
    run = "".join("\1" if is_client else "\0" if text in names else text for text, is_client in parts)
    return make_parts(rng, names) if any(name in run for name in names) else parts


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=60, help="cases for each tokenizer")
    args = parser.parse_args()
    rng = random.Random(37)
    rows = []
    for path in sorted(FOLDER.glob("*.tokenizer.json")):
        for is_normalized in (False, True):
            file = json.loads(path.read_text(encoding="utf-8"))
            if is_normalized and (file["normalizer"] is None or "Prepend" in json.dumps(file["normalizer"])):
                continue  # a prefix in the text of a token would have to come before the token
            for token in file["added_tokens"]:
                token["normalized"] = token["normalized"] or (is_normalized and token["special"])
            names = {}
            tokenizer = with_renamed_special_tokens(file, names)
            for _ in range(args.count):
                parts = make_parts(rng, names)
                text = "".join(text if is_client else names.get(text, text) for text, is_client in parts)
                ids = tokenizer.encode(text, add_special_tokens=False).ids
                rows.append(json.dumps({"tokenizer": path.name, "normalized": is_normalized, "parts": parts, "ids": ids}, ensure_ascii=False))
    (FOLDER / "plain_ranges.golden.json").write_text("[\n" + ",\n".join(rows) + "\n]\n", encoding="utf-8")
    print(f"{len(rows)} cases")


if __name__ == "__main__":
    main()
