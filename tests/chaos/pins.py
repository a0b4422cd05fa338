#!/usr/bin/python3
"""Many pinned prefixes, streams, and a worker that is killed again and again: see README.md. Exit code 0: each
epoch began at once, no stream broke or got other tokens, all prefixes are still pinned.
"""
import argparse
import collections
import os
import re
import shutil
import signal
import sys
import tempfile
import time

import run  # noqa: F401  (first: it says where the programs are)
import standstill
from long_model import Callers, LongModel, grpc, make_request, random_ids, tokens_of
from quire_server import admin_api
from steady_streams import SteadyStreams

MAX_BEGIN_MS = 250
BEGIN = re.compile(r"^\S+ INFO worker group ready .*begin_ms=(\d+)", re.M)
PINS_AT_A_TIME = 64  # of the 128 calls that the server allows on a connection
NUM_STEADY = 4
ANSWER_TOKENS = 16
PINNED_SECONDS = 300

Form = collections.namedtuple("Form", "prefix_tokens kills num_blocks")
NUM_PREFIXES = 256  # the server's limit
USUAL = Form(4000, 10, 100_000)
SHORT = Form(160, 2, 6000)


def pin_all(server, form):
    """Pins all prefixes. Returns their ids, sorted."""
    ids = []
    for first in range(0, NUM_PREFIXES, PINS_AT_A_TIME):
        calls = [server.admin.PinPrefix.future(admin_api.PinPrefixRequest(
            token_ids={"ids": random_ids(f"prefix {k}", form.prefix_tokens)}), timeout=PINNED_SECONDS)
            for k in range(first, first + PINS_AT_A_TIME)]
        ids += [call.result().prefix.prefix_id for call in calls]
    return sorted(ids)


def prefixes_of(server):
    """Returns states by id; none if the scheduler is gone."""
    try:
        answer = server.admin.ListPrefixes(admin_api.ListPrefixesRequest(), timeout=60)
    except grpc.RpcError:
        return {}
    return {prefix.prefix_id: prefix.state for prefix in answer.prefixes}


def wait_until_pinned(server, ids):
    """Waits until all prefixes are pinned. A prefix under way at the next kill would be blamed for the crash.
    Returns False if a prefix is gone, or after PINNED_SECONDS."""
    deadline = time.monotonic() + PINNED_SECONDS
    while sorted(prefixes := prefixes_of(server)) == ids and time.monotonic() < deadline:
        if set(prefixes.values()) == {admin_api.PREFIX_STATE_PINNED}:
            return True
        time.sleep(0.1)
    return False


def answers(server):
    """Returns the tokens that requests get whose prompts begin like a prefix."""
    callers = Callers(server.address)
    calls = [callers.begin(make_request(random_ids(f"prefix {k}", 100) + [1, 2, 3], ANSWER_TOKENS), 1)[0]
             for k in range(0, NUM_PREFIXES, 16)]
    tokens = [tokens_of(call) for call in calls]
    callers.close()
    return tokens


def kill_workers(server, ids, num_kills):
    """Returns whether all prefixes came back each time."""
    for kill in range(num_kills):
        num_epochs = len(server.epochs())
        begin = time.monotonic()
        os.kill(server.pid_of("quire_worker"), signal.SIGKILL)
        deadline = time.monotonic() + PINNED_SECONDS
        while len(server.epochs()) == num_epochs and time.monotonic() < deadline:
            time.sleep(0.02)
        if not wait_until_pinned(server, ids):
            return False
        print(f"  kill {kill + 1}: pinned again after {time.monotonic() - begin:.1f} s", file=sys.stderr, flush=True)
    return True


def harm(form, folder, judges_time):
    """Kills workers while streams run. Returns the faults, in words."""
    faults = []
    flags = ("--threads=1", f"--num-gpu-blocks-override={form.num_blocks}", "--max-pinned-share=0.8",
             "--max-num-batched-tokens=512")
    with LongModel(folder, *flags) as server, SteadyStreams(server.address, NUM_STEADY) as steady:
        ids = pin_all(server, form)
        expected = answers(server)
        steady.wait_until_ready()
        if not kill_workers(server, ids, form.kills):
            faults.append("not all prefixes were pinned again")
        written = steady.finish()
        if not faults and answers(server) != expected:
            faults.append("requests that begin with prefixes got other tokens")
        log = server.log()
        with open(os.path.join(folder, "serve.log"), "w", encoding="utf-8") as file:
            file.write(log)
        if (code := server.stop()) != 0:
            faults.append(f"serve ended with {code}")
    begins = [int(ms) for ms in BEGIN.findall(log)]
    print(f"{len(ids)} prefixes of {form.prefix_tokens} tokens, {form.kills} kills: epochs began in {begins} ms; "
          f"{written['tokens']} tokens of streams; loop: {standstill.longest_of(standstill.slow_turns(log))}")
    if len(begins) != 1 + form.kills:
        faults.append(f"{len(begins)} epochs after {form.kills} kills")
    if judges_time:
        faults += [f"an epoch began in {ms} ms" for ms in begins if ms > MAX_BEGIN_MS]
    return faults + written["wrong"] + standstill.faults_of(standstill.slow_turns(log))


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--short", action="store_true", help="shorter prefixes, two kills; 250 ms are not judged")
    parser.add_argument("--folder", help="where logs of failed runs stay; default: the system's")
    args = parser.parse_args()
    folder = tempfile.mkdtemp(prefix="quire-chaos-", dir=args.folder)
    print(f"logs are in {folder}", file=sys.stderr)
    faults = harm(SHORT if args.short else USUAL, folder, judges_time=not args.short)
    for fault in faults:
        print(f"FAILED: {fault[:300]}")
    if not faults:
        shutil.rmtree(folder)
    sys.exit(1 if faults else 0)


if __name__ == "__main__":
    main()
