#!/usr/bin/python3
"""Many HTTP clients at once, and rude ones: see README.md. Exit code 0: ordinary clients got every answer whole
and unaltered, nothing stayed behind at the scheduler, and the gateway's memory kept its bound.

Scenarios: crowd (2,000 streams), slow (100 clients that read slowly or not at all beside 200 ordinary ones, and
what they do to gRPC's p99 between tokens), idle (10,000 connections), gone (clients that leave in the middle of an
answer, or while they wait).
"""
import argparse
import asyncio
import json
import os
import re
import resource
import socket
import statistics
import subprocess
import sys
import tempfile
import time

from checker import KINDS_OF_LOSS, Verdict
from gateway_deaths import leftovers
from http_load import FULL
from run import HTTP_LOAD, Form, finish_clients, run_http_oracle, start_clients
from served_model import BIN, ServedModel
from sse_client import post, request_of

MAX_GATEWAY_MIB = 200
CROWD = 2000
CROWD_SECONDS = 20
ORDINARY = 200
SLOW = 100
IDLE = 10_000
GONE = 200
# Beyond what a stream may have unread, so that its client's reading decides its pace.
SLOW_BODY = {"prompt": "Once upon a time", "max_tokens": 1900, "ignore_eos": True, "temperature": 1,
             "logprobs": 5, "stream": True}
FORM = Form(0, 0, 0, 0, 0, 0, 0, 32, 60, 0)
FLAGS = ("--threads=1", "--max-queued-requests=4096")


class Ordinary:
    """Ordinary clients, whose answers are compared with undisturbed ones. `with` ends them."""

    def __init__(self, args, server, folder, num_streams, oracle):
        args.streams, self._oracle = num_streams, oracle
        self._logs, self._processes = start_clients(args, FORM, server.http_address, folder,
                                                    program=HTTP_LOAD)

    def finish(self):
        finish_clients(self._processes)
        verdict = Verdict()
        for log in self._logs:
            verdict.check(log, self._oracle)
        losses = [f"{verdict.losses[kind]} x {kind}" for kind in KINDS_OF_LOSS if verdict.losses[kind]]
        print(f"  ordinary: {verdict.num_calls} streams, {verdict.num_tokens} tokens, "
              f"{', '.join(losses) or 'nothing lost, doubled or altered'}")
        return losses + verdict.examples if losses else []

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for process in self._processes:
            process.kill()
            process.wait()


def gateway_mib(server, name="VmHWM"):
    with open(f"/proc/{server.pid_of('quire_gateway')}/status", encoding="ascii") as file:
        return int(re.search(rf"^{name}:\s+(\d+) kB", file.read(), re.M)[1]) / 1024


def memory_faults(server):
    peak = gateway_mib(server)
    print(f"  gateway: {peak:.0f} MiB at most, {gateway_mib(server, 'VmRSS'):.0f} MiB now")
    return [f"the gateway had {peak:.0f} MiB"] if peak > MAX_GATEWAY_MIB else []


def requests(server, state):
    return int(re.search(rf'^quire_requests\{{state="{state}"\}} (\d+)$', server.page("/metrics/native"),
                         re.M)[1])


def wait_for(what, seconds=60):
    """Waits until what() is true. Returns the seconds that it took."""
    begin = time.monotonic()
    while not what():
        if time.monotonic() - begin > seconds:
            raise AssertionError("waited too long")
        time.sleep(0.005)
    return time.monotonic() - begin


def run_crowd(args, folder, flags=()):
    with ServedModel(folder, *FLAGS, *flags, has_proxies=False) as server:
        oracle = run_http_oracle(args, FORM, server, folder)
        with Ordinary(args, server, folder, CROWD, oracle) as ordinary:
            most, end = 0, time.monotonic() + CROWD_SECONDS
            while time.monotonic() < end:
                most = max(most, requests(server, "running") + requests(server, "waiting"))
                time.sleep(0.2)
            faults = ordinary.finish() + memory_faults(server)
        print(f"  at most {most} requests at once in the scheduler")
        if most < CROWD * 0.9:
            faults.append(f"the crowd was {most} requests at most")
        return faults + [f"left: {leftovers(server)}"] * bool(leftovers(server))


