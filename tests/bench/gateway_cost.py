#!/usr/bin/python3
"""gateway_cost.py [PAIRS]: what HTTP costs beside gRPC: first token, time per token and throughput of one server's two doors, in
alternating pairs.

Needs QUIRE_BIN, QUIRE_PYTHON_STUBS and QUIRE_SOURCE, as the integration tests do. gRPC's client is `quire bench serve`, HTTP's is
below and reads without parsing, so that neither takes much of the machine. Processor times of the programs tell more than clocks
do if the machine is shared.
"""
import json
import os
import random
import selectors
import socket
import statistics
import subprocess
import sys
import tempfile
import time

SOURCE = os.environ["QUIRE_SOURCE"]
sys.path[:0] = [os.path.join(SOURCE, "tests", folder) for folder in ("integration", "chaos")]

from quire_server import BIN, MODEL, Process  # noqa: E402
from served_model import children  # noqa: E402

INPUT_TOKENS, OUTPUT_TOKENS = 32, 128
ONE_STREAM_REQUESTS = 16
MANY_STREAMS = 256
LAST_CHUNK = b"0\r\n\r\n"
PROGRAMS = ("quire_gateway", "quire_scheduler", "quire_worker")


class HttpStream:
    """One connection that asks again and again."""

    def __init__(self, address):
        host, _, port = address.rpartition(":")
        self.socket = socket.create_connection((host, int(port)))
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._tail = b""
        self.begin = self.first = self.end = None

    def ask(self, chance):
        body = json.dumps({"prompt": [chance.randrange(280, 3800) for _ in range(INPUT_TOKENS)],
                           "max_tokens": OUTPUT_TOKENS, "ignore_eos": True, "temperature": 0, "stream": True,
                           "stream_options": {"include_usage": True}}).encode()
        self._tail, self.first, self.end = b"", None, None
        self.begin = time.perf_counter()
        self.socket.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
                            b"Content-Length: %d\r\n\r\n" % len(body) + body)

    def read(self):
        """Reads once. Returns true at the end of the answer."""
        data = self.socket.recv(1 << 16)
        if self.first is None and b"data: " in data:
            self.first = time.perf_counter()
        self._tail = (self._tail + data)[-1024:]
        if not data or (self._tail.endswith(LAST_CHUNK) and b"[DONE]" in self._tail):
            self.end = time.perf_counter()
            if b'"completion_tokens":%d,' % OUTPUT_TOKENS not in self._tail:
                raise AssertionError(f"the answer is not whole: {self._tail}")
            return True
        return False


def run_http(address, num_streams, num_requests, seed):
    """Returns (median first token in ms, median time per token in us, tokens a second)."""
    chance = random.Random(seed)
    streams = [HttpStream(address) for _ in range(num_streams)]
    streams[0].ask(random.Random(-seed))  # a warm-up, as gRPC's client has one
    while not streams[0].read():
        pass
    selector = selectors.DefaultSelector()
    firsts, each = [], []
    begin = time.perf_counter()
    for stream in streams:
        selector.register(stream.socket, selectors.EVENT_READ, stream)
        stream.ask(chance)
    num_left, num_asked = num_requests, num_streams
    while num_left > 0:
        for key, _ in selector.select():
            stream = key.data
            if not stream.read():
                continue
            num_left -= 1
            firsts.append((stream.first - stream.begin) * 1e3)
            each.append((stream.end - stream.first) * 1e6 / (OUTPUT_TOKENS - 1))
            if num_asked < num_requests:
                num_asked += 1
                stream.ask(chance)
            else:
                selector.unregister(stream.socket)
                stream.socket.close()
    seconds = time.perf_counter() - begin
    return statistics.median(firsts), statistics.median(each), num_requests * OUTPUT_TOKENS / seconds


