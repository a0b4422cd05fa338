#!/usr/bin/python3
"""`quire serve`: programs that die, hang or cannot start."""
import contextlib
import os
import re
import shutil
import signal
import subprocess
import tempfile
import threading
import time
import unittest

from quire_server import BIN, MODEL, START_SECONDS, Process, api, api_grpc, generate
import grpc

NUM_STREAMS = 4
ALIVE = "RSDI"


def state_of(pid):
    """The letter of /proc: R running, T stopped, Z zombie; empty: no such process."""
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8") as file:
            return file.read().rsplit(")", 1)[1].split()[0]
    except FileNotFoundError:
        return ""


def eventually(claim, seconds=30):
    deadline = time.monotonic() + seconds
    while not (value := claim()):
        if time.monotonic() > deadline:
            raise AssertionError("did not come true in time")
        time.sleep(0.02)
    return value


class Served(Process):
    """`quire serve` on free ports."""

    def __init__(self, *flags, model=MODEL):
        super().__init__([os.path.join(BIN, "quire"), "serve", "--model", model, "--port=0",
                          "--http-port=0", *flags])
        try:
            self.address = self.wait_for(r"^quire: ready grpc=(\S+) http=\S+")[1]
        except BaseException:
            self.kill()
            raise

    def pid_of(self, program):
        """The process of that program now; None: it does not run."""
        pid = self.popen.pid
        with open(f"/proc/{pid}/task/{pid}/children", encoding="utf-8") as file:
            for child in map(int, file.read().split()):
                with contextlib.suppress(FileNotFoundError, ProcessLookupError):
                    with open(f"/proc/{child}/comm", encoding="utf-8") as comm:
                        if program.startswith(comm.read().strip()) and state_of(child) in ALIVE + "T":
                            return child
        return None

    def successor_of(self, program, pid):
        return eventually(lambda: (new := self.pid_of(program)) != pid and new)

    def signal(self, program, number):
        """Returns whom."""
        pid = eventually(lambda: self.pid_of(program))
        os.kill(pid, number)
        return pid

    def channel(self):
        # A pool of its own: no connection, and no pause, of a channel before.
        return grpc.insecure_channel(self.address, options=[("grpc.use_local_subchannel_pool", 1)])

    def is_answering(self):
        with self.channel() as channel:
            try:
                return bool(generate(channel, request(0, 3), timeout=10).finished)
            except grpc.RpcError as error:
                assert error.code() == grpc.StatusCode.UNAVAILABLE, error
                return False

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.kill()


def request(seed, max_tokens):
    return api.GenerateRequest(text=b"Once upon a time", sampling={"temperature": 1, "seed": seed},
                               stopping={"max_tokens": max_tokens, "ignore_eos": True})


class Streams:
    """Endless streams: each begins its request anew until it is told to stop, and checks answers."""

    def __init__(self, server, num_tokens):
        with server.channel() as channel:
            self._expected = [generate(channel, request(i, num_tokens)).tokens[0]
                              for i in range(NUM_STREAMS)]
        self._server = server
        self._num_tokens = num_tokens
        self._messages = threading.Semaphore(0)
        self._stopping = False
        self._failures = []
        self.num_answers = 0
        self._threads = [threading.Thread(target=self._run, args=(i,)) for i in range(NUM_STREAMS)]
        for thread in self._threads:
            thread.start()

    def _run(self, index):
        try:
            with self._server.channel() as channel:
                while not self._stopping:
                    answer = generate(channel, request(index, self._num_tokens), timeout=120,
                                      on_message=self._messages.release)
                    if answer.tokens[0] != self._expected[index]:
                        raise AssertionError(f"stream {index} got other tokens")
                    self.num_answers += 1
        except Exception as error:
            self._failures.append(error)
            self._messages.release()

    def await_messages(self, num_messages=20):
        """Until so many more have come."""
        while self._messages.acquire(blocking=False):
            pass
        for _ in range(num_messages):
            assert self._messages.acquire(timeout=60), "the streams stand still"
            if self._failures:
                raise self._failures[0]

    def finish(self):
        self._stopping = True
        for thread in self._threads:
            thread.join()
        if self._failures:
            raise self._failures[0]


class FaultsTest(unittest.TestCase):

    def test_streams_go_on_whatever_happens_to_the_worker(self):
        with Served() as server:
            streams = Streams(server, 400)
            for _ in range(7):
                time.sleep(1)
                killed = server.signal("quire_worker", signal.SIGKILL)
                server.successor_of("quire_worker", killed)
            streams.await_messages()
            self.assertNotRegex(server.text(), "pause_ms=[^1]")

            stopped = server.signal("quire_worker", signal.SIGSTOP)
            server.successor_of("quire_worker", stopped)
            streams.await_messages()
            self.assertEqual(state_of(stopped), "")
            server.wait_for(r'killed program="?worker 0"? .*sign of life')

            # What runs may finish after SIGTERM, also when its worker dies then.
            server.popen.send_signal(signal.SIGTERM)
            server.wait_for("scheduler drains")
            killed = server.signal("quire_worker", signal.SIGKILL)
            streams.finish_running = True
            server.successor_of("quire_worker", killed)
            self.assertEqual(server.popen.wait(timeout=60), 0)


if __name__ == "__main__":
    unittest.main(verbosity=2)
