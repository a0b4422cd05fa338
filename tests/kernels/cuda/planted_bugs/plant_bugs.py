#!/usr/bin/env python3
"""Plants bugs in GPU kernels, one at a time, and sees whether the emulator's tests find them.

    tests/kernels/cuda/planted_bugs/plant_bugs.py                  # all of line_bugs.py
    tests/kernels/cuda/planted_bugs/plant_bugs.py --only each_cta_folds,copies_without_wait

The tests without a bug come first and must pass. Then, for each bug, a kernel's .cu file is
compiled by the command of the build, with the file that has the bug in a scratch folder before the
source tree. It is linked before the libraries of the tests, which run until one fails. Nothing in
the source tree or the build is touched. Exit code 1 if a bug is not found, 2 if the list does not
fit the sources.

Needs a build directory made by Ninja with the list's programs built in it.
"""
import argparse
import importlib
import pathlib
import re
import shlex
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parents[4]
TIMEOUT_S = 120  # of a program with a bug, whose loops may have no end
FAILED = re.compile(r"^\[  FAILED  \] ([\w/.]+)", re.MULTILINE)


def fail(message):
    print(f"plant_bugs: {message}", file=sys.stderr)
    sys.exit(2)


def mutated(bug):
    text = (ROOT / bug.file).read_text()
    if text.count(bug.text) != 1:
        fail(f"{bug.name}: its text occurs {text.count(bug.text)} times in {bug.file}, not once; "
             "move the bug along with the code")
    return text.replace(bug.text, bug.replacement)


def commands(build, target):
    listing = subprocess.run(["ninja", "-C", str(build), "-t", "commands", target],
                             capture_output=True, text=True)
    if listing.returncode != 0:
        fail(f"no target {target} in {build}: {listing.stderr.strip()}")
    return listing.stdout.strip().splitlines()


def with_output(command, output):
    at = command.index("-o")
    return command[:at + 1] + [str(output)] + command[at + 2:]


def compile_bug(build, bugs, bug, scratch):
    """Compiles the bug's .cu file with the mutated header before the source tree's."""
    header = scratch / bug.file
    header.parent.mkdir(parents=True)
    header.write_text(mutated(bug))
    source = bugs.source(bug.head_dim)
    program = bugs.programs(bug.head_dim)[0].name
    line = next((line for line in commands(build, program) if line.endswith(f"/{source}")), None)
    if line is None:
        fail(f"{source} is not compiled in {build}")
    output = scratch / "bug.o"
    command = with_output(shlex.split(line), output)
    first_include = next(i for i, word in enumerate(command) if word.startswith("-I"))
    command.insert(first_include, f"-I{scratch}")
    for flag in ("-MD", "-MF", "-MT"):  # the build's dependency files stay as they are
        while flag in command:
            at = command.index(flag)
            del command[at:at + (1 if flag == "-MD" else 2)]
    subprocess.run(command + ["-w"], cwd=build, check=True)
    return output


def link(build, program, bug_object, scratch):
    """The object stands before the archive that has the member without the bug."""
    line = commands(build, program)[-1]
    command = shlex.split(line.removeprefix(": && ").removesuffix(" && :"))
    output = scratch / program
    command = with_output(command, output)
    command.insert(command.index("-o"), str(bug_object))
    subprocess.run(command, cwd=build, check=True)
    return output


def finding(executable, tests):
    """Runs the tests. Returns None if all pass, else how the first failure shows."""
    command = [str(executable), f"--gtest_filter={tests}", "--gtest_fail_fast"]
    try:
        run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, errors="replace",
                             timeout=TIMEOUT_S)
    except subprocess.TimeoutExpired:
        return "hangs"
    if run.returncode == 0:
        return None
    if run.returncode < 0:
        text = run.stderr.strip().splitlines()
        return "fault: " + (text[0] if text else f"signal {-run.returncode}")
    failed = FAILED.search(run.stdout)
    return f"test: {failed.group(1)}" if failed else f"exit code {run.returncode}"


def find(build, bugs, bug):
    with tempfile.TemporaryDirectory() as folder:
        scratch = pathlib.Path(folder)
        bug_object = compile_bug(build, bugs, bug, scratch)
        for program in bugs.programs(bug.head_dim):
            found = finding(link(build, program.name, bug_object, scratch), program.tests)
            if found is not None:
                return found
    return None


def executable_of(build, program):
    command = shlex.split(commands(build, program)[-1].removeprefix(": && ").removesuffix(" && :"))
    return build / command[command.index("-o") + 1]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--build", type=pathlib.Path, default=ROOT / "build/cpu-release")
    parser.add_argument("--list", default="line_bugs")
    parser.add_argument("--only", default="", help="names, comma-separated; default: all")
    args = parser.parse_args()
    build = args.build.resolve()
    bugs = importlib.import_module(args.list)
    names = [name for name in args.only.split(",") if name]
    for bug in bugs.BUGS:
        mutated(bug)  # the whole list fits the sources, whatever is run
    to_plant = [bug for bug in bugs.BUGS if not names or bug.name in names]
    if len(to_plant) < len(names):
        fail(f"the list does not have all of {', '.join(names)}")
    for program in {p for bug in to_plant for p in bugs.programs(bug.head_dim)}:
        clean = finding(executable_of(build, program.name), program.tests)
        if clean is not None:
            fail(f"{program.name} fails without any bug: {clean}")

    begin = time.monotonic()
    num_found = 0
    for bug in to_plant:
        found = find(build, bugs, bug)
        num_found += found is not None
        print(f"{bug.name:42} {(found or 'NOT FOUND')[:110]}", flush=True)
    print(f"{num_found} of {len(to_plant)} found in {time.monotonic() - begin:.0f} s")
    return 0 if num_found == len(to_plant) else 1


if __name__ == "__main__":
    sys.exit(main())
