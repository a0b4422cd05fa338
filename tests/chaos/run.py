#!/usr/bin/python3
"""Faults under load: see README.md. Exit code 0: nothing was lost, and the faults did bite."""
import argparse
import collections
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
for name, path in (("BIN", "build/cpu-release/bin"), ("PYTHON_STUBS", "build/cpu-release/python"),
                   ("SOURCE", "")):
    os.environ.setdefault("QUIRE_" + name, os.path.join(ROOT, path))

import report  # noqa: E402
from checker import Verdict, differences, measure_gaps, read_oracle  # noqa: E402
from fault_script import LINK_FAULTS, fault_kinds, make_script  # noqa: E402
from served_model import BIN, HERE, ServedModel  # noqa: E402

NUM_PROCESSES = 4
HTTP_LOAD = "http_load.py"
# The pool is too small for 32 streams, so that sequences are swapped all the time. One thread, since
# the clients need the rest of a small machine.
SERVER_FLAGS = ("--swap-space=64MiB", "--preemption-mode=swap", "--threads=1")
ROOMY_FLAGS = ("--threads=1",)
# With several ranks a step of prompts exchanges more bytes than shared memory holds at a time, so that
# some ranks are killed while they send.
RANKS_FLAGS = ("--max-num-batched-tokens=1024",)
# All streams of the long form are under way, in a pool that is a little too small for them.
HTTP_FLAGS = ("--max-num-seqs=2048", "--max-num-batched-tokens=2048")

# Faults, minutes, how many distinct requests, their longest output, blocks of the pool.
Form = collections.namedtuple("Form", "kills stops cuts noise scheduler_kills scheduler_stops "
                                      "minutes num_requests max_tokens num_blocks")
SHORT = Form(2, 2, 3, 3, 0, 0, 0.1, 16, 40, 80)
ISSUE = Form(50, 20, 20, 9, 0, 0, 10, 64, 240, 160)
LONG_ROUND = Form(50, 10, 10, 9, 10, 0, 8, 64, 120, 160)
HTTP_SHORT = Form(4, 2, 0, 0, 4, 0, 0.1, 16, 40, 48)
HTTP_SHORT_STREAMS = 20
HTTP = Form(150, 60, 0, 0, 86, 4, 20, 64, 64, 3000)
HTTP_STREAMS = 1000
LONG_ROUNDS, LONG_CALLS = 20, 100_000


def start_clients(args, form, address, folder, *more, program="load.py"):
    logs, processes = [], []
    each_once = "--each-once" in more
    for k in range(1 if each_once else NUM_PROCESSES):
        logs.append(os.path.join(folder, f"{program}.oracle" if each_once else f"clients{k}.log"))
        processes.append(subprocess.Popen(
            [sys.executable, "-B", os.path.join(HERE, program), f"--address={address}",
             f"--log={logs[-1]}", f"--process={k}", f"--seed={args.seed}",
             f"--streams={args.streams // NUM_PROCESSES}", f"--num-requests={form.num_requests}",
             f"--max-tokens={form.max_tokens}", *more], stdin=subprocess.PIPE))
    return logs, processes


def finish_clients(processes):
    for process in processes:
        process.stdin.close()
    for process in processes:
        if process.wait() != 0:
            raise AssertionError("a process of clients failed")


def run_each_once(args, form, address, folder, *more, **how):
    logs, processes = start_clients(args, form, address, folder, "--each-once", *more, **how)
    finish_clients(processes)
    return read_oracle(logs[0])


def run_http_oracle(args, form, server, folder):
    """Returns undisturbed answers over HTTP, which must equal those over gRPC."""
    oracle = run_each_once(args, form, server.http_address, folder, program=HTTP_LOAD)
    of_grpc = run_each_once(args, form, server.address, folder, "--http-kinds")
    if found := list(differences(oracle, of_grpc)):
        raise AssertionError(f"undisturbed answers over HTTP differ from gRPC's: {found[:5]}")
    return oracle


def run_oracle(args, form, folder):
    """Runs every distinct request on a server with room for all of them and without faults."""
    folder = os.path.join(folder, "oracle")
    os.mkdir(folder)
    with ServedModel(folder, *ROOMY_FLAGS, has_proxies=False) as server:
        if args.http:
            return run_http_oracle(args, form, server, folder)
        return run_each_once(args, form, server.address, folder)


def start_load(args, form, server, folder):
    """Starts the clients of a run with faults."""
    if args.http:
        return start_clients(args, form, server.http_address, folder, program=HTTP_LOAD)
    more = ("--resume",) if form.scheduler_kills + form.scheduler_stops > 0 else ()
    return start_clients(args, form, server.address, folder, *more)


def harm(server, script, steps_between):
    """Runs the script. Returns the faults with their times. A fault comes only after so many steps are
    answered again, so that each fault counts on a slow machine too."""
    server.wait_for_steps(5)
    faults, start = [], time.monotonic()
    for number, fault in enumerate(script, 1):
        if steps_between > 0 and faults:
            server.wait_for_steps(steps_between)
        time.sleep(max(0, start + fault.at_s - time.monotonic()))
        faults.append(server.inject(fault))
        print(f"\r{number} of {len(script)} faults, {time.monotonic() - start:.0f} s ", end="",
              file=sys.stderr, flush=True)
    print(file=sys.stderr)
    return faults


def steps_between(args):
    """Returns steps to wait for before a fault. Many streams need some to compute their prompts again: a
    gateway gives up on a stream that gets nothing for three minutes."""
    if args.http:
        return 2 + args.streams // 25
    return 2 if args.short else 0


