#!/usr/bin/env python3
"""check_same_code.py [--base REVISION] [PATH...]: tells which changed files differ by more than comments.

Compares each file below the paths (default: all) that differs from REVISION (default: HEAD) with its
text there. C++, CUDA and protos are compared as tokens, Python as syntax trees without docstrings, YAML as
documents, other scripts line by line without comments. Pages are left out. Prints each file that
differs and its first difference; exit code 1 if there is one.
"""
import argparse
import ast
import itertools
import pathlib
import re
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]

# In this order: a comment inside a string is none, and neither is a string inside a comment.
CPP_TOKEN = re.compile(r"""
    (?P<comment>//(?:[^\n\\]|\\.|\\\n)*|/\*.*?\*/)
  | (?P<raw>\b(?:u8|[uUL])?R"(?P<delimiter>[^\s()\\]{0,16})\(.*?\)(?P=delimiter)")
  | (?P<string>"(?:[^"\\\n]|\\.)*"|(?<![0-9a-fA-F])'(?:[^'\\\n]|\\.)*')
  | (?P<line_end>\n)
  | (?P<joined>\\\n)
  | (?P<space>[^\S\n]+)
  | (?P<word>[\w.']+)
  | (?P<mark>.)
""", re.VERBOSE | re.DOTALL)


def cpp_tokens(text):
    """Line ends are tokens where they mean something: behind a directive."""
    tokens = []
    is_directive = False
    is_line_begin = True
    for match in CPP_TOKEN.finditer(text):
        kind = match.lastgroup
        if kind == "delimiter":
            kind = "raw"
        if kind in ("comment", "joined", "space"):
            continue
        if kind == "line_end":
            if is_directive:
                tokens.append("\n")
            is_directive = False
            is_line_begin = True
            continue
        if is_line_begin and match.group() == "#":
            is_directive = True
        is_line_begin = False
        tokens.append(match.group())
    return tokens


def python_tree(text):
    tree = ast.parse(text)
    for node in ast.walk(tree):
        body = getattr(node, "body", None)
        if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef)) and ast.get_docstring(node) is not None:
            node.body = body[1:]
    return ast.dump(tree, indent=0).split("\n")


def script_lines(text, has_line_comments=False):
    """Shell, CMake, TOML and the like. A '#' before quotes may be in a text and stays, unless whole lines that begin
    with it are comments in this language (not so in shell, whose here-documents have such lines)."""
    lines = []
    for number, line in enumerate(text.split("\n")):
        if number == 0 and line.startswith("#!"):
            lines.append(line)
            continue
        if has_line_comments and line.lstrip().startswith("#"):
            continue
        bare = re.sub(r"(^|\s)#[^'\"]*$", "", line).strip()
        if bare:
            lines.append(bare)
    return lines


def yaml_documents(text):
    import yaml  # Debian's python3-yaml, where a manifest has changed

    return [repr(each) for each in yaml.safe_load_all(text)]


def reader_of(path):
    suffix = path.suffix
    if suffix in (".h", ".cc", ".cu", ".cuh", ".proto"):
        return cpp_tokens
    if suffix == ".py":
        return python_tree
    if suffix in (".yaml", ".yml"):
        return yaml_documents
    if suffix == ".cmake" or path.name == "CMakeLists.txt":
        return lambda text: script_lines(text, has_line_comments=True)
    return script_lines


def first_difference(before, after):
    for old, new in itertools.zip_longest(before, after):
        if old != new:
            return f"{old!r} is {new!r} now"
    return None


def changed_files(base, paths):
    out = subprocess.run(["git", "diff", "--name-status", "--no-renames", "-z", base, "--", *paths], cwd=ROOT,
                         check=True, capture_output=True, text=True).stdout.split("\0")
    return [(status, pathlib.Path(name)) for status, name in zip(out[::2], out[1::2]) if not name.endswith(".md")]


def difference(base, status, path):
    if status != "M":
        return {"A": "is new", "D": "is gone"}.get(status, "has another type")
    before = subprocess.run(["git", "show", f"{base}:{path}"], cwd=ROOT, check=True, capture_output=True).stdout
    after = (ROOT / path).read_bytes()
    if before == after:
        return None
    try:
        read = reader_of(path)
        return first_difference(read(before.decode()), read(after.decode()))
    except (SyntaxError, UnicodeDecodeError) as error:
        return f"cannot be read: {error}"


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--base", default="HEAD")
    parser.add_argument("paths", nargs="*", default=["."])
    options = parser.parse_args()
    files = changed_files(options.base, options.paths)
    faults = 0
    for status, path in files:
        found = difference(options.base, status, path)
        if found is not None:
            faults += 1
            print(f"{path}: {found}")
    print(f"{len(files)} changed files, {faults} of them with other code")
    sys.exit(1 if faults else 0)


if __name__ == "__main__":
    main()
