#!/usr/bin/env python3
"""Plants bugs in the scheduler, one at a time, and sees whether the simulation finds them.

    tests/scheduler/planted_bugs/plant_bugs.py                     # all of bugs.py
    tests/scheduler/planted_bugs/plant_bugs.py --only hash_without_salt,host_block_leaks
    tests/scheduler/planted_bugs/plant_bugs.py --list group_bugs   # all of group_bugs.py
    tests/scheduler/planted_bugs/plant_bugs.py --list standby_bugs

The soak of the list (core_soak, group_soak, standby_soak) without a bug comes first and must pass. Then, for each
bug, the file with the bug in it is compiled into a scratch folder by the command of the build, linked before the libraries of
the soak, and run. Nothing in the source tree or the build is touched. Exit code 1 when a bug is
not found within --hours simulated hours, 2 when the list does not fit the sources.

Needs a build directory made by Ninja with the soak built in it.
"""
import argparse
import importlib
import json
import pathlib
import re
import shlex
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parents[3]
FAILED = re.compile(r"FAILED seed=(\d+) after_hours=([\d.]+)")
FINDERS = [
    ("oracle", r"the token follows from the true history|hypothes"),
    ("worker", r"the worker takes the plan"),
    ("liveness", r"liveness|first request|whoever lives computes|Alarm clock"),
    ("standby", r"scheduler|duel"),
    ("group", r"rank|group"),
    ("audit", r"preempted request|watermark|may begin with|tenant .* got|introductions of"),
    ("model", r"not so:"),
    ("invariant", r"check failed|Assertion|pure virtual|terminate called"),
]


def fail(message):
    print(f"plant_bugs: {message}", file=sys.stderr)
    sys.exit(2)


def mutated(bug):
    source = ROOT / bug.file
    if not source.is_file():
        fail(f"{bug.name}: no such file: {bug.file}")
    text = source.read_text()
    if text.count(bug.text) != 1:
        fail(f"{bug.name}: its text occurs {text.count(bug.text)} times in {bug.file}, not once; "
             "move the bug along with the code")
    return text.replace(bug.text, bug.replacement)


def last_value_replaced(command, flag, value):
    at = len(command) - 1 - command[::-1].index(flag)
    return command[:at + 1] + [value] + command[at + 2:]


class Build:
    """Commands of the build directory, for other inputs and outputs."""

    def __init__(self, folder, program):
        self.folder = folder
        self.program = folder / "bin" / program
        database = folder / "compile_commands.json"
        if not database.is_file():
            fail(f"no {database}: configure the build first")
        self.compile_commands = {entry["file"]: entry for entry in json.loads(database.read_text())}
        listing = subprocess.run(["ninja", "-C", str(folder), "-t", "commands", program],
                                 capture_output=True, text=True)
        if listing.returncode != 0:
            fail(f"no target {program} in {folder}: {listing.stderr.strip()}")
        # ": && c++ ... -o bin/core_soak ... && :"
        link = listing.stdout.strip().splitlines()[-1]
        self.link_command = shlex.split(link.removeprefix(": && ").removesuffix(" && :"))

    def compile(self, bug, scratch):
        source = scratch / pathlib.Path(bug.file).name
        source.write_text(mutated(bug))
        entry = self.compile_commands.get(str(ROOT / bug.file))
        if entry is None:
            fail(f"{bug.name}: {bug.file} is not compiled in {self.folder}")
        output = scratch / "bug.o"
        command = last_value_replaced(shlex.split(entry["command"]), "-o", str(output))
        command = last_value_replaced(command, "-c", str(source)) + ["-w"]
        subprocess.run(command, cwd=entry["directory"], check=True)
        return output

    def link(self, bug_object, scratch):
        """The object stands before the archive that has the member without the bug."""
        program = scratch / self.program.name
        command = last_value_replaced(self.link_command, "-o", str(program))
        command.insert(command.index("-o"), str(bug_object))
        subprocess.run(command, cwd=self.folder, check=True)
        return program


def soak(program, *arguments):
    """Runs a soak. Returns None if it finds no bug, else (finder, description, hours, seed)."""
    run = subprocess.run([str(program), *arguments], capture_output=True, text=True,
                         errors="replace")
    if run.returncode == 0:
        return None
    found = FAILED.search(run.stderr)
    if found is None:
        fail(f"the soak says nothing of its seed:\n{run.stderr}")
    if run.returncode == -14:  # SIGALRM: a seed that does not end
        return "liveness", "a step does not end", float(found.group(2)), found.group(1)
    what = run.stderr[:found.start()].strip().splitlines()
    line = what[-1] if what else f"signal {-run.returncode}"
    finder = next((name for name, pattern in FINDERS if re.search(pattern, line)), "crash")
    line = re.sub(r"^.*/(\w+\.cc:\d+): |^event \d+: not so: ", r"\1 ", line).strip()
    return finder, line, float(found.group(2)), found.group(1)


def chosen(bugs, names):
    known = {bug.name: bug for bug in bugs}
    if len(known) != len(bugs):
        fail("two bugs have one name")
    unknown = [name for name in names if name not in known]
    if unknown:
        fail(f"no such bug: {', '.join(unknown)}")
    for bug in bugs:
        mutated(bug)  # the whole list fits the sources, whatever is run
    return [known[name] for name in names] if names else bugs


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--build", type=pathlib.Path, default=ROOT / "build/cpu-release")
    parser.add_argument("--list", default="bugs", help="bugs, group_bugs or standby_bugs")
    parser.add_argument("--only", default="", help="names, comma-separated; default: all")
    parser.add_argument("--hours", type=float, default=100, help="simulated, at most, for each bug")
    parser.add_argument("--clean-hours", type=float, default=5, help="simulated, without a bug")
    args = parser.parse_args()
    bugs = importlib.import_module(args.list)
    to_plant = chosen(bugs.BUGS, [name for name in args.only.split(",") if name])
    build = Build(args.build.resolve(), bugs.PROGRAM)
    if not build.program.is_file():
        fail(f"no {build.program}: build it first")
    clean = soak(build.program, "--hours", str(args.clean_hours))
    if clean is not None:
        fail(f"without any bug it fails: {clean}")
    print(f"{'without any bug':42} passes {args.clean_hours:g} hours", flush=True)

    num_found = 0
    begin = time.monotonic()
    for bug in to_plant:
        with tempfile.TemporaryDirectory() as folder:
            scratch = pathlib.Path(folder)
            mutant = build.link(build.compile(bug, scratch), scratch)
            result = soak(mutant, "--hours", str(args.hours))
        if result is None:
            print(f"{bug.name:42} NOT FOUND in {args.hours:g} hours", flush=True)
            continue
        num_found += 1
        finder, line, hours, seed = result
        print(f"{bug.name:42} {finder:9} {hours:6.2f} h, seed {seed:>5}: {line[:90]}", flush=True)
    print(f"{num_found} of {len(to_plant)} found in {time.monotonic() - begin:.0f} s")
    return 0 if num_found == len(to_plant) else 1


if __name__ == "__main__":
    sys.exit(main())
