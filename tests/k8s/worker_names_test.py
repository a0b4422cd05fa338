#!/usr/bin/python3
"""A scheduler finds a worker by its name, whatever addresses the name has now: before the worker was there,
when it was replaced, when the old address stays silent, and when the name keeps it beside the new one.
Streams go on."""
import os
import socket
import sys
import tempfile
import threading
import unittest

import own_names

NAMES = own_names.enter()

sys.path.insert(0, os.path.join(os.environ["QUIRE_SOURCE"], "tests/integration"))

from quire_server import BIN, MODEL, Process, api, generate  # noqa: E402
import grpc  # noqa: E402

NAME = "quire-worker-0"
PORT = 50052
REQUEST = api.GenerateRequest(text=b"Once upon a time", sampling={"temperature": 1, "seed": 7},
                              stopping={"max_tokens": 400, "ignore_eos": True})


class WorkerNamesTest(unittest.TestCase):

    def setUp(self):
        self.processes = []
        self.folder = tempfile.TemporaryDirectory(prefix="quire-names-")
        self.addCleanup(self.folder.cleanup)
        self.addCleanup(self.stop)

    def stop(self):
        for process in self.processes:
            process.kill()

    def start(self, *arguments):
        self.processes.append(Process(list(arguments)))
        return self.processes[-1]

    def start_worker(self, address):
        worker = self.start(os.path.join(BIN, "quire_worker"), f"--model={MODEL}", "--threads=1",
                            f"--listen={address}:{PORT}", "--kv-cache-memory-bytes=64MiB",
                            "--swap-space=0", "--cpu-isa=portable")
        worker.wait_for(r"^quire_worker: ready ")
        return worker

    def start_scheduler(self):
        scheduler = self.start(os.path.join(BIN, "quire_scheduler"), f"--model={MODEL}", "--port=0",
                               f"--workers={NAME}:{PORT}", "--http-port=0")
        address = scheduler.wait_for(r"^quire_scheduler: listens grpc=(\S+)").group(1)
        channel = grpc.insecure_channel(address)
        self.addCleanup(channel.close)
        return scheduler, channel

    def test_a_worker_that_moves_is_found_and_streams_go_on(self):
        # The scheduler starts before the worker's name exists, as when both are created at once.
        scheduler, channel = self.start_scheduler()
        worker = self.start_worker("127.9.0.1")
        NAMES[NAME] = ["127.9.0.1"]
        scheduler.wait_for(r"^quire_scheduler: ready ")
        whole = generate(channel, REQUEST, timeout=300).tokens

        for old, new, is_silent, is_kept in (("127.9.0.1", "127.9.0.2", False, False),
                                             ("127.9.0.2", "127.9.0.3", True, False),
                                             # The pod of a dead node stays at its Service.
                                             ("127.9.0.3", "127.9.0.4", True, True),
                                             ("127.9.0.4", "127.9.0.5", False, True)):
            with self.subTest(old=old, new=new, is_silent=is_silent, is_kept=is_kept):
                moves = []

                def move_once():
                    if not moves:
                        moves.append(threading.Thread(target=self.move, args=(
                            worker, old, new, is_silent, is_kept)))
                        moves[0].start()

                # If the new address is not found, the worker timeout ends the call.
                answer = generate(channel, REQUEST, timeout=300, on_message=move_once)
                moves[0].join()
                worker = self.processes[-1]
                self.assertEqual(answer.tokens, whole)

    def move(self, worker, old, new, is_silent, is_kept):
        worker.kill()
        if is_silent:
            listener = socket.create_server((old, PORT))  # it takes connections, and says nothing
            self.addCleanup(listener.close)
        NAMES[NAME] = [old, new] if is_kept else [old]
        self.start_worker(new)
        NAMES[NAME] = [old, new] if is_kept else [new]


if __name__ == "__main__":
    unittest.main(verbosity=2)
