#!/usr/bin/python3
"""Floods of HTTP/2 against a server, with and without the proxy of deploy/proxy in front, and an honest
client that asks all the while. README.md says what the columns are.

    run.py [--seconds 10] [--proxy | --no-proxy] [FLOOD...]
"""
import argparse
import contextlib
import multiprocessing
import os
import shutil
import socket
import subprocess
import sys
import threading
import time

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, "../integration"))

from floods import FLOODS  # noqa: E402
from quire_server import api, generate, grpc  # noqa: E402
from serve_test import Served  # noqa: E402

CONFIG = os.path.join(HERE, "../../deploy/proxy/haproxy.cfg")
NUM_PROCESSES = 2
PAUSE_SECONDS = 0.1
ANSWER_SECONDS = 10  # deadline of the honest client's calls
SETTLE_SECONDS = 3
TICKS = os.sysconf("SC_CLK_TCK")


class NoProxy(contextlib.nullcontext):
    """The interface of Proxy, with the server's own address."""

    def __init__(self, served):
        super().__init__(self)
        self.address = served.address


class Proxy:

    def __init__(self, served):
        self.address = f"127.0.0.1:{free_port()}"
        self._popen = subprocess.Popen(
            ["haproxy", "-q", "-db", "-f", CONFIG], stdout=subprocess.DEVNULL, stderr=subprocess.STDOUT,
            env={**os.environ, "QUIRE_GRPC": served.address, "QUIRE_BIND": self.address,
                 "QUIRE_HTTP_PORT": served.http_address.rpartition(":")[2]})
        time.sleep(SETTLE_SECONDS)  # its first check of health

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self._popen.kill()
        self._popen.wait()


def free_port():
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return one.getsockname()[1]


class Honest:
    """Asks for four tokens again and again, over a new connection every tenth time."""

    def __init__(self, address):
        self.seconds, self.failures = [], []
        self._address = address
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self):
        request = api.GenerateRequest(text=b"Once", stopping={"max_tokens": 4, "ignore_eos": True})
        while not self._over.is_set():
            with grpc.insecure_channel(self._address,
                                       options=[("grpc.use_local_subchannel_pool", 1)]) as channel:
                for _ in range(10):
                    self._ask(channel, request)
                    if self._over.wait(PAUSE_SECONDS):
                        break

    def _ask(self, channel, request):
        begin = time.monotonic()
        try:
            generate(channel, request, timeout=ANSWER_SECONDS)
            self.seconds.append(time.monotonic() - begin)
        except grpc.RpcError as error:
            self.failures.append(f"{error.code().name}: {error.details()}")

    def stop(self):
        self._over.set()
        self._thread.join()


def resident_mib(pid):
    """Returns 0 if the process is gone."""
    try:
        with open(f"/proc/{pid}/status", encoding="ascii") as status:
            return next((int(line.split()[1]) for line in status if line.startswith("VmRSS:")), 0) / 1024
    except OSError:
        return 0.0


def cpu_seconds(pid):
    """Returns NaN if the process is gone."""
    try:
        with open(f"/proc/{pid}/stat", encoding="ascii") as stat:
            fields = stat.read().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / TICKS
    except OSError:
        return float("nan")


class Peak:
    """Keeps the largest resident memory of a process while this object lives."""

    def __init__(self, pid):
        self.mib = resident_mib(pid)
        self._pid = pid
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self):
        while not self._over.wait(0.05):
            self.mib = max(self.mib, resident_mib(self._pid))

    def stop(self):
        self._over.set()
        self._thread.join()
        return self.mib


def send_flood(kind, address, end, counts):
    flood = FLOODS[kind](address)
    flood.run(end)
    counts.put((flood.num_frames, flood.num_connections, flood.num_refused))


def measure(kind, address, served, seconds):
    """Prints one row. Returns whether every call of the honest client was answered."""
    pid = served.pid_of("scheduler")
    before_mib, before_cpu = resident_mib(pid), cpu_seconds(pid)
    peak, honest = Peak(pid), Honest(address)
    counts = multiprocessing.Queue()
    end = time.monotonic() + seconds
    floods = [multiprocessing.Process(target=send_flood, args=(kind, address, end, counts))
              for _ in range(NUM_PROCESSES)]
    for flood in floods:
        flood.start()
    frames, connections, refused = map(sum, zip(*(counts.get() for _ in floods)))
    for flood in floods:
        flood.join()
    cpu = cpu_seconds(pid) - before_cpu
    honest.stop()
    peak_mib = peak.stop()
    time.sleep(SETTLE_SECONDS)
    has_died = served.pid_of("scheduler") != pid
    waits = sorted(honest.seconds) or [float("nan")]
    print(f"| {kind} | {frames / seconds:,.0f} | {connections:,} ({refused:,}) | {len(honest.seconds)} | "
          f"{len(honest.failures)} | {waits[len(waits) // 2]:.2f} / {waits[-1]:.2f} | "
          f"{before_mib:.0f} / {peak_mib:.0f} / {'died' if has_died else f'{resident_mib(pid):.0f}'} | {cpu / seconds:.2f} |", flush=True)
    for failure in sorted(set(honest.failures)):
        print(f"  failed: {failure}", file=sys.stderr)
    return bool(honest.seconds) and not honest.failures and not has_died


def main():
    parser = argparse.ArgumentParser(usage=__doc__)
    parser.add_argument("--seconds", type=float, default=10)
    parser.add_argument("--proxy", action=argparse.BooleanOptionalAction)
    parser.add_argument("floods", nargs="*", choices=[[], *FLOODS], default=[])
    options = parser.parse_args()
    if options.proxy is not False and shutil.which("haproxy") is None:
        sys.exit("haproxy is not there: apt install haproxy, or --no-proxy")
    is_good = True
    for with_proxy in ([False, True] if options.proxy is None else [options.proxy]):
        print(f"\n{'Through the proxy' if with_proxy else 'Without a proxy'}\n")
        print("| flood | frames a second | connections (refused) | answered | failed | p50 / max s "
              "| MiB before / at most / after | cores |")
        print("|---|---|---|---|---|---|---|---|", flush=True)
        for kind in options.floods or FLOODS:
            with Served() as served, Proxy(served) if with_proxy else NoProxy(served) as front:
                good = measure(kind, front.address, served, options.seconds)
            is_good = is_good and (good or not with_proxy)
    return 0 if is_good else 1


if __name__ == "__main__":
    sys.exit(main())
