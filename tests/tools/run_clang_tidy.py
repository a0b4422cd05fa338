#!/usr/bin/env python3
"""run_clang_tidy.py BUILD_FOLDER [--tests] [--analyzer] [FILE...]: clang-tidy over the sources of the programs,
with --tests over the tests as well, or over the named files alone. --analyzer adds the checks of clang's
static analyzer, which take four times as long as all others together.

Most of the time of a run goes into the headers that every source includes again. So sources are put
together, up to MAX_SOURCES of a room in one file, unless they define a name twice. Findings still name
the file and line that they are in. Sources that cannot be compiled together are parted.

Rules are in the .clang-tidy of the root and the Checks of the nearest one; any error fails, functions over 70 lines are only listed. A lock
that is forgotten is an error too (common/base/mutex.h).
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
MAX_SOURCES = 100
NO_ANALYZER = "-clang-analyzer-*"

# Names that a source defines: constants, types, functions with their first line of parameters, macros. A
# pattern is enough, since sources that clash all the same are taken apart.
DEFINED = re.compile(r"^(?:(?:inline |static |constexpr |const )+[\w:<>,\s*]*?\b(k[A-Z]\w*)\b\s*[={\[]"
                     r"|(?:class|struct|enum class|using) (\w+)"
                     r"|\w[\w:<>,*& ]* \*?&?(\w+\([^{\n]*)"
                     r"|#define (\w+))", re.MULTILINE)


def arguments_of(entry):
    """Returns the compiler's arguments that decide the meaning of a source. The others are for gcc. The folder
    of generated code is left out, since every source may include it and it separates no sources.
    """
    words = iter(shlex.split(entry["command"]))
    kept = []
    for word in words:
        if word == "-isystem":
            folder = next(words)
            kept += [] if folder.endswith("/generated") else [word, folder]
        elif word.startswith(("-I", "-std=", "-m")):
            kept.append(word)
        elif word.startswith("-D") and not re.search(r"_(EX|IM)PORTS$", word):
            kept.append(word)
    return tuple(kept)


def entries_of(build):
    """Yields each source with the entry that compiles it. A file of CMake's unity build includes several sources."""
    for entry in json.loads((build / "compile_commands.json").read_text()):
        if "/Unity/unity_" not in entry["file"]:
            yield entry["file"], entry
            continue
        for file in re.findall(r'^#include "(.+)"', pathlib.Path(entry["file"]).read_text(), re.MULTILINE):
            yield file, entry


def wanted(file, build, with_tests):
    return not file.startswith(f"{build}/") and (with_tests or "/tests/" not in file)


def rules_of(file):
    """Returns the Checks of the nearest .clang-tidy that the root's does not have. clang-tidy itself inherits
    nothing from the root when a file with rules is named.
    """
    nearest = next(p for p in pathlib.Path(file).parents if (p / ".clang-tidy").exists())
    if nearest == ROOT:
        return ""
    checks = re.search(r"^Checks: *>?([^:]*)\Z", (nearest / ".clang-tidy").read_text(), re.MULTILINE).group(1)
    return re.sub(r"[\s']", "", checks)


def groups_of(entries):
    """Yields arguments and sources that can be put together. They are in one room, have the same rules and
    arguments, and define no name twice.
    """
    by_kind = {}
    for file, entry in sorted(entries.items()):
        room = pathlib.Path(file).relative_to(ROOT).parts[0]
        by_kind.setdefault((room, rules_of(file), arguments_of(entry)), []).append(file)
    for (_, _, arguments), files in by_kind.items():
        groups = []
        for file in files:
            names = {name for found in DEFINED.findall(pathlib.Path(file).read_text()) for name in found if name}
            group = next((g for g in groups if len(g[0]) < MAX_SOURCES and not names & g[1]), None)
            if group is None:
                group = ([], set())
                groups.append(group)
            group[0].append(file)
            group[1].update(names)
        for group, _ in groups:
            yield arguments, group


def put_together(folder, files):
    """Returns the file to check, and a function that puts the sources' own lines into clang-tidy's output."""
    if len(files) == 1:
        return files[0], lambda text: text
    together = folder / ("with_" + re.sub(r"\W", "_", os.path.relpath(files[0], ROOT)) + f"_{len(files)}.cc")
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


def parted(files, text):
    """Returns the sources without those that have an error in `text`, and the sources that have one."""
    bad = [file for file in files if f"{file}:" in text]
    if not bad or len(bad) == len(files):
        return files[:len(files) // 2], files[len(files) // 2:]
    return [file for file in files if file not in bad], bad


def check(folder, arguments, files, checks=NO_ANALYZER):
    together, with_places = put_together(folder, files)
    command = ["clang-tidy", "--quiet", f"--config-file={ROOT / '.clang-tidy'}",
               f"--checks={checks},{rules_of(files[0])}", str(together), "--", *arguments, "-Wthread-safety"]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    text = with_places(result.stdout)
    errors = "".join(line for line in text.splitlines(True) if "[clang-diagnostic-error]" in line)
    if errors and len(files) > 1:
        return "".join(check(folder, arguments, part, checks) for part in parted(files, errors))
    return text if result.returncode == 0 or "error:" in text else f"error: {result.stderr}"


def main():
    build = pathlib.Path(sys.argv[1]).resolve()
    named = {str(pathlib.Path(a).resolve()) for a in sys.argv[2:] if not a.startswith("--")}
    with_tests = "--tests" in sys.argv[2:]
    checks = "" if "--analyzer" in sys.argv[2:] else NO_ANALYZER
    entries = {}
    for file, entry in entries_of(build):
        if file in named or (not named and wanted(file, build, with_tests)):
            entries.setdefault(file, entry)
    groups = sorted(groups_of(entries), key=lambda group: -len(group[1]))
    folder = build / "clang-tidy"
    folder.mkdir(exist_ok=True)
    has_errors = False
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        results = [pool.submit(check, folder, ["-x", "c++", *arguments, "-isystem", f"{build}/generated"], files,
                               checks)
                   for arguments, files in groups]
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
