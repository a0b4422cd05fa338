#!/usr/bin/env python3
"""Compares, for the templates of folders (*.jinja), ChatTemplate::loops_over_content with vLLM's content format.
Run by hand; needs jinja2 3.1.6 and vLLM's sources.

    compare_content_format.py --program BUILD/bin/quire_render_template --vllm FOLDER --templates FOLDER...

Runs the functions of vLLM's chat_utils.py that find the format, and nothing else of it. Exit 1 if a template differs.
"""
import argparse
import ast
import collections
import json
import pathlib
import subprocess
import sys

import jinja2
import jinja2.nodes

import transformers_environment


def vllm_rule(folder):
    """Returns a function from a parsed template to "openai" or "string"."""
    tree = ast.parse((folder / "vllm/entrypoints/chat_utils.py").read_text(encoding="utf-8"))
    names = {"jinja2": jinja2, "deque": collections.deque}
    for node in tree.body:
        if isinstance(node, ast.FunctionDef) and (node.name.startswith("_iter_nodes") or node.name.endswith("_access")):
            exec(compile(ast.unparse(node), "chat_utils.py", "exec"), names)

    def rule(root):
        try:
            return "openai" if any(True for _ in names["_iter_nodes_assign_content_item"](root)) else "string"
        except AssertionError:  # a target that is no name: vLLM's default
            return "string"
    return rule


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--program", required=True)
    parser.add_argument("--vllm", required=True, type=pathlib.Path)
    parser.add_argument("--templates", nargs="+", required=True, type=pathlib.Path)
    args = parser.parse_args()
    rule, environment = vllm_rule(args.vllm), transformers_environment.make_environment()
    counts = collections.Counter()
    for path in sorted(path for folder in args.templates for path in folder.rglob("*.jinja")):
        source = path.read_text(encoding="utf-8")
        line = json.dumps({"template": source}) + "\n"
        answer = json.loads(subprocess.run([args.program], input=line.encode(), stdout=subprocess.PIPE, check=True).stdout)
        theirs = rule(environment.parse(source))
        ours = {True: "openai", False: "string"}[answer["loops_over_content"]] if "loops_over_content" in answer else answer["reason"]
        counts[theirs, ours] += 1
        if ours != theirs:
            print(f"{path}: ours {ours}, vLLM's {theirs}")
    print({f"vLLM {theirs}, ours {ours}": count for (theirs, ours), count in counts.items()})
    return 0 if counts and all(theirs == ours for theirs, ours in counts) else 1


if __name__ == "__main__":
    sys.exit(main())
