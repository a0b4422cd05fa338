#!/usr/bin/env python3
"""Compares Quire with Hugging Face `tokenizers` on random strings, far more than testdata/ keeps.

    python3 crosscheck_tokenizer.py BUILD/bin/text_tool [--count 100000] [--seed 1] [tokenizer.json ...]

Without files: every tokenizer of testdata/. Prints the number of strings whose ids or decoded text
differ, and the first of them. A developer's tool: it needs `pip install tokenizers`.
"""

import argparse
import json
import pathlib
import random
import subprocess
import sys

from tokenizers import Tokenizer

from make_tokenizer_golden import SCRIPTS, SENTENCES, SPACES, SPECIAL_TEXT, SYLLABLES, random_word


def random_text(rng):
    parts = []
    for _ in range(rng.randint(1, 6)):
        kind = rng.random()
        if kind < 0.45:
            parts.append(random_word(rng, SCRIPTS[rng.choice(list(SCRIPTS))], rng.randint(1, 8)))
        elif kind < 0.6:
            sentence = rng.choice([s for s in SENTENCES if s])
            start = rng.randrange(len(sentence))
            parts.append(sentence[start : start + rng.randint(1, 30)])
        elif kind < 0.75:
            parts.append("".join(rng.choices(SYLLABLES, k=rng.randint(1, 4))))
        elif kind < 0.85:
            parts.append(rng.choice(SPECIAL_TEXT))
        else:
            parts.append(rng.choice("0123456789'.,!?()|[]-_/…。，、।۔،\\\n\t\r") * rng.randint(1, 5))
        parts.append(rng.choice(SPACES + [""] * 6 + ["'s", "'LL", "\u0301\u0316"]))
    return "".join(parts)


def run_tool(tool, mode, path, lines):
    done = subprocess.run([tool, mode, path], input="\n".join(lines) + "\n", text=True,
                          capture_output=True, check=True)
    return done.stdout.split("\n")[: len(lines)]


def compare(name, inputs, ours, theirs):
    differing = [i for i in range(len(inputs)) if ours[i] != theirs[i]]
    print(f"  {name}: {len(differing)} of {len(inputs)} differ")
    for i in differing[:3]:
        print(f"    {inputs[i]!r}\n      ours   {ours[i]!r}\n      theirs {theirs[i]!r}")
    return len(differing)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("tool")
    parser.add_argument("files", nargs="*")
    parser.add_argument("--count", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_intermixed_args()
    rng = random.Random(arguments.seed)
    texts = [random_text(rng) for _ in range(arguments.count)]
    lines = [json.dumps(text) for text in texts]
    folder = pathlib.Path(__file__).parent / "testdata"
    total = 0
    for path in arguments.files or sorted(map(str, folder.glob("*.tokenizer.json"))):
        print(path)
        tokenizer = Tokenizer.from_file(path)
        ids = [e.ids for e in tokenizer.encode_batch(texts)]
        ours = [list(map(int, line.split())) for line in run_tool(arguments.tool, "encode", path, lines)]
        total += compare("encode", texts, ours, ids)
        tokenizer.encode_special_tokens = True
        plain = [e.ids for e in tokenizer.encode_batch(texts, add_special_tokens=False)]
        ours = [list(map(int, line.split())) for line in run_tool(arguments.tool, "plain", path, lines)]
        total += compare("plain", texts, ours, plain)
        id_lines = [" ".join(map(str, i)) for i in ids]
        ours = [json.loads(line) for line in run_tool(arguments.tool, "decode", path, id_lines)]
        total += compare("decode", id_lines, ours, tokenizer.decode_batch(ids))
    print("differences:", total)
    return 1 if total else 0


if __name__ == "__main__":
    sys.exit(main())
