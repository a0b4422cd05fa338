#!/usr/bin/env python3
"""Compares the machine code of the attention kernels with a committed table.

  check_cuda_sass.py OBJECT_FOLDER TABLE [--rewrite]

OBJECT_FOLDER holds the objects of the kernels by nvcc. For each kernel and target the table has

  local      loads and stores of local memory: spilled registers, arrays that are not in registers
  copies     waits for asynchronous copies (DEPBAR)
  products   waits for products of a warpgroup (WARPGROUP.DEPBAR)
  exp2       powers of two between the wait for the scores and the wait for the values: the softmax
             that runs beside a product; the fewest, where there are several such pairs
  per_copy   instructions from one asynchronous copy to the next, in the warpgroup that copies; the
             middle one

and the check fails when one of the first three is more, exp2 over a tenth less, or per_copy over 2
more, and when a kernel is new or gone; --rewrite writes the table instead. With another nvcc release
only more local memory fails. Needs cuobjdump and nvdisasm: on the path, beside nvcc, or from the Python
packages nvidia-cuda-cuobjdump and nvidia-cuda-nvdisasm; ends with 77 where one is missing.
"""
import argparse
import glob
import os
import pathlib
import re
import shutil
import statistics
import subprocess
import sys

import check_cuda_resources

NO_TOOL = 77
COLUMNS = ("local", "copies", "products", "exp2", "per_copy")
MAX_FEWER_EXP2 = 0.1
MAX_MORE_PER_COPY = 2

TARGET = re.compile(r"^arch = (\S+)", re.MULTILINE)
FUNCTION = re.compile(r"Function : (\w+)")
INSTRUCTION = re.compile(r"^\s*/\*[0-9a-f]{4,}\*/\s+(?:@!?U?P\w+ )?([A-Z][\w.]*)\s*([^;]*);",
                         re.MULTILINE)


def parse(text):
    """Returns {(mangled kernel, target): [(operation, operands)]} from the output of cuobjdump -sass."""
    kernels = {}
    starts = [match.start() for match in TARGET.finditer(text)] + [len(text)]
    for start, end in zip(starts, starts[1:]):
        code = text[start:end]
        target = TARGET.match(code).group(1)
        parts = FUNCTION.split(code)
        for kernel, body in zip(parts[1::2], parts[2::2]):
            kernels[(kernel, target)] = INSTRUCTION.findall(body)
    return kernels


def exponentials(instructions):
    """Returns exp2, as above; None if there is no such pair of waits."""
    counts, count = [], None
    for operation, operands in instructions:
        if operation.startswith("WARPGROUP.DEPBAR"):
            pending = operands.split(",")[-1].strip()
            if pending == "0x0" and count is not None:
                counts.append(count)
            count = None if pending == "0x0" else 0
        elif operation == "MUFU.EX2" and count is not None:
            count += 1
    return min(counts) if counts else None


def instructions_per_copy(instructions):
    """Returns per_copy, as above; None if no warpgroup only copies."""
    operations = [operation for operation, _ in instructions]
    start = next((i for i, name in enumerate(operations) if name.startswith("USETMAXREG.DEALLOC")),
                 len(operations))
    places = [i for i, name in enumerate(operations) if i > start and name.startswith("LDGSTS")]
    gaps = [after - before for before, after in zip(places, places[1:])]
    return round(statistics.median(gaps)) if gaps else None


def measure(instructions):
    operations = [operation for operation, _ in instructions]
    return {
        "local": sum(name.split(".")[0] in ("LDL", "STL") for name in operations),
        "copies": sum(name.startswith("DEPBAR") for name in operations),
        "products": sum(name.startswith("WARPGROUP.DEPBAR") for name in operations),
        "exp2": exponentials(instructions),
        "per_copy": instructions_per_copy(instructions),
    }