class SlowReader:
    """Asks for a long answer, and reads a byte a second, or nothing, until it is cut."""

    def __init__(self, address, reads):
        host, _, port = address.rpartition(":")
        self.socket = socket.socket()
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        self.socket.connect((host, int(port)))
        self.socket.sendall(request_of(address, "/v1/completions", SLOW_BODY))
        self.socket.setblocking(False)
        self.is_cut = False
        self._reads = reads

    def turn(self):
        """Reads if this reader reads, and notices the end."""
        try:
            is_over = self.socket.recv(1, 0 if self._reads else socket.MSG_PEEK) == b""
        except BlockingIOError:
            is_over = False
        except OSError:
            is_over = True
        self.is_cut |= is_over or _is_broken(self.socket)


def _is_broken(one):
    """True if the peer has ended or reset the connection, whatever is still unread."""
    state = one.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 1)[0]
    established = 1
    return state != established


def bench_p99(server, args):
    """Returns the p99 between two tokens of a gRPC client, in ms."""
    result = os.path.join(tempfile.gettempdir(), f"quire-crowd-{os.getpid()}.json")
    subprocess.run([os.path.join(BIN, "quire"), "bench", "serve", f"--server={server.address}",
                    "--random-input-len=32", "--random-output-len=64", "--num-prompts=320",
                    "--max-concurrency=8", "--ignore-eos", f"--seed={args.seed}", "--save-result",
                    f"--result-filename={result}"], check=True, stdout=subprocess.DEVNULL)
    with open(result, encoding="utf-8") as file:
        figures = json.load(file)
    os.unlink(result)
    return figures["p99_itl_ms"]


def run_slow(args, folder):
    with ServedModel(folder, *FLAGS, has_proxies=False) as server:
        oracle = run_http_oracle(args, FORM, server, folder)
        faults = []
        with Ordinary(args, server, folder, ORDINARY, oracle) as ordinary:
            slow = [SlowReader(server.http_address, reads=k % 2 == 0) for k in range(SLOW)]
            begin, cut_at = time.monotonic(), []
            while time.monotonic() - begin < 75 and len(cut_at) < SLOW:
                for one in slow:
                    if not one.is_cut:
                        one.turn()
                        if one.is_cut:
                            cut_at.append(time.monotonic() - begin)
                time.sleep(1)
            faults += ordinary.finish() + memory_faults(server)
        print(f"  {len(cut_at)} of {SLOW} slow readers were cut"
              + (f", after {cut_at[0]:.0f} to {cut_at[-1]:.0f} s" if cut_at else ""))
        for one in slow:
            one.socket.close()
        if left := leftovers(server):
            faults.append(f"left: {left}")
        ratios = []
        for _ in range(args.pairs):
            without = bench_p99(server, args)
            slow = [SlowReader(server.http_address, reads=k % 2 == 0) for k in range(SLOW)]
            wait_for(lambda: _has_paused(server), 300)
            ratios.append(bench_p99(server, args) / without)
            for one in slow:
                one.socket.close()
            wait_for(lambda: not leftovers(server))
        print(f"  gRPC's p99 between tokens beside paused readers, times that without: "
              f"median {statistics.median(ratios):.3f} of " + ", ".join(f"{one:.2f}" for one in ratios))
        return faults


def _has_paused(server):
    """True once the slow readers' streams make no more tokens: two readings a moment apart are equal."""
    def steps():
        return re.search(r"^quire_steps_total (\d+)$", server.page("/metrics/native"), re.M)[1]
    first = steps()
    time.sleep(0.5)
    return first == steps()


