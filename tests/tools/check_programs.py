#!/usr/bin/env python3
"""How the programs of this build were hardened: by their files, and by the commands that made them.

QUIRE_BUILD is the build folder.
"""
import json
import os
import re
import subprocess
import sys

BUILD = os.environ["QUIRE_BUILD"]
PROGRAMS = ("quire", "quire_gateway", "quire_scheduler", "quire_worker")
FLAGS = ["-fstack-protector-strong", "-fstack-clash-protection", "-D_FORTIFY_SOURCE=2",
         "-D_GLIBCXX_ASSERTIONS"]
X86_FLAGS = ["-fcf-protection"]
ENDBR64 = b"\xf3\x0f\x1e\xfa"


def readelf(option, path):
    done = subprocess.run(["readelf", "-W", option, path], capture_output=True, text=True, check=True)
    return done.stdout


def bytes_at(path, address, count):
    """Returns the bytes that are loaded at an address."""
    for line in readelf("-l", path).splitlines():
        match = re.match(r" *LOAD +0x(\w+) 0x(\w+) 0x\w+ 0x(\w+)", line)
        if match:
            offset, start, size = (int(group, 16) for group in match.groups())
            if start <= address < start + size:
                with open(path, "rb") as file:
                    file.seek(offset + address - start)
                    return file.read(count)
    raise AssertionError(f"{path}: nothing is loaded at {address:#x}")


def is_x86():
    return os.uname().machine == "x86_64"


def faults_of_file(path):
    """Yields faults that a program or a library may have."""
    dynamic = readelf("-d", path)
    segments = readelf("-l", path)
    if "GNU_RELRO" not in segments or not re.search(r"\bBIND_NOW\b|Flags:.*\bNOW\b", dynamic):
        yield "no full RELRO"
    if re.search(r"\((RUNPATH|RPATH)\)", dynamic):
        yield "has a RUNPATH"
    if re.search(r"GNU_STACK.* RWE ", segments):
        yield "has an executable stack"


def faults_of_program(path):
    """Yields faults that only a program may have."""
    if not re.search(r"Flags:.*\bPIE\b", readelf("-d", path)):
        yield "no PIE"
    symbols = readelf("-s", path)
    if "__stack_chk_fail" not in symbols:
        yield "no stack protector"
    if not re.search(r"__\w+_chk\b", symbols):
        yield "no fortified function"
    main = re.search(r": (\w+) +\d+ FUNC +GLOBAL +\w+ +\d+ main$", symbols, re.M)
    # Looks at main, since the note about a whole program needs the note in crt1.o, and Debian's crt1.o has none.
    if is_x86() and bytes_at(path, int(main.group(1), 16), 4) != ENDBR64:
        yield "functions do not begin with endbr64"


def faults_of_commands():
    flags = FLAGS + (X86_FLAGS if is_x86() else [])
    with open(os.path.join(BUILD, "compile_commands.json"), encoding="utf-8") as file:
        for command in json.load(file):
            missing = [flag for flag in flags if flag not in command["command"].split()]
            if missing:
                yield f"{command['file']}: compiled without {' '.join(missing)}"


def main():
    folder = os.path.join(BUILD, "bin")
    libraries = [name for name in sorted(os.listdir(folder)) if name.endswith(".so")]
    faults = list(faults_of_commands())
    for name in [*PROGRAMS, *libraries]:
        faults += [f"{name}: {fault}" for fault in faults_of_file(os.path.join(folder, name))]
    for name in PROGRAMS:
        faults += [f"{name}: {fault}" for fault in faults_of_program(os.path.join(folder, name))]
    print("\n".join(faults))
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
