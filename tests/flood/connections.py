#!/usr/bin/python3
"""Thousands of connections that are silent or send garbage, at every port of a loaded server, and how long health takes.

    connections.py [--idle 3000] [--garbage 300] [--seconds 60]

So many of each kind are kept at each port, dialled anew when they are cut. README.md says what the columns are. Exit code
1: a check of health failed or took a second, the p99 of a port's is over 100 ms, a process ended, or files stay open.
"""
import argparse
import collections
import contextlib
import http.client
import multiprocessing
import os
import resource
import selectors
import socket
import subprocess
import sys
import time

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, "../integration"))

from quire_server import BIN, MODEL, Process, grpc  # noqa: E402
from proto.grpc.health.v1 import health_pb2, health_pb2_grpc  # noqa: E402

PROBE_SECONDS = 1.0  # the default timeout of a probe in Kubernetes
PAUSE_SECONDS = 0.1
MAX_P99_SECONDS = 0.1
DIALS_A_SECOND = 300  # at each port, redials included
SETTLE_SECONDS = 15  # longer than a handshake may take
MAX_FILES_MORE = 20  # after SETTLE_SECONDS: probes' connections that are not closed yet


def dial(address):
    host, _, port = address.rpartition(":")
    connection = socket.socket()
    connection.setblocking(False)
    with contextlib.suppress(BlockingIOError):
        connection.connect((host, int(port)))
    return connection


class Crowd:
    """Keeps num_idle silent and num_garbage noisy connections at an address. Dials again for each one that is cut."""

    def __init__(self, address, num_idle, num_garbage):
        self.num_dialled = 0
        self._address = address
        self._selector = selectors.DefaultSelector()
        self._missing = collections.Counter(idle=num_idle, garbage=num_garbage)
        self._dials = 0.0
        self._last = time.monotonic()

    def turn(self):
        now = time.monotonic()
        self._dials = min(DIALS_A_SECOND, self._dials + DIALS_A_SECOND * (now - self._last))
        self._last = now
        while self._dials >= 1 and (kinds := [kind for kind, number in self._missing.items() if number > 0]):
            self._missing[kinds[0]] -= 1
            self._dials -= 1
            self.num_dialled += 1
            connection = dial(self._address)
            # A connection that sends garbage waits until it is writable, which means connected.
            events = selectors.EVENT_READ | (selectors.EVENT_WRITE if kinds[0] == "garbage" else 0)
            self._selector.register(connection, events, kinds[0])
        for key, events in self._selector.select(timeout=0):
            self._see(key, events)

    def _see(self, key, events):
        try:
            if events & selectors.EVENT_WRITE:
                key.fileobj.send(os.urandom(512))
                self._selector.modify(key.fileobj, selectors.EVENT_READ, key.data)
            elif not key.fileobj.recv(1 << 16):
                raise ConnectionError
        except BlockingIOError:
            pass
        except OSError:
            self._selector.unregister(key.fileobj)
            key.fileobj.close()
            self._missing[key.data] += 1

    def num_open(self):
        return len(self._selector.get_map())


def keep_crowds(addresses, num_idle, num_garbage, seconds, answers):
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    crowds = [Crowd(address, num_idle, num_garbage) for address in addresses]
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        for crowd in crowds:
            crowd.turn()
        time.sleep(0.01)
    answers.put([(crowd.num_dialled, crowd.num_open()) for crowd in crowds])


def check_grpc(address):
    with grpc.insecure_channel(address, options=[("grpc.use_local_subchannel_pool", 1)]) as channel:
        health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest(), timeout=PROBE_SECONDS)


def check_http(address):
    with contextlib.closing(http.client.HTTPConnection(address, timeout=PROBE_SECONDS)) as web:
        web.request("GET", "/livez")
        assert web.getresponse().status == 200


def keep_asking(ask, address, seconds, answers):
    """Asks until `seconds` are over. Runs in its own process, so that its times are the server's."""
    took, failures = [], []
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        begin = time.monotonic()
        try:
            ask(address)
        except grpc.RpcError as error:
            failures.append(f"{error.code().name}: {error.details()}")
        except (OSError, http.client.HTTPException, AssertionError) as error:
            failures.append(repr(error))
        took.append(time.monotonic() - begin)
        time.sleep(PAUSE_SECONDS)
    answers.put((sorted(took), failures))