async def hold_idle(address, number):
    """Opens connections that say nothing. Returns them."""
    host, _, port = address.rpartition(":")
    opened = []
    for _ in range(number):
        one = socket.socket()
        one.setblocking(False)
        try:
            await asyncio.wait_for(asyncio.get_running_loop().sock_connect(one, (host, int(port))), 10)
        except OSError:
            one.close()
            continue
        opened.append(one)
    return opened


def run_idle(args, folder):
    faults = []
    resource.setrlimit(resource.RLIMIT_NOFILE, (resource.getrlimit(resource.RLIMIT_NOFILE)[1],) * 2)
    for limit in (4096, IDLE + 1000):
        print(f"  --max-connections={limit}")
        with ServedModel(os.path.join(folder, str(limit)), *FLAGS, f"--max-connections={limit}",
                         has_proxies=False) as server:
            oracle = run_http_oracle(args, FORM, server, folder)
            before = gateway_mib(server, "VmRSS")
            with Ordinary(args, server, folder, 40, oracle) as ordinary:
                begin = time.monotonic()
                opened = asyncio.run(hold_idle(server.http_address, IDLE))
                print(f"  {len(opened)} connections opened in {time.monotonic() - begin:.1f} s; "
                      f"{sum(not _is_broken(one) for one in opened)} are open, "
                      f"{before:.0f} MiB before, {gateway_mib(server, 'VmRSS'):.0f} MiB now")
                server.page("/livez")
                faults += ordinary.finish() + memory_faults(server)
            for one in opened:
                one.close()
    return faults


async def leave(address, number, body, when):
    """Starts streams, and leaves all at once when `when` is true. Returns when they left."""
    begun = 0

    def on_event(_):
        nonlocal begun
        begun += 1

    tasks = [asyncio.create_task(post(address, "/v1/completions", body, on_event)) for _ in range(number)]
    while not await asyncio.to_thread(when):
        await asyncio.sleep(0.01)
    for task in tasks:
        task.cancel()
    left_at = time.monotonic()
    ends = await asyncio.gather(*tasks, return_exceptions=True)
    refused = [end for end in ends if not isinstance(end, asyncio.CancelledError) and end.status == FULL]
    return left_at, begun, len(refused)


def run_gone(args, folder):
    faults = []
    for name, flags, wanted in (("running", (), GONE), ("waiting", ("--max-num-seqs=4",), GONE - 4)):
        with ServedModel(os.path.join(folder, name), *FLAGS, *flags, has_proxies=False) as server:
            for body in ({**SLOW_BODY, "logprobs": None}, {**SLOW_BODY, "stream": False, "logprobs": None}):
                times = []
                for _ in range(5):
                    left_at, _, _ = asyncio.run(leave(server.http_address, GONE, body,
                                                      lambda: requests(server, name) >= wanted))
                    wait_for(lambda: requests(server, "running") + requests(server, "waiting") == 0)
                    times.append(time.monotonic() - left_at)
                    if left := leftovers(server):
                        faults.append(f"left: {left}")
                print(f"  {wanted} {name}, stream {body['stream']}: none is left after "
                      f"{statistics.median(times) * 1000:.0f} ms in the median, "
                      f"{max(times) * 1000:.0f} ms at most")
            faults += memory_faults(server)
    return faults


SCENARIOS = {"crowd": run_crowd, "slow": run_slow, "idle": run_idle, "gone": run_gone}


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("scenarios", nargs="*", help=f"of {', '.join(SCENARIOS)}; none: all")
    parser.add_argument("--pairs", type=int, default=7, help="of runs of gRPC's clients in `slow`")
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    args.streams = 32
    all_faults = []
    for name in args.scenarios or SCENARIOS:
        print(f"{name}:", flush=True)
        with tempfile.TemporaryDirectory(prefix="quire-chaos-") as folder:
            faults = SCENARIOS[name](args, folder)
        for fault in faults:
            print(f"  FAILED: {fault}")
        all_faults += faults
    sys.exit(1 if all_faults else 0)


if __name__ == "__main__":
    main()