def compare(expected, found, same_release):
    """Returns (faults, remarks)."""
    faults, remarks = [], []
    for key in sorted(expected.keys() | found.keys()):
        name = " ".join(key)
        if key not in found or key not in expected:
            faults.append(f"{name}: " + ("in the table, not in the build" if key not in found
                                         else "not in the table"))
            continue
        for column in COLUMNS:
            before, now = expected[key][column], found[key][column]
            if before == now:
                continue
            if before is None or now is None:
                is_worse = True
            elif column == "exp2":
                is_worse = now < before * (1 - MAX_FEWER_EXP2)
            else:
                is_worse = now > before + (MAX_MORE_PER_COPY if column == "per_copy" else 0)
            is_fault = is_worse and (same_release or column == "local")
            (faults if is_fault else remarks).append(f"{name}: {column} {now}, {before} before")
    return faults, remarks


def write_table(path, found, release):
    width = max(len(kernel) for _, kernel, _ in found)
    lines = ["# What the machine code of the attention kernels has, by cuobjdump; the columns are",
             "# explained in tests/tools/check_cuda_sass.py, which writes this with --rewrite.",
             f"nvcc release {release}"]
    last_file = None
    for (file, kernel, target), row in sorted(found.items()):
        if file != last_file:
            lines += ["", f"{file:<{width + 9}} " + " ".join(f"{c:>8}" for c in COLUMNS)]
            last_file = file
        values = " ".join(f"{'-' if row[c] is None else row[c]:>8}" for c in COLUMNS)
        lines.append(f"  {kernel:<{width}} {target:<6} {values}")
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")


def read_table(text):
    found, release, file = {}, None, None
    for line in text.splitlines():
        if match := check_cuda_resources.RELEASE.match(line):
            release = match.group(1)
        elif line.startswith("  "):
            kernel, target, *values = line.split()
            found[(file, kernel, target)] = {
                column: None if value == "-" else int(value)
                for column, value in zip(COLUMNS, values)}
        elif line and not line.startswith("#"):
            file = line.split()[0]
    return found, release


def find(tool):
    """Returns the tool's path: on PATH, beside nvcc, or in one of NVIDIA's Python packages. None if it is missing."""
    nvcc = shutil.which("nvcc", path="/usr/local/cuda/bin") or shutil.which("nvcc")
    beside_nvcc = shutil.which(tool, path=str(pathlib.Path(nvcc).parent)) if nvcc else None
    packages = [file for folder in sys.path
                for file in glob.glob(f"{glob.escape(folder)}/nvidia/*/bin/{tool}")]
    return shutil.which(tool) or beside_nvcc or (packages[0] if packages else None)


def read_objects(folder, cuobjdump, nvdisasm):
    # cuobjdump starts nvdisasm.
    environment = {**os.environ, "PATH": f"{pathlib.Path(nvdisasm).parent}:{os.environ['PATH']}"}
    found = {}
    for path in sorted([*folder.glob("decode_lines*.o"), *folder.glob("paged_*.o"), *folder.glob("prefill_*.o")]):
        text = subprocess.run([cuobjdump, "-sass", path], check=True, stdout=subprocess.PIPE,
                              env=environment, text=True).stdout
        kernels = parse(text)
        names = check_cuda_resources.demangle(sorted({kernel for kernel, _ in kernels}))
        for (kernel, target), instructions in kernels.items():
            found[(path.stem, names[kernel], target)] = measure(instructions)
    return found


# ---- Tests --------------------------------------------------------------------------------------

def sass(*instructions):
    """Returns a kernel of these instructions as cuobjdump prints it."""
    lines = ["Fatbin elf code:", "================", "arch = sm_90a", "code version = [1,8]", "",
             "\tcode for sm_90a", "\t\tFunction : _Z6KernelPf", '\t.headerflags\t@"EF_CUDA"']
    for i, instruction in enumerate(instructions):
        lines += [f"        /*{16 * i:04x}*/                   {instruction} ;    "
                  "/* 0x0000000000007992 */",
                  "                                               /* 0x000fec0000002000 */"]
    return "\n".join(lines) + "\n"


