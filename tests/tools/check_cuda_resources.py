#!/usr/bin/env python3
"""Compares registers and spilled bytes of each CUDA kernel, by ptxas in the build, with a committed table.

  check_cuda_resources.py LOG_FOLDER TABLE [--rewrite]

LOG_FOLDER holds a *.ptxas file for each kernel file: what nvcc -Xptxas -v printed. Fails when a
kernel spills more bytes than the table says, or needs over 8 registers more, or is new or gone, and
when ptxas had to change the order of a wgmma or to leave out setmaxnreg (its messages C75..);
--rewrite writes the table instead. Registers of another nvcc release are listed and do not fail;
targets that were not built are left out.
"""
import argparse
import pathlib
import re
import subprocess
import sys

MAX_MORE_REGISTERS = 8

ENTRY = re.compile(r"Compiling entry function '(\w+)' for '(\w+)'")
PROPERTIES = re.compile(r"Function properties for (\w+)")
SPILLS = re.compile(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads")
REGISTERS = re.compile(r"Used (\d+) registers")
WGMMA_MESSAGE = re.compile(r"\(C75\d\d\).*")
RELEASE = re.compile(r"^nvcc release (\S+)", re.MULTILINE)


def demangle(names):
    """Readable and stable: without our namespace, the hash of anonymous ones and the parameters."""
    out = subprocess.run(["c++filt"], input="\n".join(names), check=True, capture_output=True,
                         text=True).stdout.splitlines()
    readable = {}
    for name, text in zip(names, out):
        text = text.replace("(anonymous namespace)::", "").replace("quire::gpu::", "")
        text = re.sub(r"_GLOBAL__N__\w*::", "", text).replace("quire::", "")
        text = re.sub(r"\((?:int|unsigned int|bool)\)", "", text)
        text = text.removeprefix("void ")
        depth, end = 0, len(text)
        for i, character in enumerate(text):
            if character == "(" and depth == 0:
                end = i
                break
            depth += (character == "<") - (character == ">")
        readable[name] = text[:end].replace(" ", "")
    return readable


def parse(file, text):
    """[(file, mangled kernel, target, registers, spilled bytes)]."""
    rows, entry, spilled = [], None, 0
    for line in text.splitlines():
        if match := ENTRY.search(line):
            entry, spilled = match.groups(), 0
        elif (match := SPILLS.search(line)) and entry:
            spilled += int(match.group(2)) + int(match.group(3))
        elif (match := REGISTERS.search(line)) and entry:
            rows.append((file, entry[0], entry[1], int(match.group(1)), spilled))
            entry = None
    return rows


def wgmma_messages(file, text):
    return [f"{file}: {message}" for message in WGMMA_MESSAGE.findall(text)]


def read_logs(folder):
    """({(file, kernel, target): (registers, spilled bytes)}, release of nvcc, messages)."""
    rows, release, messages = [], None, []
    for path in sorted(folder.glob("*.ptxas")):
        text = path.read_text(encoding="utf-8")
        rows += parse(path.stem, text)
        messages += wgmma_messages(path.stem, text)
        if match := RELEASE.search(text):
            release = match.group(1)
    names = demangle(sorted({row[1] for row in rows})) if rows else {}
    return {(file, names[kernel], target): (registers, spilled)
            for file, kernel, target, registers, spilled in rows}, release, messages


def write_table(path, usage, release):
    lines = ["# Registers and spilled bytes (stores and loads) of a thread of each kernel, by ptxas.",
             "# Written by tests/tools/check_cuda_resources.py --rewrite.",
             f"nvcc release {release}"]
    width = max(len(kernel) for _, kernel, _ in usage)
    last_file = None
    for (file, kernel, target), (registers, spilled) in sorted(usage.items()):
        if file != last_file:
            lines += ["", file]
            last_file = file
        lines.append(f"  {kernel:<{width}} {target:<6} {registers:>4} {spilled:>6}")
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")


def read_table(text):
    usage, release, file = {}, None, None
    for line in text.splitlines():
        if match := RELEASE.match(line):
            release = match.group(1)
        elif line.startswith("  "):
            kernel, target, registers, spilled = line.split()
            usage[(file, kernel, target)] = (int(registers), int(spilled))
        elif line and not line.startswith("#"):
            file = line.strip()
    return usage, release


def compare(expected, found, same_release):
    """(faults, remarks)."""
    faults, remarks = [], []
    for key in sorted(expected.keys() | found.keys()):
        name = " ".join(key)
        if key not in found:
            faults.append(f"{name}: in the table, not in the build")
            continue
        if key not in expected:
            faults.append(f"{name}: not in the table ({found[key][0]} registers, "
                          f"{found[key][1]} bytes spilled)")
            continue
        (registers_before, spilled_before), (registers, spilled) = expected[key], found[key]
        if spilled > spilled_before:
            faults.append(f"{name}: spills {spilled} bytes, {spilled_before} before")
        if registers > registers_before + MAX_MORE_REGISTERS:
            (faults if same_release else remarks).append(
                f"{name}: {registers} registers, {registers_before} before")
        elif registers != registers_before:
            remarks.append(f"{name}: {registers} registers, {registers_before} before")
    return faults, remarks


def self_test():
    log = ("nvcc release 13.0\n"
           "ptxas info    : Compiling entry function '_ZN5quire3gpu46_GLOBAL__N__0_7_norm_cu_1_24Row"
           "ILi4EEEvPf' for 'sm_90'\n"
           "ptxas info    : Function properties for x\n"
           "    8 bytes stack frame, 4 bytes spill stores, 12 bytes spill loads\n"
           "ptxas info    : Used 40 registers, used 1 barriers\n")
    rows = parse("norm", log)
    assert [row[2:] for row in rows] == [("sm_90", 40, 16)]
    key = ("norm", "Row<4>", "sm_90")
    before = {key: (40, 0)}
    assert compare(before, {key: (40, 0)}, True) == ([], [])
    assert compare(before, {key: (48, 0)}, True)[0] == []
    assert compare(before, {key: (49, 0)}, True)[0]
    assert not compare(before, {key: (49, 0)}, False)[0]
    assert compare(before, {key: (40, 4)}, False)[0]
    assert compare(before, {}, True)[0]
    assert compare({}, before, True)[0]
    assert wgmma_messages("norm", log) == []
    assert wgmma_messages("f", "ptxas info    : (C7510) Potential Performance Loss: wgmma.mma_async "
                               "instructions are serialized") != []
    assert list(demangle(["_ZN5quire3gpu12_GLOBAL__N_13RowILi4EEEvPf"]).values()) == ["Row<4>"]


def main():
    self_test()
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("logs", type=pathlib.Path)
    parser.add_argument("table", type=pathlib.Path)
    parser.add_argument("--rewrite", action="store_true")
    arguments = parser.parse_args()
    found, release, messages = read_logs(arguments.logs)
    if not found:
        print(f"no kernels in the *.ptxas files of {arguments.logs}: build quire_cuda_kernels")
        return 1
    if arguments.rewrite:
        write_table(arguments.table, found, release)
        print(f"{arguments.table}: {len(found)} kernels")
        return 0
    expected, expected_release = read_table(arguments.table.read_text(encoding="utf-8"))
    built = {target for _, _, target in found}
    expected = {key: value for key, value in expected.items() if key[2] in built}
    faults, remarks = compare(expected, found, release == expected_release)
    faults += messages
    for remark in remarks:
        print(f"note: {remark}")
    print("\n".join(faults))
    print(f"{len(found)} kernels, {len(faults)} faults; nvcc {release}, table {expected_release}")
    if faults:
        print("If this change is intended, run the same command with --rewrite and commit the table.")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
