#!/usr/bin/python3
"""Two schedulers and one worker: the newer one serves, the older one ends its streams and itself. Not
so for a worker that has not served the older one."""
import os
import re
import subprocess
import tempfile
import threading
import unittest

from quire_server import BIN, MODEL, Failure, Process, Server, api, generate, grpc
from serve_test import Served

NUM_STREAMS = 4
EXIT_SUPERSEDED = 6


def request(seed):
    return api.GenerateRequest(text=b"Once upon a time", sampling={"temperature": 1, "seed": seed},
                               stopping={"max_tokens": 1500, "ignore_eos": True})


class Streams:
    """Under way, each with a first token when this returns. A failure or an answer of each."""

    def __init__(self, channel):
        self.outcomes = [None] * NUM_STREAMS
        flowing = threading.Semaphore(0)

        def run(seed):
            try:
                self.outcomes[seed] = generate(channel, request(seed), on_message=flowing.release)
            except grpc.RpcError as error:
                self.outcomes[seed] = Failure(error)

        self._threads = [threading.Thread(target=run, args=(seed,)) for seed in range(NUM_STREAMS)]
        for thread in self._threads:
            thread.start()
        for _ in range(10 * NUM_STREAMS):
            assert flowing.acquire(timeout=30)

    def wait(self):
        for thread in self._threads:
            thread.join(timeout=60)
        return self.outcomes


def worker_address_of(served):
    with open(f"/proc/{served.pid_of('worker')}/cmdline", encoding="utf-8") as file:
        return re.search(r"--listen[=\0]([^\0]+)", file.read())[1]


def start_scheduler(worker_address):
    scheduler = Process([os.path.join(BIN, "quire_scheduler"), "--model", MODEL, "--workers",
                         worker_address, "--port=0", "--http-port=0"])
    return scheduler, scheduler.wait_for(r"^quire_scheduler: ready grpc=(\S+)")[1]


class TwoSchedulersTest(unittest.TestCase):

    def expect_superseded(self, outcomes):
        for outcome in outcomes:
            self.assertIsInstance(outcome, Failure)
            self.assertEqual((outcome.code, outcome.reason),
                             (grpc.StatusCode.UNAVAILABLE, "SUPERSEDED"), str(outcome))

    def test_the_newer_one_serves_and_the_older_one_ends(self):
        with Server() as server, server.channel() as channel:
            streams = Streams(channel)
            newer, address = start_scheduler(server.worker_address)
            try:
                self.expect_superseded(streams.wait())
                self.assertEqual(server.scheduler.popen.wait(timeout=20), EXIT_SUPERSEDED)
                with grpc.insecure_channel(address) as at_newer:
                    answers = [generate(at_newer, request(seed)) for seed in range(NUM_STREAMS)]
                self.assertTrue(all(len(answer.tokens[0]) == 1500 for answer in answers))
                self.assertNotIn("worker group lost", newer.text())
                self.assertNotIn("WORKER_CRASH", server.scheduler.text())
            finally:
                newer.kill()

    # The scheduler that was here once ended: the spare knew of a newer one.
    def test_a_spare_worker_that_another_one_has_used_is_refused_by_name(self):
        with Server() as server, server.channel() as channel:
            spare_address = server.worker_address + ".spare"
            spare = Process([os.path.join(BIN, "quire_worker"), "--model", MODEL, "--listen",
                             spare_address])
            try:
                spare.wait_for("^quire_worker: ready ")
                start_scheduler(spare_address)[0].kill()
                streams = Streams(channel)
                server.worker.kill()
                os.rename(spare_address.removeprefix("unix:"),
                          server.worker_address.removeprefix("unix:"))
                server.scheduler.wait_for("^quire_scheduler: refuses STALE_SCHEDULER ")
            finally:
                spare.kill()
            server.start_worker()
            for outcome in streams.wait():
                self.assertEqual(len(outcome.tokens[0]), 1500, str(outcome))

    def test_serve_does_not_start_the_older_one_again_and_keeps_the_worker(self):
        with Served() as served, grpc.insecure_channel(served.address) as channel:
            streams = Streams(channel)
            newer, address = start_scheduler(worker_address_of(served))
            try:
                self.expect_superseded(streams.wait())
                served.wait_for("another scheduler has the workers")
                with grpc.insecure_channel(address) as at_newer:
                    self.assertEqual(len(generate(at_newer, request(0)).tokens[0]), 1500)
                self.assertIsNone(served.popen.poll())
                self.assertNotIn("program=scheduler", served.text())
                self.assertNotIn("worker group lost", newer.text())
            finally:
                newer.kill()

    # The worker was dialled, the log renamed, before the second one found its port taken.
    def test_the_same_command_started_twice_leaves_the_first_one_alone(self):
        with tempfile.TemporaryDirectory() as folder:
            log = os.path.join(folder, "step_log")
            pins = os.path.join(folder, "pins")
            with Server("--admin-address=127.0.0.1:0", f"--step-log={log}",
                        f"--pinned-prefixes-file={pins}") as server, server.channel() as channel:
                admin = server.scheduler.wait_for(r"scheduler: ready .* admin=(\S+)")[1]
                streams = Streams(channel)
                os.remove(pins)
                for taken in ("--port=" + server.address.rpartition(":")[2],
                              "--http-port=" + server.http_address.rpartition(":")[2],
                              "--admin-address=" + admin):
                    second = subprocess.run(
                        [os.path.join(BIN, "quire_scheduler"), "--model", MODEL, "--workers",
                         server.worker_address, "--port=0", "--http-port=0", taken,
                         f"--step-log={log}", f"--pinned-prefixes-file={pins}"],
                        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=60,
                        check=False)
                    self.assertEqual(second.returncode, 1, second.stdout)
                    self.assertIn("cannot listen", second.stdout)
                self.assertEqual(os.listdir(folder), ["step_log"])
                for outcome in streams.wait():
                    self.assertEqual(len(outcome.tokens[0]), 1500, str(outcome))
                self.assertEqual(server.worker.text().count("epoch begins"), 1)


if __name__ == "__main__":
    unittest.main(verbosity=2)