def self_test():
    good = ["WARPGROUP.DEPBAR.LE gsb0, 0x1"] + 20 * ["MUFU.EX2 R3, R3"] + [
        "WARPGROUP.DEPBAR.LE gsb0, 0x0", "MUFU.EX2 R4, R4", "DEPBAR.LE SB0, 0x0",
        "USETMAXREG.DEALLOC.CTAPOOL 0x28", "@P0 LDGSTS.E.BYPASS.128 [R1], desc[UR4][R2.64], !P3",
        "IADD3 R2, R2, R3, RZ", "LDGSTS.E.BYPASS.128 [R1+0x400], desc[UR4][R2.64]",
        "IMAD R2, R2, R3, RZ", "LDGSTS.E.BYPASS.128 [R1+0x800], desc[UR4][R2.64]", "@!P0 EXIT"]
    key = ("paged", "Kernel", "sm_90a")

    def found(instructions):
        kernels = parse(sass(*instructions))
        assert list(kernels) == [("_Z6KernelPf", "sm_90a")]
        return {key: measure(kernels[("_Z6KernelPf", "sm_90a")])}

    def faults(instructions, same_release=True):
        return compare(table, found(instructions), same_release)[0]

    table = found(good)
    assert table[key] == {"local": 0, "copies": 1, "products": 2, "exp2": 20, "per_copy": 2}
    assert faults(good) == []
    for spill in ("STL.64 [R1+0x8], R2", "LDL R3, [R1]"):
        assert faults(good + [spill]) and faults(good + [spill], same_release=False)
    assert faults(good + ["DEPBAR.LE SB0, 0x1"])
    assert faults(good + ["WARPGROUP.DEPBAR.LE gsb0, 0x0"])

    # The wait for the values moves up, before part of the softmax.
    def with_early_wait(behind):
        return good[:21 - behind] + [good[21]] + good[21 - behind:21] + good[22:]

    assert faults(with_early_wait(2)) == [] and faults(with_early_wait(3))

    def with_slow_copies(more):
        at = next(i for i, instruction in enumerate(good) if instruction.startswith("IADD3"))
        return good[:at] + more * ["NOP"] + good[at:at + 2] + more * ["NOP"] + good[at + 2:]

    assert faults(with_slow_copies(2)) == [] and faults(with_slow_copies(3))
    assert not faults(with_slow_copies(3), same_release=False)
    assert faults([instruction for instruction in good if "DEALLOC" not in instruction])
    assert compare(table, {}, True)[0] and compare({}, table, True)[0]


def main():
    self_test()
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("objects", type=pathlib.Path)
    parser.add_argument("table", type=pathlib.Path)
    parser.add_argument("--rewrite", action="store_true")
    arguments = parser.parse_args()
    tools = {tool: find(tool) for tool in ("cuobjdump", "nvdisasm")}
    for tool, path in tools.items():
        if path is None:
            print(f"skipped: {tool} is not on the path, not beside nvcc and not in the Python package "
                  f"nvidia-cuda-{tool}")
            return NO_TOOL
    found = read_objects(arguments.objects, **tools)
    if not found:
        print(f"no paged_*.o in {arguments.objects}: build quire_cuda_kernels")
        return 1
    logs = arguments.objects / "nvcc.ptxas"
    release = check_cuda_resources.RELEASE.search(logs.read_text(encoding="utf-8")).group(1)
    if arguments.rewrite:
        write_table(arguments.table, found, release)
        print(f"{arguments.table}: {len(found)} kernels")
        return 0
    expected, expected_release = read_table(arguments.table.read_text(encoding="utf-8"))
    built = {target for _, _, target in found}
    expected = {key: value for key, value in expected.items() if key[2] in built}
    faults, remarks = compare(expected, found, release == expected_release)
    for remark in remarks:
        print(f"note: {remark}")
    print("\n".join(faults))
    print(f"{len(found)} kernels, {len(faults)} faults; nvcc {release}, table {expected_release}")
    if faults:
        print("If this change is intended, run the same command with --rewrite and commit the table.")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
