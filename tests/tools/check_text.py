#!/usr/bin/env python3
"""Checks the text of the repository: what a formatter cannot and a reviewer should not have to.

Fails on: unfinished marks, commented-out code, tabs, trailing blanks, long lines, headers without a
guard or without a word on thread safety, folders without a README, large or unexpected files, words
that the glossary replaces. Lists (without failing): files over 500 lines.
"""
import pathlib
import re
import subprocess
import sys

CODE = {".h", ".cc", ".cu", ".cuh"}
SCRIPTS = {".py", ".sh", ".cmake", ".txt", ".proto"}
MAX_COLUMNS = 100
MAX_BLOB_BYTES = 1 << 20
LARGE_FILES = re.compile(r"^(deploy/model/model\.safetensors|tests/.*\.safetensors)$")
LONG_FILE_LINES = 500

UNFINISHED = re.compile(r"\b(FIXME|XXX|HACK|TODO(?!\(#\d+\)))\b")
# A comment line that ends like a statement and holds code punctuation.
COMMENTED_CODE = re.compile(r"^\s*//\s*[\w:<>.\->&*\[\]]+\s*(\(.*\)|=[^=].*);\s*$")
# Word of others: ours. The glossary of ARCHITECTURE.md.
BANNED = {
    r"\bpage_size\b": "block_size_tokens",
    r"\bpage_table\b": "block_table",
    r"\bref_cnt\b": "ref_count",
    r"\bcu_seqlens": "query_start",
    r"\bcan_allocate\b": "AllocStatus",
    r"\bworld_size\b": "tp_size",
    r"\bKVCache[A-Z]": "KvCache...",
}


def repository_files(root):
    out = subprocess.run(["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
                         cwd=root, check=True, capture_output=True).stdout
    return [p for p in out.decode().split("\0") if p and (root / p).is_file()]


def check_line(line, suffix):
    faults = []
    if UNFINISHED.search(line):
        faults.append("unfinished mark; finish it, or name its issue as TODO(#n)")
    if "\t" in line and suffix != ".txt":
        faults.append("tab")
    if line != line.rstrip():
        faults.append("trailing blanks")
    if suffix in CODE:
        if len(line) > MAX_COLUMNS and "http" not in line:
            faults.append(f"line of {len(line)} columns (limit {MAX_COLUMNS})")
        if COMMENTED_CODE.match(line):
            faults.append("commented-out code")
        for pattern, ours in BANNED.items():
            if re.search(pattern, line):
                faults.append(f"forbidden word, use {ours}")
    return faults


def check_header(path, text):
    guard = "QUIRE_" + re.sub(r"[^A-Z0-9]", "_", path.upper()) + "_"
    faults = []
    if f"#ifndef {guard}\n#define {guard}\n" not in text:
        faults.append(f"{path}: no include guard {guard}")
    if not text.startswith("//"):
        faults.append(f"{path}: does not begin with a comment that states its contract")
    public = not path.startswith("tests/") and not path.endswith(".inl.h")
    if public and "hread safe" not in text and \
            "hread-safe" not in text and "value type" not in text:
        faults.append(f"{path}: does not state its thread safety")
    return faults


def check_file(root, path):
    suffix = pathlib.Path(path).suffix
    size = (root / path).stat().st_size
    if size > MAX_BLOB_BYTES and not LARGE_FILES.match(path):
        return [f"{path}: {size} bytes (limit {MAX_BLOB_BYTES})"], None
    if suffix not in CODE | SCRIPTS or "/testdata/" in path:
        return [], None
    text = (root / path).read_text(encoding="utf-8")
    if path.endswith("check_text.py"):
        return [], None
    lines = text.split("\n")
    faults = [f"{path}:{n}: {fault}" for n, line in enumerate(lines, 1)
              for fault in check_line(line, suffix)]
    if not text.endswith("\n") and text:
        faults.append(f"{path}: no newline at the end")
    if suffix == ".h":
        faults += check_header(path, text)
    long_file = f"{path}: {len(lines)} lines" if len(lines) > LONG_FILE_LINES else None
    return faults, long_file


def check_folders(root, paths):
    """Every folder that holds code has a README, or the one above it has."""
    folders = {str(pathlib.Path(p).parent) for p in paths if pathlib.Path(p).suffix in CODE}
    return [f"{folder}: no README.md" for folder in sorted(folders)
            if not folder.startswith("tests/") and not (root / folder / "README.md").is_file()
            and not (root / folder).parent.joinpath("README.md").is_file()]


def self_test():
    assert check_line("int a;  // FIXME", ".cc")
    assert check_line("  // foo->Bar(1, 2);", ".cc")
    assert check_line("x" * 101, ".cc")
    assert check_line("a ", ".py")
    assert check_line("int page_size = 0;", ".h")
    assert not check_line("  // Waits for Bar(1, 2); then goes on.", ".cc")
    assert not check_line("int a;  // TODO(#12): sentence.", ".cc")
    assert check_header("common/a.h", "int a;\n")


def main():
    self_test()
    root = pathlib.Path(__file__).resolve().parents[2]
    paths = repository_files(root)
    faults, long_files = [], []
    for path in paths:
        found, long_file = check_file(root, path)
        faults += found
        long_files += [long_file] if long_file else []
    faults += check_folders(root, paths)
    print("\n".join(faults))
    print("Over 500 lines (look twice):", ", ".join(long_files) or "none")
    print(f"{len(paths)} files, {len(faults)} faults")
    return 1 if faults or not paths else 0


if __name__ == "__main__":
    sys.exit(main())
