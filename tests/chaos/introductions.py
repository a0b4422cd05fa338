#!/usr/bin/python3
"""One client's many requests with one long prompt, which is cached: all of them could start in one step, whose
message would be longer than the workers take. See README.md. Exit code 0: no group was lost, no answer was
another one, no other client waited longer.

A sequence is introduced to the workers with all of its tokens and blocks, 4 bytes each. A request with an
empty `resume` has a place of its own in the queue. So requests that come while a step is slow all start in
the next one.
"""
import argparse
import collections
import os
import shutil
import sys
import tempfile
import time
import urllib.request

import run  # noqa: F401  (first: it says where the programs are)
import standstill
from checker import quantile
from long_model import Callers, LongModel, grpc, make_request, random_ids, tokens_of
from quire_server import Failure
from steady_streams import SteadyStreams

MAX_MESSAGE_BYTES = 64 << 20  # kWorkerMaxMessageBytes
BLOCK_TOKENS = 16
ANSWER_TOKENS = 4
NUM_STEADY = 4
NUM_WAVES = 2  # the first during the slow step
MAX_RATIO = 2.0  # of the ordinary client's p99 between tokens: with the attacker over without
# The worker takes SLOW_SECONDS for step SLOW_STEP. The undisturbed answers end before that step.
SLOW_STEP, SLOW_SECONDS = 1000, 3
WAIT_SECONDS = 120

# Tokens of the prompt, requests of a wave, sequences of a request, flags of the server.
Form = collections.namedtuple("Form", "prompt_tokens num_requests n flags")
FORMS = {"long": Form(66_001, 252, 1, ()),
         "many": Form(16_001, 1020, 1, ("--max-num-seqs=1024", "--max-num-batched-tokens=1024")),
         "parallel": Form(76_001, 15, 16, ())}


def attack_request(form):
    sampling = {"temperature": 1, "seed": 1} if form.n > 1 else {}
    request = make_request(random_ids("attack", form.prompt_tokens), ANSWER_TOKENS, n=form.n,
                           sampling=sampling)
    request.resume.SetInParent()
    return request


