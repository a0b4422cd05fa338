#!/usr/bin/python3
"""`quire supervise`: a scheduler and a worker that die or hang come back at once, and streams go on."""
from concurrent import futures
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import unittest

from quire_server import BIN, MODEL, SOURCE, Process, api
from serve_test import eventually, is_alive

sys.path.insert(0, os.path.join(SOURCE, "deploy/clients/python"))

import quire_client  # noqa: E402

NUM_STREAMS = 4
NUM_TOKENS = 400
NUM_DEATHS = 6  # enough for the pauses of a container runtime to grow to minutes


def children_of(pid):
    with open(f"/proc/{pid}/task/{pid}/children", encoding="utf-8") as file:
        return [int(each) for each in file.read().split()]


def answer_of(address):
    request = api.GenerateRequest(text=b"Once upon a time", sampling={"temperature": 1, "seed": 5},
                                  stopping={"max_tokens": NUM_TOKENS, "ignore_eos": True})
    with quire_client.dial(address) as channel:
        return [token for message in quire_client.generate([channel], request) for token in message.chunk.token_ids]


def new_child(process, old):
    """Waits until the supervisor has another child than `old`."""
    return eventually(lambda: next((each for each in children_of(process.popen.pid) if each != old), None))


class SuperviseTest(unittest.TestCase):

    def setUp(self):
        folder = tempfile.TemporaryDirectory(prefix="quire-test-")
        self.addCleanup(folder.cleanup)
        self.worker_address = f"unix:{folder.name}/worker.sock"

    def start(self, program, *flags):
        process = Process([os.path.join(BIN, "quire"), "supervise", program, f"--model={MODEL}", *flags])
        self.addCleanup(process.kill)
        return process

    def start_both(self):
        worker = self.start("quire_worker", f"--listen={self.worker_address}", "--http-port=0", "--threads=1")
        scheduler = self.start("quire_scheduler", f"--workers={self.worker_address}", "--port=0", "--http-port=0")
        address = scheduler.wait_for(r"^quire_scheduler: ready grpc=(\S+)").group(1)
        return worker, scheduler, address

    def test_streams_outlive_many_deaths_and_a_hang(self):
        worker, scheduler, address = self.start_both()
        answers, is_over = [], threading.Event()

        def stream():
            while not is_over.is_set():
                answers.append(answer_of(address))

        expected = answer_of(address)
        pool = self.enterContext(futures.ThreadPoolExecutor(NUM_STREAMS))
        streams = [pool.submit(stream) for _ in range(NUM_STREAMS)]
        for process in (scheduler, worker):
            for _ in range(NUM_DEATHS):
                [pid] = children_of(process.popen.pid)
                os.kill(pid, signal.SIGKILL)
                pid = new_child(process, pid)
                num_answers = len(answers)
                eventually(lambda n=num_answers: len(answers) > n)
        [pid] = children_of(worker.popen.pid)
        os.kill(pid, signal.SIGSTOP)
        new_child(worker, pid)
        num_answers = len(answers)
        eventually(lambda: len(answers) > num_answers + NUM_STREAMS)
        is_over.set()
        for each in streams:
            each.result()  # raises the stream's exception

        self.assertEqual(len(expected), NUM_TOKENS)
        self.assertTrue(all(each == expected for each in answers), "an answer differs")

    def test_sigterm_ends_supervisor_and_program_with_exit_code_0(self):
        for process in self.start_both()[:2]:
            [pid] = children_of(process.popen.pid)
            process.popen.send_signal(signal.SIGTERM)
            self.assertEqual(process.popen.wait(60), 0)
            self.assertFalse(is_alive(pid))

    def test_help_and_version_end(self):
        for flag in ("--help", "--version"):
            done = subprocess.run([os.path.join(BIN, "quire"), "supervise", "quire_worker", flag], capture_output=True,
                                  timeout=60, check=False)
            self.assertEqual(done.returncode, 0)

    def test_its_log_has_the_format_of_the_program(self):
        worker = self.start("quire_worker", f"--listen={self.worker_address}", "--log-format=json")
        worker.wait_for("^quire_worker: ready ")
        os.kill(children_of(worker.popen.pid)[0], signal.SIGKILL)
        line = worker.wait_for("started again").string
        self.assertEqual(json.loads(line)["how"], "signal 9")

    def test_a_supervisor_that_is_killed_leaves_no_program(self):
        worker = self.start("quire_worker", f"--listen={self.worker_address}")
        worker.wait_for("^quire_worker: ready ")
        [pid] = children_of(worker.popen.pid)
        worker.popen.kill()
        eventually(lambda: not is_alive(pid))

    def test_a_start_that_cannot_succeed_ends_with_its_code_and_reason(self):
        for code, text, words in ((2, "--no-such-flag", ["quire_worker", "--no-such-flag"]),
                                  (3, "/no/such/folder", ["quire_scheduler", "--model=/no/such/folder",
                                                          f"--workers={self.worker_address}"]),
                                  (2, "must be quire_scheduler, quire_worker or quire_gateway", ["sh"]),
                                  (2, "must be quire_scheduler, quire_worker or quire_gateway", [])):
            done = subprocess.run([os.path.join(BIN, "quire"), "supervise", *words], capture_output=True, text=True,
                                  timeout=60, check=False)
            self.assertEqual(done.returncode, code, done.stderr)
            self.assertIn(text, done.stderr)


if __name__ == "__main__":
    unittest.main(verbosity=2)
