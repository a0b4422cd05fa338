#!/usr/bin/python3
"""What strangers do to the memory and the health of a server: one attack after another on one server, after
ordinary load. README.md says what the columns are.

    strangers.py [ATTACK...]

Exit code 1: a check of health failed, a process was started anew, or one kept more than MAX_RATIO times the
memory that it takes for ordinary load.
"""
import argparse
import collections
import concurrent.futures
import contextlib
import http.client
import json
import multiprocessing
import os
import random
import shutil
import subprocess
import sys
import tempfile
import threading
import time

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [os.path.join(HERE, "../integration"), os.path.join(HERE, "../fuzz")]

from attacks import ATTACKS, Target  # noqa: E402
from make_corpora import hostile_tokenizers  # noqa: E402
from quire_server import BIN, MODEL, api, generate, grpc  # noqa: E402
from proto.grpc.health.v1 import health_pb2, health_pb2_grpc  # noqa: E402
from serve_test import Served  # noqa: E402

MAX_RATIO = 1.2
SETTLE_SECONDS = 5
PAUSE_SECONDS = 0.5
HEALTH_SECONDS = 5  # deadline of a health check
ANSWER_SECONDS = 10  # deadline of the honest client's calls
PROGRAMS = ("scheduler", "worker")
OWN_SERVER = "slow-patterns"  # needs a server of a model whose tokenizer is slow


class Probe:
    """Calls `ask` again and again, and keeps how long each call took."""

    def __init__(self, ask):
        self.seconds, self.failures = [], []
        self._ask = ask
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self):
        while not self._over.wait(PAUSE_SECONDS):
            begin = time.monotonic()
            try:
                self._ask()
                self.seconds.append(time.monotonic() - begin)
            except grpc.RpcError as error:
                self.failures.append(f"{error.code().name}: {error.details()}")
            except (OSError, http.client.HTTPException, AssertionError) as error:
                self.failures.append(str(error))

    def stop(self):
        self._over.set()
        self._thread.join()

    def median_and_most(self):
        seconds = sorted(self.seconds) or [float("nan")]
        return seconds[len(seconds) // 2], seconds[-1]


def check_http(target):
    with contextlib.closing(http.client.HTTPConnection(target.http_address, timeout=HEALTH_SECONDS)) as web:
        web.request("GET", "/healthz")
        assert web.getresponse().status == 200, "/healthz: not ready"


def new_channel(target):
    return grpc.insecure_channel(target.address, options=[("grpc.use_local_subchannel_pool", 1)])


def check_grpc(target):
    with new_channel(target) as channel:
        answer = health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest(),
                                                           timeout=HEALTH_SECONDS)
        assert answer.status == health_pb2.HealthCheckResponse.SERVING, "Check: not serving"


def ask_honestly(target):
    request = api.GenerateRequest(text=b"a", stopping={"max_tokens": 4, "ignore_eos": True}, tenant="honest")
    with new_channel(target) as channel:
        generate(channel, request, timeout=ANSWER_SECONDS)


Memory = collections.namedtuple("Memory", ["now", "most"])


def memory_mib(pid):
    with open(f"/proc/{pid}/status", encoding="ascii") as status:
        kib = dict(line.split()[:2] for line in status if line.startswith(("VmRSS:", "VmHWM:")))
    return Memory(int(kib["VmRSS:"]) / 1024, int(kib["VmHWM:"]) / 1024)


def forget_most(pid):
    """Resets the peak of resident memory: proc(5), clear_refs."""
    with open(f"/proc/{pid}/clear_refs", "w", encoding="ascii") as clear:
        clear.write("5")


def run_ordinary_load(target):
    """Sends 300 requests, 32 at a time, 64 tokens each, with texts and ids in turn."""
    rng = random.Random(1)
    with tempfile.NamedTemporaryFile("w", suffix=".jsonl") as prompts:
        for i in range(300):
            prompt = {"prompt": "".join(rng.choices("ab ", k=128))} if i % 2 == 0 else {
                "prompt_token_ids": rng.choices(range(2, 4000), k=128)}
            print(json.dumps(prompt), file=prompts)
        prompts.flush()
        subprocess.run([os.path.join(BIN, "quire"), "bench", "serve", "--server", target.address,
                        "--dataset-name", "custom", "--dataset-path", prompts.name, "--num-prompts", "300",
                        "--max-concurrency", "32", "--random-output-len", "64", "--ignore-eos"],
                       capture_output=True, check=True)


def fill_steps(target):
    """Runs 256 sequences at once, as many as a step has, since the worker keeps its memory for the widest step."""
    request = api.GenerateRequest(text=b"a", n=16, sampling={"temperature": 1}, response={"logprobs": 20},
                                  stopping={"max_tokens": 64, "ignore_eos": True})
    with new_channel(target) as channel, concurrent.futures.ThreadPoolExecutor(16) as threads:
        for answer in [threads.submit(generate, channel, request) for _ in range(16)]:
            answer.result()


