#!/usr/bin/env python3
"""Plants bugs in what the fuzz targets are for, one at a time, and sees whether they find them.

    tests/fuzz/plant_fuzz_bugs.py                                    # all of fuzz_bugs.py
    tests/fuzz/plant_fuzz_bugs.py --list                             # the names, if they fit the sources
    tests/fuzz/plant_fuzz_bugs.py --only step_plan,hole_of_a_byte    # of a target, or one

The seeds come first, as NAME_fuzz_test runs them; then, where they find nothing, fuzzing from the seeds alone,
for --seconds. Nothing in the source tree or the build is touched. Exit code 1 when a bug is not found, 2 when the list
does not fit the sources.

Needs build/cpu-fuzz, as tests/fuzz/run makes it.
"""
import argparse
import pathlib
import re
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests/scheduler/planted_bugs"))
from plant_bugs import Build, fail, mutated  # noqa: E402  (of planted_bugs: a script is in no package)

import fuzz_bugs  # noqa: E402

FUZZ = ROOT / "tests/fuzz"


def folders(target):
    return [str(folder) for folder in (FUZZ / "corpus" / target, FUZZ / "found" / target)
            if folder.is_dir()]


def what(output):
    """Returns the line of the output that describes the finding."""
    pattern = re.compile(r"check failed.*|SUMMARY: .*|runtime error: .*|ERROR: libFuzzer.*|FATAL.*|.*as its name says.*")
    found = pattern.search(output)
    return found.group(0).strip()[:100] if found else "ends with an error"


def by_seeds(program, target):
    run = subprocess.run([program, *folders(target)], cwd=ROOT, capture_output=True, text=True, errors="replace")
    return None if run.returncode == 0 else what(run.stderr + run.stdout)


def by_fuzzing(program, target, seconds, scratch):
    learnt = scratch / "learnt"
    learnt.mkdir()
    command = ["nice", "-n", "10", program, f"-max_total_time={seconds}", "-max_len=65536", "-timeout=10",
               "-rss_limit_mb=512", "-print_final_stats=1", "-seed=1", f"-artifact_prefix={scratch}/"]
    words = FUZZ / f"{target}.dict"
    command += [f"-dict={words}"] if words.is_file() else []
    run = subprocess.run([*command, str(learnt), *folders(target)], cwd=ROOT, capture_output=True, text=True,
                         errors="replace")
    executed = re.search(r"number_of_executed_units: (\d+)", run.stderr)
    return run.returncode != 0, int(executed.group(1)) if executed else 0, what(run.stderr)


def judge(bug, folder, seconds):
    """(whether it was found, a line about it)."""
    with tempfile.TemporaryDirectory() as name:
        scratch = pathlib.Path(name)
        test = Build(folder, f"tests/fuzz/{bug.target}_fuzz_test")
        bug_object = test.compile(bug, scratch)
        found = by_seeds(test.link(bug_object, scratch), bug.target)
        if found is not None:
            return True, f"seeds: {found}"
        program = Build(folder, f"fuzz/{bug.target}_fuzz").link(bug_object, scratch)
        is_found, num_runs, found = by_fuzzing(program, bug.target, seconds, scratch)
        return is_found, f"{num_runs} executions: {found}" if is_found else f"NOT FOUND in {num_runs} executions"


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--build", type=pathlib.Path, default=ROOT / "build/cpu-fuzz")
    parser.add_argument("--list", action="store_true", help="plants nothing")
    parser.add_argument("--only", default="", help="targets and names, comma-separated; default: all")
    parser.add_argument("--seconds", type=int, default=60, help="of fuzzing, at most, for each bug")
    args = parser.parse_args()
    for bug in fuzz_bugs.BUGS:
        mutated(bug)  # the whole list fits the sources, whatever is run
    only = set(filter(None, args.only.split(",")))
    if unknown := only - {key for bug in fuzz_bugs.BUGS for key in (bug.name, bug.target)}:
        fail(f"no such bug or target: {', '.join(sorted(unknown))}")
    if args.list:
        print("\n".join(f"{bug.target:16} {bug.name}" for bug in fuzz_bugs.BUGS))
        return 0
    missed = 0
    for bug in fuzz_bugs.BUGS:
        if not only or only & {bug.name, bug.target}:
            is_found, line = judge(bug, args.build.resolve(), args.seconds)
            missed += not is_found
            print(f"{bug.target:16} {bug.name:40} {line}", flush=True)
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