def in_background(function, *arguments):
    spawning = multiprocessing.get_context("spawn")
    answers = spawning.SimpleQueue()
    process = spawning.Process(target=function, args=(*arguments, answers))
    process.start()
    return process, answers


def num_files(process):
    return len(os.listdir(f"/proc/{process.popen.pid}/fd"))


@contextlib.contextmanager
def programs():
    """Starts a worker and a scheduler with all ports on TCP."""
    worker = Process([os.path.join(BIN, "quire_worker"), "--model", MODEL, "--listen=127.0.0.1:0", "--http-port=0"])
    scheduler = None
    try:
        listen, worker_http = worker.wait_for(r"^quire_worker: listens listen=(\S+) http=(\S+)").groups()
        scheduler = Process([os.path.join(BIN, "quire_scheduler"), "--model", MODEL, "--workers", listen, "--port=0",
                             "--http-port=0", "--admin-address=127.0.0.1:0"])
        clients, web, admin = scheduler.wait_for(r"^quire_scheduler: listens grpc=(\S+) http=(\S+) admin=(\S+)").groups()
        scheduler.wait_for(r"^quire_scheduler: ready ")
        yield scheduler, worker, {"clients": (check_grpc, clients), "admin": (check_grpc, admin), "HTTP": (check_http, web),
                                  "worker": (check_grpc, listen), "worker's HTTP": (check_http, worker_http)}
    finally:
        for process in (scheduler, worker):
            if process is not None:
                process.kill()


def start_load(address, seconds):
    """Starts 16 streams at a time for `seconds`. --max-concurrency lets the load slow down with the server."""
    return subprocess.Popen(["timeout", str(seconds), os.path.join(BIN, "quire"), "bench", "serve", "--server", address,
                             "--num-prompts", "1000000", "--max-concurrency", "16", "--random-input-len", "64",
                             "--random-output-len", "64", "--ignore-eos"], stdout=subprocess.DEVNULL)


def row(name, took, failures, dialled):
    p50, p99, most = (took[int((len(took) - 1) * share)] for share in (0.5, 0.99, 1))
    is_good = not failures and p99 <= MAX_P99_SECONDS and most < PROBE_SECONDS
    print(f"| {name} | {dialled[0]:,} | {dialled[1]:,} | {len(took)} | {len(failures)} | "
          f"{1000 * p50:.0f} / {1000 * p99:.0f} / {1000 * most:.0f} |", flush=True)
    for failure, number in collections.Counter(failures).most_common(3):
        print(f"  {name}: {number} times {failure}", file=sys.stderr)
    return is_good


def main():
    parser = argparse.ArgumentParser(usage=__doc__)
    parser.add_argument("--idle", type=int, default=3000)
    parser.add_argument("--garbage", type=int, default=300)
    parser.add_argument("--seconds", type=float, default=60)
    options = parser.parse_args()
    with programs() as (scheduler, worker, ports):
        files = [num_files(process) for process in (scheduler, worker)]
        addresses = [address for _, address in ports.values()]
        load = start_load(ports["clients"][1], options.seconds + 5)
        crowd, dialled = in_background(keep_crowds, addresses, options.idle, options.garbage, options.seconds)
        time.sleep(1)
        probes = {name: in_background(keep_asking, ask, address, options.seconds - 3)
                  for name, (ask, address) in ports.items()}
        print("| port | connections dialled | open at the end | checks of health | failed | p50 / p99 / max ms |")
        print("|---|---|---|---|---|---|")
        answers = {name: answer.get() for name, (_, answer) in probes.items()}
        is_good = all([row(name, *answers[name], of_port) for name, of_port in zip(ports, dialled.get())])
        for process in (crowd, *(process for process, _ in probes.values())):
            process.join()
        load.wait()
        time.sleep(SETTLE_SECONDS)
        for process, before in zip((scheduler, worker), files):
            if process.popen.poll() is not None:
                print(f"  {process.popen.args[0]} ended", file=sys.stderr)
                is_good = False
            elif (now := num_files(process)) > before + MAX_FILES_MORE:
                print(f"  {process.popen.args[0]}: {before} files before, {now} after", file=sys.stderr)
                is_good = False
        if not is_good:
            print(*(line for process in (scheduler, worker) for line in process.lines if " INFO " not in line),
                  sep="\n", file=sys.stderr)
    return 0 if is_good else 1


if __name__ == "__main__":
    sys.exit(main())