def run_attack(name, target, answers):
    answers.put(ATTACKS[name].run(target))


def attack(name, target):
    """Runs an attack in its own process, so that the probes here wait for the server alone. Returns the
    attack's text."""
    spawning = multiprocessing.get_context("spawn")
    answers = spawning.SimpleQueue()
    process = spawning.Process(target=run_attack, args=(name, target, answers))
    process.start()
    process.join()
    if process.exitcode != 0:
        raise RuntimeError(f"{name}: could not be carried out")
    return answers.get()


def measure(name, target, pids, ordinary):
    """Prints a row. Returns whether health answered and memory came back."""
    before = {program: memory_mib(pid).now for program, pid in pids.items()}
    for pid in pids.values():
        forget_most(pid)
    web, check, honest = (Probe(lambda ask=ask: ask(target)) for ask in (check_http, check_grpc, ask_honestly))
    begin = time.monotonic()
    sent = attack(name, target)
    seconds = time.monotonic() - begin
    for probe in (web, check, honest):
        probe.stop()
    most = {program: memory_mib(pid).most for program, pid in pids.items()}
    time.sleep(SETTLE_SECONDS)
    after = {program: memory_mib(pid).now for program, pid in pids.items()}
    ratio = {program: after[program] / ordinary[program] for program in PROGRAMS}
    is_good = not web.failures and not check.failures and max(ratio.values()) <= MAX_RATIO
    memory = " | ".join(f"{before[p]:.1f} / {most[p]:.1f} / {after[p]:.1f} | "
                        f"{most[p] / ordinary[p]:.2f} / {ratio[p]:.2f}" for p in PROGRAMS)
    health = " | ".join("{:.0f} / {:.0f}".format(*(1000 * s for s in probe.median_and_most()))
                        for probe in (web, check))
    print(f"| {name} | {sent}, {seconds:.0f} s | {memory} | {ATTACKS[name].bound} | {health} | "
          f"{len(web.failures) + len(check.failures)} | {len(honest.seconds)} / {len(honest.failures)} | "
          f"{honest.median_and_most()[1]:.2f} |", flush=True)
    for failure in sorted(set(web.failures + check.failures + honest.failures)):
        print(f"  {name}: {failure}", file=sys.stderr)
    return is_good


def run_on(served, names):
    """Returns whether the server withstood all attacks."""
    target = Target(served.address, served.http_address)
    pids = {program: served.pid_of(program) for program in PROGRAMS}
    for pid in pids.values():
        forget_most(pid)
    run_ordinary_load(target)
    ordinary = {"scheduler": memory_mib(pids["scheduler"]).most}
    fill_steps(target)
    ordinary["worker"] = memory_mib(pids["worker"]).most
    time.sleep(SETTLE_SECONDS)
    print("ordinary: " + ", ".join(f"{program} {mib:.1f} MiB" for program, mib in ordinary.items()), file=sys.stderr)
    is_good = False
    try:
        is_good = all([measure(name, target, pids, ordinary) for name in names])
    finally:
        is_good &= pids == {program: served.pid_of(program) for program in PROGRAMS}
        if not is_good:  # show the server's warnings and errors
            print(*(line for line in served.lines if " INFO " not in line and " gRPC " not in line), sep="\n",
                  file=sys.stderr)
    return is_good


@contextlib.contextmanager
def model_with_slow_pattern():
    with tempfile.TemporaryDirectory(prefix="quire-strangers-") as folder:
        shutil.copytree(MODEL, folder, dirs_exist_ok=True)
        with open(os.path.join(folder, "tokenizer.json"), "w", encoding="utf-8") as file:
            json.dump(hostile_tokenizers()["slow_text"], file)
        yield folder


def main():
    parser = argparse.ArgumentParser(usage=__doc__)
    parser.add_argument("attacks", nargs="*", choices=[[], *ATTACKS], default=[])
    names = parser.parse_args().attacks or list(ATTACKS)
    print("| attack | sent | scheduler MiB before / most / after | to ordinary | worker MiB | to ordinary "
          "| bound of the most | HTTP health p50 / max ms | gRPC health | failed | honest answered / failed | max s |")
    print("|---|---|---|---|---|---|---|---|---|---|---|---|", flush=True)
    # Blocks take memory when they are first used. The pool is so small that ordinary load uses all of them.
    flags = ["--scheduling-policy=fair", "--enable-reflection", "--kv-cache-memory-bytes=128MiB", "--swap-space=0"]
    is_good = True
    if own := [name for name in names if name != OWN_SERVER]:
        with Served(*flags) as served:
            is_good &= run_on(served, own)
    if OWN_SERVER in names:
        with model_with_slow_pattern() as model, Served(*flags, model=model) as served:
            is_good &= run_on(served, [OWN_SERVER])
    return 0 if is_good else 1


if __name__ == "__main__":
    sys.exit(main())
