#!/usr/bin/python3
"""A proxy between scheduler and worker that does to bytes what networks do.

Listens on a Unix socket and dials the worker's socket for each connection, so it finds a restarted
worker. Commands come as lines over a control socket, `FAULT SECONDS`. The answer, a line of JSON
with counts since the start, comes when the fault is over. One fault at a time:

  cut            bytes of both directions are held, ends of connections too, and new connections
                 stay unanswered; no peer is told. Held bytes are delivered afterwards, as TCP
                 delivers them by retransmission.
  cut-to-worker, cut-to-scheduler   the same for one direction
  delay          each piece is late by 30 to 120 ms
  reset          all connections break, and new ones, again and again
  garbage        bits are flipped and bytes inserted

It ends when its standard input does.
"""
import argparse
import asyncio
import glob
import json
import random
import socket
import sys

TO_WORKER, TO_SCHEDULER = "to-worker", "to-scheduler"
HELD = {"cut": (TO_WORKER, TO_SCHEDULER), "cut-to-worker": (TO_WORKER,),
        "cut-to-scheduler": (TO_SCHEDULER,)}
FAULTS = (*HELD, "delay", "reset", "garbage")
PIECE_BYTES = 1 << 16
GARBAGE_SHARE = 0.1
RESET_SECONDS = 0.1


class Proxy:

    def __init__(self, worker_pattern, seed):
        self._worker_pattern = worker_pattern
        self._chance = random.Random(seed)
        self._open = {direction: asyncio.Event() for direction in (TO_WORKER, TO_SCHEDULER)}
        for event in self._open.values():
            event.set()
        self._fault = None
        self._writers = set()
        self.counts = {"connections": 0, "pieces": 0, "held": 0, "delayed": 0, "reset": 0,
                       "spoiled": 0}

    async def serve(self, reader, writer):
        """One connection of the scheduler."""
        self.counts["connections"] += 1
        await self._pass(TO_WORKER)
        paths = glob.glob(self._worker_pattern)
        try:
            worker_reader, worker_writer = await asyncio.open_unix_connection(paths[0])
        except (IndexError, OSError):
            writer.transport.abort()
            return
        pair = {writer, worker_writer}
        self._writers |= pair
        await asyncio.gather(self._pump(reader, worker_writer, TO_WORKER),
                             self._pump(worker_reader, writer, TO_SCHEDULER))
        self._writers -= pair
        for one in pair:
            one.close()

    async def _pass(self, direction):
        if not self._open[direction].is_set():
            self.counts["held"] += 1
            await self._open[direction].wait()

    async def _pump(self, reader, writer, direction):
        try:
            while piece := await reader.read(PIECE_BYTES):
                self.counts["pieces"] += 1
                if self._fault == "delay":
                    self.counts["delayed"] += 1
                    await asyncio.sleep(self._chance.uniform(0.03, 0.12))
                if self._fault == "garbage" and self._chance.random() < GARBAGE_SHARE:
                    self.counts["spoiled"] += 1
                    piece = self._spoil(piece)
                await self._pass(direction)
                writer.write(piece)
                await writer.drain()
            await self._pass(direction)
            writer.write_eof()
        except OSError:
            writer.transport.abort()

    def _spoil(self, piece):
        where = self._chance.randrange(len(piece))
        if self._chance.random() < 0.3:
            inserted = self._chance.randbytes(self._chance.randint(1, 20))
            return piece[:where] + inserted + piece[where:]
        flipped = piece[where] ^ (1 << self._chance.randrange(8))
        return piece[:where] + bytes([flipped]) + piece[where + 1:]

    async def inject(self, fault, seconds):
        """Returns when the fault is over."""
        self._fault = fault
        for direction in HELD.get(fault, ()):
            self._open[direction].clear()
        end = asyncio.get_running_loop().time() + seconds
        while fault == "reset" and asyncio.get_running_loop().time() < end:
            self.counts["reset"] += len(self._writers) // 2
            for writer in self._writers:
                writer.transport.abort()
            await asyncio.sleep(RESET_SECONDS)
        await asyncio.sleep(max(0, end - asyncio.get_running_loop().time()))
        self.lift()

    def lift(self):
        """Ends the fault."""
        self._fault = None
        for event in self._open.values():
            event.set()

    async def control(self, reader, writer):
        while line := await reader.readline():
            fault, seconds = line.decode().split()
            if fault not in FAULTS:
                raise ValueError(f"no such fault: {fault}")
            await self.inject(fault, float(seconds))
            writer.write(json.dumps(self.counts).encode() + b"\n")
        writer.close()


class ProxyControl:
    """The other end of the control socket."""

    def __init__(self, path):
        self._socket = socket.socket(socket.AF_UNIX)
        self._socket.connect(path)
        self._file = self._socket.makefile("rw", encoding="ascii")

    def inject(self, fault, seconds):
        """Blocks until the fault is over. Returns counts since the proxy's start."""
        self._file.write(f"{fault} {seconds}\n")
        self._file.flush()
        return json.loads(self._file.readline())

    def close(self):
        self._file.close()
        self._socket.close()


async def run(args):
    proxy = Proxy(args.worker, args.seed)
    await asyncio.start_unix_server(proxy.serve, args.listen, backlog=128)
    await asyncio.start_unix_server(proxy.control, args.control)
    print("fault_proxy: ready", flush=True)
    await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--listen", required=True, help="path of the socket to dial instead")
    parser.add_argument("--control", required=True, help="path of the control socket")
    parser.add_argument("--worker", required=True, help="glob pattern of the worker's socket")
    parser.add_argument("--seed", type=int, default=0)
    asyncio.run(run(parser.parse_args()))


if __name__ == "__main__":
    main()
