#!/usr/bin/python3
"""The gateway itself dies: see README.md. Exit code 0: clients that ask again got every answer whole and
unaltered, and nothing stayed behind at the scheduler."""
import argparse
import os
import re
import signal
import statistics
import sys
import tempfile
import time
import urllib.request

from checker import KINDS_OF_LOSS, Verdict
from run import HTTP_FLAGS, HTTP_LOAD, ROOMY_FLAGS, Form, finish_clients, run_http_oracle, start_clients
from served_model import ServedModel

FORM = Form(0, 0, 0, 0, 0, 0, 0, 16, 120, 0)
READY_SECONDS = 30
STREAM_SECONDS = 1.0  # streams run for so long before each fault, after these steps
STREAM_STEPS = 20
PAUSE_SECONDS = 1.0


class Deaths:
    """Kills, stops and pauses the gateway of one server."""

    def __init__(self, server):
        self._server = server
        self.seconds = {"kill": [], "stop": []}  # until the port for health checks says ready

    def kill(self):
        self._end("kill", signal.SIGKILL)

    def stop(self):
        self._end("stop", signal.SIGSTOP)

    def pause(self):
        pid = self._server.pid_of("quire_gateway")
        os.kill(pid, signal.SIGSTOP)
        time.sleep(PAUSE_SECONDS)
        os.kill(pid, signal.SIGCONT)

    def _end(self, kind, how):
        pid, url = self._server.pid_of("quire_gateway"), self._ready_url()
        begin = time.monotonic()
        os.kill(pid, how)
        self._server.wait_until_replaced(pid)
        while not _is_ready(url):
            if time.monotonic() - begin > READY_SECONDS:
                raise AssertionError("the gateway does not come back:\n" + self._server.log()[-3000:])
            time.sleep(0.002)
        self.seconds[kind].append(time.monotonic() - begin)

    def _ready_url(self):
        addresses = re.findall(r"gateway listens .*http=(\S+)", self._server.log())
        return f"http://{addresses[-1]}/readyz"


def _is_ready(url):
    try:
        with urllib.request.urlopen(url, timeout=1) as page:
            return page.status == 200
    except OSError:
        return False


def leftovers(server, seconds=10):
    """Returns what the scheduler still has once no client asks: requests and held blocks."""
    deadline = time.monotonic() + seconds
    while True:
        text = server.page("/metrics/native")
        found = {name: int(value) for name, value in re.findall(
            r'^(quire_requests\{[^}]*\}|quire_kv_blocks\{[^}]*state="active"[^}]*\}) (\d+)$', text, re.M)}
        if len(found) < 2:
            raise AssertionError(f"the metrics lack requests or blocks: {found}")
        left = {name: value for name, value in found.items() if value > 0}
        if not left or time.monotonic() > deadline:
            return left
        time.sleep(0.1)


def faults_of(verdict, left, num_broken_by_pauses):
    faults = [f"{verdict.losses[kind]} x {kind}" for kind in KINDS_OF_LOSS if verdict.losses[kind]]
    if verdict.num_broken == 0:
        faults.append("no stream was under way at any death")
    if left:
        faults.append(f"the scheduler keeps {left}")
    if num_broken_by_pauses:
        faults.append(f"{num_broken_by_pauses} streams broke at a pause")
    return faults


def let_stream(server):
    server.wait_for_steps(STREAM_STEPS)
    time.sleep(STREAM_SECONDS)


def num_broken(logs):
    return sum(open(log, encoding="ascii").read().count('"BROKEN"') for log in logs)


def run(args, folder):
    verdict = Verdict()
    with ServedModel(folder, *ROOMY_FLAGS, *HTTP_FLAGS, has_proxies=False) as server:
        oracle = run_http_oracle(args, FORM, server, folder)
        logs, clients = start_clients(args, FORM, server.http_address, folder, "--retry-broken",
                                      program=HTTP_LOAD)
        deaths = Deaths(server)
        try:
            let_stream(server)
            for _ in range(args.pauses):
                deaths.pause()
                let_stream(server)
            broken_by_pauses = num_broken(logs)
            for act in [deaths.kill] * args.kills + [deaths.stop] * args.stops:
                act()
                let_stream(server)
            finish_clients(clients)
        finally:
            for client in clients:
                client.kill()
                client.wait()
        left = leftovers(server)
        exit_code = server.stop()
    for log in logs:
        verdict.check(log, oracle)
    faults = faults_of(verdict, left, broken_by_pauses)
    if exit_code != 0:
        faults.append(f"serve ended with {exit_code}")
    print(f"{args.kills} kills, {args.stops} stops, {args.pauses} pauses of {PAUSE_SECONDS:g} s: "
          f"{verdict.num_calls} streams, {verdict.num_tokens} tokens, {verdict.num_broken} attempts broken")
    for kind, seconds in deaths.seconds.items():
        if seconds:
            print(f"{kind}: ready after {statistics.median(seconds) * 1000:.0f} ms in the median, "
                  f"{max(seconds) * 1000:.0f} ms at most")
    for line in verdict.examples + [f"FAILED: {fault}" for fault in faults]:
        print(line)
    return not faults


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--stops", type=int, default=2)
    parser.add_argument("--pauses", type=int, default=3)
    parser.add_argument("--streams", type=int, default=40)
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="quire-chaos-") as folder:
        sys.exit(0 if run(args, folder) else 1)


if __name__ == "__main__":
    main()