def introduced_bytes(form):
    """Returns bytes of one step. A request with n > 1 starts one sequence in a step, and all others in the next."""
    num_sequences = form.num_requests * max(1, form.n - 1)
    num_blocks = -(-form.prompt_tokens // BLOCK_TOKENS)
    return 4 * (form.prompt_tokens + num_blocks) * num_sequences


def gauge(server, line):
    with urllib.request.urlopen(f"http://{server.http_address}/metrics/native", timeout=10) as page:
        for text in page.read().decode().splitlines():
            if text.startswith(line + " "):
                return float(text.rpartition(" ")[2])
    raise AssertionError(f"no {line}")


def wait_for_step(server, number):
    """Waits until the worker computes this step."""
    deadline = time.monotonic() + WAIT_SECONDS
    while gauge(server, "quire_steps_total") < number - 1:
        if time.monotonic() > deadline:
            raise AssertionError(f"step {number} does not come")
        time.sleep(0.02)


class Attack:
    """Sends waves of requests. Keeps their times and the wrong answers."""

    def __init__(self, server, request, expected, form):
        self._server, self._request, self._expected, self._form = server, request, expected, form
        self.wrong = []
        self.was_together = False  # whether all requests of a wave waited at once
        self.waves = []  # begin and end of each

    def run(self, callers):
        begin = time.monotonic()
        calls = callers.begin(self._request, self._form.num_requests)
        # During the slow step no request starts, so all of them wait.
        while not self.was_together and gauge(self._server, "quire_steps_total") < SLOW_STEP:
            waiting = gauge(self._server, 'quire_requests{state="waiting"}')
            self.was_together = waiting >= self._form.num_requests
            time.sleep(0.02)
        print(f"  a wave was sent in {time.monotonic() - begin:.1f} s", file=sys.stderr, flush=True)
        for call in calls:
            try:
                tokens = tokens_of(call)
            except grpc.RpcError as error:
                tokens = str(Failure(error))
            if tokens != self._expected:
                self.wrong.append(f"attacker: {tokens}, not {self._expected}")
        self.waves.append((begin, time.monotonic()))

    def met(self, when):
        return any(begin <= when <= end for begin, end in self.waves)


def run_once(form, folder, seconds, num_waves):
    """Returns the ordinary client's p99 gap, and the faults of the run in words."""
    flags = (*form.flags, "--threads=1", "--num-gpu-blocks-override=100000",
             f"--fail-points=slow-step={SLOW_STEP}:{SLOW_SECONDS * 1000}")
    os.mkdir(folder)
    with LongModel(folder, *flags) as server, SteadyStreams(server.address, NUM_STEADY) as steady:
        callers = Callers(server.address)
        request = attack_request(form)
        expected = tokens_of(callers.begin(request, 1)[0])
        steady.wait_until_ready()
        if gauge(server, "quire_steps_total") >= SLOW_STEP - 1:
            raise AssertionError("SLOW_STEP is too small: it came before the ordinary client's load")
        start = time.monotonic()
        attack = Attack(server, request, expected, form)
        wait_for_step(server, SLOW_STEP)
        for _ in range(num_waves):
            attack.run(callers)
        time.sleep(max(0, start + seconds - time.monotonic()))
        written = steady.finish()
        callers.close()
        log, counts = server.log(), server.counts()
        if (code := server.stop()) != 0:
            attack.wrong.append(f"none: serve ended with {code}")
    with open(os.path.join(folder, "serve.log"), "w", encoding="utf-8") as file:
        file.write(log)
    faults = standstill.faults_of(standstill.slow_turns(log))
    faults += [f"{len(wrong)} wrong answers, one of them {wrong[0]}" for wrong in (written["wrong"], attack.wrong)
               if wrong]
    if counts["epochs lost"]:
        faults.append(f"the group was lost {counts['epochs lost']} times")
    if num_waves > 0 and not attack.was_together:
        faults.append("the requests did not wait together: nothing was tested")
    gaps = [gap for _, gap in written["gaps"]]
    met = [gap for when, gap in written["gaps"] if attack.met(when) and gap < SLOW_SECONDS]
    print(f"  {num_waves} waves: {counts['steps']} steps, {counts['epochs lost']} groups lost; ordinary "
          f"client: {written['tokens']} tokens, p99 {quantile(gaps, 0.99) * 1e3:.2f} ms, during waves "
          f"{(quantile(met, 0.99) or 0) * 1e3:.2f} ms, longest {max(gaps) * 1e3:.0f} ms; loop: {standstill.longest_of(standstill.slow_turns(log))}",
          flush=True)
    return quantile(gaps, 0.99), faults


def run_form(name, form, folder, seconds, num_waves, judges_time):
    """Returns the faults of a form, in words."""
    print(f"{name}: {form.num_requests} requests of {form.prompt_tokens} tokens, n = {form.n}: "
          f"{introduced_bytes(form) / 2**20:.1f} MiB of introductions")
    assert introduced_bytes(form) > MAX_MESSAGE_BYTES
    faults, ratio = [], None
    attacked, faults = run_once(form, os.path.join(folder, name), seconds, num_waves)
    if judges_time:
        alone, more = run_once(form, os.path.join(folder, name + "-alone"), seconds, num_waves=0)
        ratio = attacked / alone
        faults += more
        print(f"  p99 between tokens: {ratio:.2f} times that without the attacker")
        if ratio > MAX_RATIO:
            faults.append(f"p99 between tokens: {ratio:.2f} times, target {MAX_RATIO}")
    return [f"{name}: {fault[:300]}" for fault in faults]


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--short", action="store_true", help="one wave of one form, 7 s; p99 is not judged")
    parser.add_argument("--form", choices=sorted(FORMS), help="this one only")
    parser.add_argument("--seconds", type=float, default=40, help="of each run, without --short")
    parser.add_argument("--folder", help="where logs of failed runs stay; default: the system's")
    args = parser.parse_args()
    folder = tempfile.mkdtemp(prefix="quire-chaos-", dir=args.folder)
    print(f"logs are in {folder}", file=sys.stderr)
    names = [args.form] if args.form else ["many"] if args.short else list(FORMS)
    faults = []
    for name in names:
        faults += run_form(name, FORMS[name], folder, 0 if args.short else args.seconds,
                           1 if args.short else NUM_WAVES, judges_time=not args.short)
    for fault in faults:
        print(f"FAILED: {fault}")
    if not faults:
        shutil.rmtree(folder)
    sys.exit(1 if faults else 0)


if __name__ == "__main__":
    main()
