#!/usr/bin/env python3
"""run_clang_tidy.py BUILD_FOLDER [--tests] [FILE...]: clang-tidy over the sources of the programs, with
--tests over the tests as well, or over the named files alone.

Most of the time of a run goes into the headers that every source includes again. So sources of one
folder are put together and checked as one file. Findings still name the file and line that they are
in. Where sources cannot be put together, since they use a name twice, each is
checked by itself.

Rules are in .clang-tidy; any error fails, functions over 70 lines are only listed. The commands may
come from gcc, whose warning options clang does not know.
"""
import concurrent.futures
import json
import os
import pathlib
import re
import shlex
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
MAX_SOURCES = 8
IGNORED = "-Wno-unknown-warning-option"


def arguments_of(entry):
    """The compiler's arguments without input, output and dependency files."""
    words = shlex.split(entry["command"])
    while words and not words[0].startswith("-"):
        words.pop(0)  # ccache, the compiler
    kept, skip = [], False
    for word in words:
        if skip or word in ("-c", "-MD", "-MMD"):
            skip = False
        elif word in ("-o", "-MT", "-MF"):
            skip = True
        elif word != entry["file"]:
            kept.append(word)
    return tuple(kept)


def wanted(file, with_tests):
    return "/generated/" not in file and (with_tests or "/tests/" not in file)


def groups_of(entries):
    """Sources of one folder with one set of arguments, at most MAX_SOURCES together."""
    by_kind = {}
    for file, entry in sorted(entries.items()):
        by_kind.setdefault((os.path.dirname(file), arguments_of(entry)), []).append(file)
    for (_, arguments), files in by_kind.items():
        for i in range(0, len(files), MAX_SOURCES):
            yield arguments, files[i:i + MAX_SOURCES]


def put_together(folder, number, files):
    """The file to check, and for a file of several sources a function that names the lines they have."""
    if len(files) == 1:
        return files[0], lambda text: text
    together = folder / f"group_{number}.cc"
    lines = []
    places = [("", 0)]
    for file in files:
        text = pathlib.Path(file).read_text().splitlines()
        lines += text
        places += [(file, i + 1) for i in range(len(text))]
    together.write_text("\n".join(lines) + "\n")

    def named(match):
        file, line = places[int(match.group(1))]
        return f"{file}:{line}:"

    return together, lambda text: re.sub(re.escape(str(together)) + r":(\d+):", named, text)


def tidy(file, arguments, *options):
    command = ["clang-tidy", "--quiet", *options, f"--extra-arg={IGNORED}", str(file), "--", *arguments]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)


def compiles(file, arguments):
    return tidy(file, arguments, "--checks=-*,modernize-use-nullptr").returncode == 0


def check(folder, number, arguments, files):
    rules = f"--config-file={ROOT}/.clang-tidy"
    together, with_places = put_together(folder, number, files)
    if len(files) == 1 or compiles(together, arguments):
        return with_places(tidy(together, arguments, rules).stdout)
    return "".join(tidy(file, arguments, rules).stdout for file in files)


def main():
    build = pathlib.Path(sys.argv[1]).resolve()
    named = {str(pathlib.Path(a).resolve()) for a in sys.argv[2:] if not a.startswith("--")}
    with_tests = "--tests" in sys.argv[2:]
    entries = {}
    for entry in json.loads((build / "compile_commands.json").read_text()):
        if entry["file"] in named or (not named and wanted(entry["file"], with_tests)):
            entries.setdefault(entry["file"], entry)
    folder = build / "clang-tidy"
    folder.mkdir(exist_ok=True)
    has_errors = False
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        results = [pool.submit(check, folder, i, *group) for i, group in enumerate(groups_of(entries))]
        for result in results:
            text = result.result()
            has_errors |= "error:" in text
            shown = text if "error:" in text else "".join(
                line + "\n" for line in text.splitlines() if "warning:" in line)
            sys.stdout.write(shown)
            sys.stdout.flush()
    return 1 if has_errors else 0


if __name__ == "__main__":
    sys.exit(main())