def run_grpc(address, num_streams, num_requests, seed):
    with tempfile.NamedTemporaryFile(prefix="quire-bench-") as result:
        subprocess.run([os.path.join(BIN, "quire"), "bench", "serve", f"--server={address}",
                        f"--random-input-len={INPUT_TOKENS}", f"--random-output-len={OUTPUT_TOKENS}",
                        f"--num-prompts={num_requests}", f"--max-concurrency={num_streams}", "--ignore-eos",
                        f"--seed={seed}", "--save-result", f"--result-filename={result.name}"],
                       check=True, stdout=subprocess.DEVNULL)
        figures = json.load(open(result.name, encoding="utf-8"))
    if figures["failed"] or figures["total_output_tokens"] != num_requests * OUTPUT_TOKENS:
        raise AssertionError(f"gRPC's answers are not whole: {figures}")
    return figures["median_ttft_ms"], figures["median_tpot_ms"] * 1e3, figures["output_throughput"]


class ProcessorTimes:
    """Processor time of serve's programs, in us for a token."""

    def __init__(self, serve):
        self._pids = {name: next(children(serve.popen.pid, name)) for name in PROGRAMS}
        self._before = self._read()

    def _read(self):
        return {name: sum_of_threads(pid) for name, pid in self._pids.items()}

    def take(self, num_tokens):
        now, before = self._read(), self._before
        self._before = now
        return {name: (now[name] - before[name]) / 1e3 / num_tokens for name in now}


def sum_of_threads(pid):
    """Returns ns of all threads, which the ticks of /proc/PID/stat would round."""
    total = 0
    for thread in os.listdir(f"/proc/{pid}/task"):
        with open(f"/proc/{pid}/task/{thread}/schedstat", encoding="ascii") as file:
            total += int(file.read().split()[0])
    return total


def spread(values):
    return f"{statistics.median(values):.3f} ({min(values):.3f} to {max(values):.3f})"


def measure(serve, doors, num_streams, num_requests, pairs):
    print(f"{num_streams} streams, {num_requests} requests of {INPUT_TOKENS} + {OUTPUT_TOKENS} tokens, {pairs} pairs:")
    figures = {name: [] for name in doors}
    used = {name: [] for name in doors}
    times = ProcessorTimes(serve)
    for pair in range(pairs):
        names = list(doors) if pair % 2 else list(doors)[::-1]
        for name in names:
            run, address = doors[name]
            times.take(1)
            figures[name].append(run(address, num_streams, num_requests, 1 + 2 * pair + (name == "http")))
            used[name].append(times.take(num_requests * OUTPUT_TOKENS))
    for name, rows in figures.items():
        first, each, rate = (statistics.median(column) for column in zip(*rows))
        cpu = ", ".join(f"{program[6:]} {statistics.median(row[program] for row in used[name]):.1f}" for program in PROGRAMS)
        print(f"  {name}: first token {first:.2f} ms, each token {each:.0f} us, {rate:.0f} tokens/s; "
              f"processor us a token: {cpu}")
    pairs_of = list(zip(figures["http"], figures["grpc"]))
    print(f"  HTTP less gRPC: first token {spread([h[0] - g[0] for h, g in pairs_of])} ms, "
          f"each token {spread([h[1] - g[1] for h, g in pairs_of])} us")
    print(f"  HTTP's throughput, times gRPC's: {spread([h[2] / g[2] for h, g in pairs_of])}", flush=True)


def main():
    pairs = int(sys.argv[1]) if len(sys.argv) > 1 else 9
    serve = Process([os.path.join(BIN, "quire"), "serve", "--model", MODEL, "--port=0", "--http-port=0"])
    try:
        grpc_address, http_address = serve.wait_for(r"^quire: ready grpc=(\S+) http=(\S+)").groups()
        doors = {"grpc": (run_grpc, grpc_address), "http": (run_http, http_address)}
        measure(serve, doors, 1, ONE_STREAM_REQUESTS, pairs)
        measure(serve, doors, MANY_STREAMS, 2 * MANY_STREAMS, pairs)
        with open("/proc/loadavg", encoding="ascii") as file:
            print("load of the machine:", file.read().strip())
    finally:
        serve.popen.terminate()
        serve.popen.wait()
        serve.kill()


if __name__ == "__main__":
    main()
