#!/usr/bin/env python3
"""compare.py --dir DIR --build DIR [--markdown FILE]: Quire and its peers take turns at each point, in rounds.

Needs what setup.sh made in --dir. All programs are started once. At a point one after the other is asked, each round
begins with another one, and who is not asked is stopped (SIGSTOP): never do two compute at once. Ratios are of values
of one round. Each value is printed when it is there, and is appended to --json. A comparison that is interrupted, or
that a program leaves, prints what it has and ends with 1.
"""
import argparse
import datetime
import json
import os
import pathlib
import platform
import re
import shlex
import signal
import statistics
import subprocess
import sys

HERE = pathlib.Path(__file__).resolve().parent
PEERS = ["OpenVINO", "vLLM", "llama.cpp"]
POINTS = ["prefill 512", "product", "prefill 2048", "decode 1", "decode 4", "decode 8", "decode 16", "decode 32",
          "served"]
OURS = ["product"]  # points that Quire alone answers
NAMES = {"product": "product of two threads at 512", "served": "served 128 / 64, 32 at a time"}


def command_of(program, options):
    folder = options.dir
    quire = [sys.executable, HERE / "run_quire.py", "--model", folder / "small"]
    commands = {
        "Quire": [*quire, "--build", options.build],
        "before": [*quire, "--build", options.before],
        "OpenVINO": [folder / "openvino/bin/python", HERE / "run_openvino.py", "--model", folder / "small_openvino"],
        "vLLM": [folder / "vllm/bin/python-preloaded", HERE / "run_vllm.py", "--model", folder / "small"],
        "llama.cpp": [folder / "llama_cpp/bin/python", HERE / "run_llama_cpp.py", "--model", folder / "small.gguf"],
    }
    more = ["--threads", options.threads, "--repeat", options.repeat]
    return [str(part) for part in [*commands[program], *more]]


def lacks(folder, paths, remedy):
    gone = [str(path) for path in dict.fromkeys(paths) if not (folder / path).exists()]
    return [f"{folder} lacks {', '.join(gone)} ({remedy})"] if gone else []


def missing(options):
    """Returns a text for each missing file: its path, and what makes it."""
    programs = ["bin/quire", "bin/quire_scheduler", "bin/quire_worker", "bench/engine_bench", "bench/kernel_bench"]
    faults = lacks(options.build, programs, "README.md builds them")
    if options.before:
        faults += lacks(options.before, programs, "README.md builds them")
    made = [options.dir / "small"]
    for peer in options.peers:
        command = command_of(peer, options)
        made += [pathlib.Path(command[0]), pathlib.Path(command[command.index("--model") + 1])]
    return faults + lacks(options.dir, [path.relative_to(options.dir) for path in made], "setup.sh makes them")


class Runner:
    """Runs a program in its own process group. The group is stopped (SIGSTOP) except while the program is asked."""

    def __init__(self, program, options):
        self.command = command_of(program, options)
        log = open(options.logs / f"{program}.log", "w")
        self._process = subprocess.Popen(self.command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log,
                                         text=True, start_new_session=True)
        self.about = self._answer(f"{program}: see {log.name}")
        self._signal(signal.SIGSTOP)

    def _signal(self, number):
        try:
            os.killpg(self._process.pid, number)
        except ProcessLookupError:
            pass

    def _answer(self, fault):
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(fault)
        return json.loads(line)

    def ask(self, point):
        self._signal(signal.SIGCONT)
        self._process.stdin.write(point + "\n")
        self._process.stdin.flush()
        answer = self._answer(f"{self.about['program']} ended at {point}")
        self._signal(signal.SIGSTOP)
        return answer

    def close(self):
        for number in (signal.SIGTERM, signal.SIGCONT):
            self._signal(number)
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._signal(signal.SIGKILL)
            self._process.wait()
        self._signal(signal.SIGKILL)  # children that it left


def in_turns(runners, round_number):
    names = list(runners)
    first = round_number % len(names)
    return names[first:] + names[:first]


def measure(runners, options):
    """Returns rounds of point to program to tokens a second."""
    rounds = []
    try:
        for number in range(options.rounds):
            rounds.append({point: {} for point in options.points})
            for point in options.points:
                for program in in_turns(runners, number):
                    if point in OURS and program in PEERS:
                        continue
                    answer = runners[program].ask(point)
                    rounds[-1][point][program] = answer["tokens_per_s"]
                    load = os.getloadavg()[0]
                    print(f"round {number + 1}, {point}, {program}: {answer['tokens_per_s']:.1f} tok/s of "
                          f"{[round(value, 1) for value in answer['values']]}, load {load:.1f}", flush=True)
                    with open(options.json, "a") as file:
                        line = {"time": datetime.datetime.now().isoformat(timespec="seconds"), "round": number + 1,
                                "program": program, "load": load, **answer}
                        file.write(json.dumps(line) + "\n")
    except (KeyboardInterrupt, RuntimeError) as reason:
        print(f"compare.py: not all rounds: {str(reason) or 'interrupted'}", file=sys.stderr)
        options.is_complete = False
    return rounds


