#!/usr/bin/env python3
"""Renders the templates of folders (*.jinja) with conversations, by quire_render_template and by jinja2 in
transformers' environment, and compares the texts byte for byte. Run by hand; needs jinja2 3.1.6.

    python3 tests/deploy/gateway/compare_templates.py --program BUILD/bin/quire_render_template --templates FOLDER...

Prints the counts, and every template that differs; exit 1 if any does.
"""
import argparse
import collections
import pathlib
import sys

import conversations
import render_pairs


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--program", required=True)
    parser.add_argument("--templates", nargs="+", required=True, type=pathlib.Path)
    parser.add_argument("--verbose", action="store_true")
    args = parser.parse_args()
    pair = render_pairs.Pair(args.program)
    counts = collections.Counter()
    files = sorted(path for folder in args.templates for path in folder.rglob("*.jinja"))
    for path in files:
        source = path.read_text(encoding="utf-8")
        of_file = collections.Counter()
        for name, variables in conversations.all_variables():
            verdict, ours, theirs = pair.verdict(source, variables)
            of_file[verdict] += 1
            if verdict not in ("equal", "both_refuse") or (args.verbose and verdict == "both_refuse"):
                print(f"{path.name} {name}: {verdict}\n  ours:   {str(ours)[:1500]}\n  theirs: {str(theirs)[:1500]}")
        counts += of_file
        print(f"{path.name}: {dict(of_file)}", flush=True)
    print(f"{len(files)} templates: {dict(counts)}")
    return 0 if files and set(counts) <= {"equal", "both_refuse"} else 1


if __name__ == "__main__":
    sys.exit(main())
