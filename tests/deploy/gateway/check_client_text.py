#!/usr/bin/env python3
"""Renders random templates whose client writes Greek letters, while literals have none, by quire_render_template, and
checks the ranges of client text. Run by hand; client_text_test.cc does the same with the golden templates.

    python3 tests/deploy/gateway/check_client_text.py --program BUILD/bin/quire_render_template --count 100000

Prints each template with a Greek letter outside the ranges; or with a Latin one in them, unless it changes letter case
or escapes, which marks whole texts. Exit 1 if there is one.
"""
import argparse
import collections
import json
import re
import subprocess
import sys

import template_generator

CLIENT = {"s": "Αβγ δ", "t": "σς", "u": "ωψ", "l": [3, "β", "α", 2], "m": ["γ", "δ"], "words": ["β", "Α", "ά", ""],
          "e": {"κ": 1, "λ": "μν", "ξ": [1, {"ο": None}]}}
MODEL = {**template_generator.VARIABLES, "s": "", "l": [], "words": []}
WHOLE = re.compile("upper|lower|title|capitalize|ensure_ascii")


def faults(text, ranges, is_exact):
    marked = bytearray(len(text.encode()))
    for begin, end in ranges:
        marked[begin:end] = b"\1" * (end - begin)
    place = 0
    for character in text:
        if "\u0370" <= character <= "\u03ff" and not marked[place]:
            yield "unmarked"
        elif is_exact and re.match("[a-zA-Z]", character) and marked[place]:
            yield "marked"
        place += len(character.encode())


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--program", required=True)
    parser.add_argument("--count", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0, help="of the first template")
    args = parser.parse_args()
    process = subprocess.Popen([args.program], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    counts = collections.Counter()
    for seed in range(args.seed, args.seed + args.count):
        template = template_generator.Generator(seed).template()
        process.stdin.write(json.dumps({"template": template, "variables": CLIENT, "model_variables": MODEL}).encode() + b"\n")
        process.stdin.flush()
        answer = json.loads(process.stdout.readline())
        if "text" not in answer:
            counts["refused"] += 1
            continue
        is_exact = not WHOLE.search(template)
        found = collections.Counter(faults(answer["text"], answer["client_text"], is_exact))
        counts.update(found.keys() or ["right, exact" if is_exact else "right"])
        counts["with client text"] += bool(answer["client_text"])
        if found:
            print(f"seed {seed}: {dict(found)}\n{template}\n{answer}", flush=True)
    print(dict(counts))
    return 1 if counts["unmarked"] or counts["marked"] or not counts["with client text"] else 0


if __name__ == "__main__":
    sys.exit(main())