def shown(values, digits=0):
    return ", ".join(f"{value:.{digits}f}" for value in values)


def with_median(ratios):
    return f"{shown(ratios, 2)}: **{statistics.median(ratios):.2f}**" if ratios else ""


def best_peer(values):
    return max((value for name, value in values.items() if name in PEERS), default=None)


def ratios_of(rounds, point, below):
    """Returns a ratio for each round that has both values: Quire's at the point over the one that `below` returns."""
    ratios = []
    for values in rounds:
        ours, other = values.get(point, {}).get("Quire"), below(values)
        if ours and other:
            ratios.append(ours / other)
    return ratios


def table(rounds, programs, points):
    has_before = "before" in programs
    header = ["tokens/s", *programs, "Quire / better peer: median", *(["Quire / before: median"] if has_before else [])]
    rows = [header, ["---"] * len(header)]
    for point in points:
        row = [NAMES.get(point, point)]
        row += [shown(values[point][name] for values in rounds if name in values.get(point, {})) for name in programs]
        row.append(with_median(ratios_of(rounds, point, lambda values: best_peer(values[point]))))
        if has_before:
            row.append(with_median(ratios_of(rounds, point, lambda values: values[point].get("before"))))
        rows.append(row)
    lines = ["| " + " | ".join(row) + " |" for row in rows]
    share = ratios_of(rounds, "prefill 512", lambda values: values.get("product", {}).get("Quire"))
    if share:
        lines += ["", f"Prefill 512 / product of two threads in the same round: {with_median(share)}."]
    return "\n".join(lines)


def machine():
    info = pathlib.Path("/proc/cpuinfo").read_text()
    fields = dict(re.findall(r"^([\w ]+\w)\s*: (.*)$", info, re.MULTILINE))
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    return (f"{fields['model name']} (family {fields['cpu family']}, model {fields['model']}), "
            f"{len(os.sched_getaffinity(0))} cores, {memory:.0f} GiB, Linux {platform.release()}")


def report(rounds, runners, options):
    lines = [f"{datetime.date.today()}, {machine()}. Rounds: {len(rounds)}, in each the programs take turns at each "
             f"point; a value is the median of {options.repeat}, but served is one run. {options.threads} threads. "
             f"Load at the end {os.getloadavg()[0]:.1f}.",
             "", table(rounds, list(runners), options.points), ""]
    for program, runner in runners.items():
        about = runner.about
        lines.append(f"- {program}: {about['program']} {about['version']}; {about['settings']}. "
                     f"`{shown_command(runner.command, options)}`")
    return "\n".join(lines) + "\n"


def shown_command(command, options):
    """Returns the command as a user types it in the root of the repository."""
    text = shlex.join(["python3", *command[1:]] if command[0] == sys.executable else command)
    names = {HERE: "tests/bench/peers", options.before: "BEFORE", options.build: "BUILD", options.dir: "DIR"}
    for path, name in names.items():
        text = text.replace(f"{path}/", f"{name}/").replace(f"{path} ", f"{name} ")
    return text


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dir", required=True, type=pathlib.Path, help="where setup.sh made the peers and the model")
    parser.add_argument("--build", default=HERE.parents[2] / "build/cpu-release", type=pathlib.Path, help="of Quire")
    parser.add_argument("--before", type=pathlib.Path, help="another build of Quire, which takes turns too")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--repeat", type=int, default=3, help="of a point in a round")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--peers", nargs="*", default=PEERS, choices=PEERS)
    parser.add_argument("--points", nargs="*", default=POINTS)
    parser.add_argument("--json", default="compare.jsonl", help="values are appended here")
    parser.add_argument("--markdown", help="the table, else on standard output alone")
    options = parser.parse_args()
    options.dir, options.build = options.dir.resolve(), options.build.resolve()
    options.before = options.before and options.before.resolve()
    options.is_complete = True
    signal.signal(signal.SIGINT, signal.default_int_handler)  # also where a shell's background job ignores it
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    if faults := missing(options):
        sys.exit(f"compare.py: {'; '.join(faults)}")
    options.logs = options.dir / "logs"
    options.logs.mkdir(exist_ok=True)
    runners = {}
    try:
        for program in ["Quire", *(["before"] if options.before else []), *options.peers]:
            runners[program] = Runner(program, options)
            print(f"{program}: {runners[program].about}", flush=True)
        text = report(measure(runners, options), runners, options)
    except RuntimeError as fault:
        sys.exit(f"compare.py: {fault}")
    finally:
        for runner in runners.values():
            runner.close()
    print(text)
    if options.markdown:
        pathlib.Path(options.markdown).write_text(text)
    return 0 if options.is_complete else 1


if __name__ == "__main__":
    sys.exit(main())
