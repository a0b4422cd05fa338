#!/usr/bin/env python3
"""Renders random templates by quire_render_template and by jinja2 in transformers' environment. Run by hand; needs
jinja2 3.1.6.

    python3 tests/deploy/gateway/compare_random_templates.py --program BUILD/bin/quire_render_template --count 200000

Prints each template on which the two differ, and the counts; exit 1 if any differs. A template that quire alone
refuses counts as `refused_by_design` if its message says that something is not supported, or names a limit.
"""
import argparse
import collections
import sys

import render_pairs
import template_generator

BY_DESIGN = ("not supported", "64 bits", "too many steps", "too much memory", "too deep", "has no text", "would escape",
             "depends on Python's storage", "views cannot be compared", "methods cannot be compared")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--program", required=True)
    parser.add_argument("--count", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0, help="of the first template")
    parser.add_argument("--show", type=int, default=10, help="how many differing templates to print")
    args = parser.parse_args()
    pair = render_pairs.Pair(args.program)
    counts, messages = collections.Counter(), collections.Counter()
    for seed in range(args.seed, args.seed + args.count):
        template = template_generator.Generator(seed).template()
        verdict, ours, theirs = pair.verdict(template, template_generator.VARIABLES)
        if verdict == "we_refuse" and any(words in ours[1] for words in BY_DESIGN):
            verdict = "refused_by_design"
            messages[ours[1].split(" (line")[0]] += 1
        counts[verdict] += 1
        if verdict in ("different", "we_refuse", "they_refuse"):
            args.show -= 1
            if args.show >= 0:
                print(f"seed {seed}: {verdict}\n{template}\n  ours:   {ours!r}\n  theirs: {theirs!r}", flush=True)
        if (seed - args.seed + 1) % 5000 == 0:
            print(f"to seed {seed}: {dict(counts)}", flush=True)
    print(dict(counts), dict(messages))
    return 0 if set(counts) <= {"equal", "both_refuse", "refused_by_design"} else 1


if __name__ == "__main__":
    sys.exit(main())
