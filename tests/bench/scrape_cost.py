#!/usr/bin/python3
"""scrape_cost.py [ROUNDS]: what scrapes of Prometheus do to streams: the p99 between two tokens without and with them, in turns.

Needs QUIRE_BIN, QUIRE_PYTHON_STUBS and QUIRE_SOURCE, as the integration tests do. A scraped window has one scrape a second of
the scheduler's and the worker's port, which is 15 times what the example configuration asks for.
"""
import os
import statistics
import sys
import threading
import time
import urllib.request

sys.path.insert(0, os.path.join(os.environ["QUIRE_SOURCE"], "tests/integration"))

from quire_server import Server, api, api_grpc, grpc  # noqa: E402

NUM_STREAMS = 16
WINDOW_SECONDS = 5.0
PORT = 18471


class Streams:
    """Long answers, one after the other, and the gaps between their messages since they were taken last."""

    def __init__(self, address):
        self._lock = threading.Lock()
        self._gaps = []
        self._is_over = False
        self._threads = [threading.Thread(target=self._run, args=(address, i)) for i in range(NUM_STREAMS)]
        for thread in self._threads:
            thread.start()

    def _run(self, address, seed):
        with grpc.insecure_channel(address, options=[("grpc.use_local_subchannel_pool", 1)]) as channel:
            while not self._is_over:
                request = api.GenerateRequest(text=b"Once upon a time", sampling={"temperature": 1, "seed": seed},
                                              stopping={"max_tokens": 1500, "ignore_eos": True})
                call, last = api_grpc.GenerationServiceStub(channel).Generate(request), None
                for _ in call:
                    now = time.monotonic()
                    if last is not None:
                        with self._lock:
                            self._gaps.append(now - last)
                    last = now
                    if self._is_over:
                        call.cancel()
                        return

    def take(self):
        with self._lock:
            gaps, self._gaps = self._gaps, []
        return gaps

    def stop(self):
        self._is_over = True
        for thread in self._threads:
            thread.join()


def p99(gaps):
    return 1e3 * statistics.quantiles(gaps, n=100)[98]


def window(streams, pages):
    streams.take()
    end = time.monotonic() + WINDOW_SECONDS
    while (left := end - time.monotonic()) > 0:
        for page in pages:
            urllib.request.urlopen(page, timeout=10).read()
        time.sleep(min(1.0, left))
    return p99(streams.take())


def main():
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 10
    with Server(worker_flags=["--http-host=127.0.0.1", f"--http-port={PORT}"]) as server:
        pages = [f"http://{server.http_address}/metrics", f"http://127.0.0.1:{PORT}/metrics"]
        streams = Streams(server.address)
        try:
            window(streams, [])  # the first steps of a process are slow
            rows = [(window(streams, []), window(streams, pages)) for _ in range(rounds)]
        finally:
            streams.stop()
    for without, with_scrapes in rows:
        print(f"p99 {without:.2f} ms, scraped {with_scrapes:.2f} ms, ratio {with_scrapes / without:.3f}")
    print(f"median ratio {statistics.median(b / a for a, b in rows):.3f}")


if __name__ == "__main__":
    main()