def run_round(args, form, folder, make_model=ServedModel, kinds=None):
    """Runs one script against one server. Returns the figures that report.py prints and judges."""
    oracle = run_oracle(args, form, folder)
    num_ranks = args.tensor_parallel_size
    kinds = kinds or fault_kinds(form.kills, form.stops, form.cuts, form.noise,
                                 form.scheduler_kills, form.scheduler_stops, num_ranks)
    script = make_script(args.seed, kinds, form.minutes * 60, num_ranks)
    chaos = os.path.join(folder, "chaos")
    os.mkdir(chaos)
    step_log = os.path.join(chaos, "steps.log")
    flags = (*SERVER_FLAGS, *(RANKS_FLAGS if num_ranks > 1 else ()),
             *(HTTP_FLAGS if args.http else ()),
             f"--num-gpu-blocks-override={form.num_blocks}", f"--step-log={step_log}",
             f"--kv-backend={args.kv_backend}")
    how = {"has_proxies": any(kind in LINK_FAULTS for kind in kinds)} if args.http else {}
    with make_model(chaos, *flags, seed=args.seed, num_ranks=num_ranks, **how) as server:
        logs, processes = start_load(args, form, server, chaos)
        try:
            faults = harm(server, script, steps_between(args))
            finish_clients(processes)
            counts, epochs = server.counts(), server.epochs()
            slow_turns = server.slow_turns()
        finally:
            for process in processes:
                process.kill()
                process.wait()
            with open(os.path.join(chaos, "serve.log"), "w", encoding="utf-8") as file:
                file.write(server.log())
        counts["exit code of serve"] = server.stop()
    replay = subprocess.run([os.path.join(BIN, "quire"), "replay", step_log], capture_output=True,
                            text=True, check=False)
    with open(os.path.join(chaos, "faults.log"), "w", encoding="ascii") as file:
        file.writelines(json.dumps(fault) + "\n" for fault in faults)
        json.dump({"epochs": epochs}, file)
    verdict = Verdict()
    for log in logs:
        verdict.check(log, oracle)
    return report.Round(seed=args.seed, kinds=dict(collections.Counter(kinds)),
                        minutes=form.minutes, num_calls=verdict.num_calls,
                        num_tokens=verdict.num_tokens, num_broken=verdict.num_broken, losses=dict(verdict.losses),
                        examples=verdict.examples, gaps=measure_gaps(faults, epochs, verdict.calls),
                        counts=counts, proxy=proxy_counts(faults), replay=replay.stdout,
                        slow_turns=slow_turns)


def proxy_counts(faults):
    """Returns the proxies' counts, added up. Each proxy counts as of its last fault."""
    last = {fault["proxy"]: fault["counts"] for fault in faults if "proxy" in fault}
    return dict(sum((collections.Counter(counts) for counts in last.values()),
                    collections.Counter()))


def run_in_folder(args, form, **how):
    """Runs a round in a new folder, which is kept if the round has faults."""
    folder = tempfile.mkdtemp(prefix="quire-chaos-", dir=args.folder)
    print(f"logs are in {folder}", file=sys.stderr)
    done = run_round(args, form, folder, **how)
    faults = report.faults_of(done, judges_time=not args.short)
    print(report.text_of(done, faults), flush=True)
    if not faults:
        shutil.rmtree(folder)
    return not faults, done


def run_long(args):
    """Runs rounds until the long form's counts are reached. Each good round is a line of --results, so
    that a stopped run continues behind its last round."""
    rounds = report.read_rounds(args.results)
    while len(rounds) < LONG_ROUNDS or sum(r.num_calls for r in rounds) < LONG_CALLS:
        args.seed = 1 + len(rounds)
        is_good, done = run_in_folder(args, LONG_ROUND)
        if not is_good:
            return False
        report.append_round(args.results, done)
        rounds.append(done)
        print(report.text_of(report.merged(rounds), []), flush=True)
    return True


def parse_args():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--short", action="store_true", help="a few faults of each kind, 25 s")
    parser.add_argument("--long", action="store_true", help="hours: see README.md")
    parser.add_argument("--results", default="chaos-results.jsonl", help="rounds of --long")
    for field in ("kills", "stops", "cuts", "noise", "scheduler_kills", "scheduler_stops", "num_blocks"):
        parser.add_argument("--" + field.replace("_", "-"), type=int)
    parser.add_argument("--minutes", type=float)
    parser.add_argument("--tensor-parallel-size", "-tp", type=int, default=1)
    parser.add_argument("--kv-backend", default="paged")
    parser.add_argument("--http", action="store_true", help="clients use OpenAI's HTTP API")
    parser.add_argument("--streams", type=int, help="default: 32, with --http 1000, or 20 if short")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--folder", help="where logs of failed rounds stay; default: the system's")
    args = parser.parse_args()
    usual_streams = (HTTP_SHORT_STREAMS if args.short else HTTP_STREAMS) if args.http else 32
    args.streams = args.streams or usual_streams
    return args


def main():
    args = parse_args()
    if args.long:
        sys.exit(0 if run_long(args) else 1)
    form = (HTTP_SHORT if args.http else SHORT) if args.short else HTTP if args.http else ISSUE
    given = {name: value for name, value in vars(args).items()
             if name in Form._fields and value is not None}
    sys.exit(0 if run_in_folder(args, form._replace(**given))[0] else 1)


if __name__ == "__main__":
    main()
