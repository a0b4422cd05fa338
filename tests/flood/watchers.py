#!/usr/bin/python3
"""What open streams of grpc.health.v1.Health/Watch cost a scheduler: its CPU time without and with them.
Fails when they take more than --max-percent of a core.

    watchers.py [--streams 12800] [--seconds 20] [--max-percent 2]
"""
import argparse
import asyncio
import multiprocessing
import os
import sys
import time

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, "../integration"))

from quire_server import Server, grpc  # noqa: E402
from run import cpu_seconds, resident_mib  # noqa: E402

WATCH = "/grpc.health.v1.Health/Watch"
STREAMS_PER_CONNECTION = 128
OPEN_SECONDS = 120
SETTLE_SECONDS = 3


class Watchers:
    """A process whose streams read every message."""

    def __init__(self, address, num_streams):
        self._num_streams = num_streams
        self._num_open = multiprocessing.Value("q", 0)
        self._num_messages = multiprocessing.Value("q", 0)
        self._process = multiprocessing.Process(target=lambda: asyncio.run(self._run(address)))
        self._process.start()

    @property
    def num_messages(self):
        return self._num_messages.value

    def wait_until_open(self):
        """Waits until each stream has its first message."""
        deadline = time.monotonic() + OPEN_SECONDS
        while self._num_open.value < self._num_streams:
            assert time.monotonic() < deadline, f"{self._num_open.value} of {self._num_streams} streams have a message"
            time.sleep(0.1)

    def kill(self):
        self._process.kill()
        self._process.join()

    async def _run(self, address):
        channels, reads = [], []  # held here, since an unreferenced channel is closed
        for first in range(0, self._num_streams, STREAMS_PER_CONNECTION):
            channels.append(grpc.aio.insecure_channel(address, options=[("grpc.use_local_subchannel_pool", 1)]))
            watch = channels[-1].unary_stream(WATCH)
            reads += [self._read(watch(b"")) for _ in range(min(STREAMS_PER_CONNECTION, self._num_streams - first))]
        await asyncio.gather(*reads)

    async def _read(self, call):
        is_new = True
        async for _ in call:
            self._num_messages.value += 1
            self._num_open.value += is_new
            is_new = False


def percent_of_core(pid, seconds):
    time.sleep(SETTLE_SECONDS)
    before = cpu_seconds(pid)
    time.sleep(seconds)
    return 100 * (cpu_seconds(pid) - before) / seconds


def measure(server, num_streams, seconds):
    """Prints a row. Returns the CPU time that the streams add, in percent of a core."""
    pid = server.scheduler.popen.pid
    without = percent_of_core(pid, seconds)
    watchers = Watchers(server.address, num_streams)
    try:
        watchers.wait_until_open()
        num_before = watchers.num_messages
        percent = percent_of_core(pid, seconds)
        rate = (watchers.num_messages - num_before) / (seconds + SETTLE_SECONDS)
        print("| streams | messages a second | % of a core without | with | resident MiB |")
        print("|---|---|---|---|---|")
        print(f"| {num_streams:,} | {rate:,.0f} | {without:.2f} | {percent:.2f} | {resident_mib(pid):.0f} |")
    finally:
        watchers.kill()
    return percent - without


def main():
    parser = argparse.ArgumentParser(usage=__doc__)
    parser.add_argument("--streams", type=int, default=12800)
    parser.add_argument("--seconds", type=float, default=20)
    parser.add_argument("--max-percent", type=float, default=2)
    options = parser.parse_args()
    with Server() as server:
        added = measure(server, options.streams, options.seconds)
    return 0 if added <= options.max_percent else 1


if __name__ == "__main__":
    sys.exit(main())
