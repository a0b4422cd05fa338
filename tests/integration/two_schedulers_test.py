#!/usr/bin/python3
"""Several schedulers of the same workers: one serves, the others stand by, and one of them takes over within
seconds when the first is killed, stopped or told to end. A scheduler that is told not to stand by takes
the workers at once, and the older one ends its streams and stands by."""
import os
import re
import signal
import subprocess
import tempfile
import threading
import time
import unittest
import urllib.error
import urllib.request

from quire_server import BIN, MODEL, Failure, Process, Server, api, generate, grpc
from serve_test import Served

NUM_STREAMS = 4
NUM_TOKENS = 1500  # so many that streams outlast each test's steps
NUM_SHORT_TOKENS = 50
STANDS_BY = r"^quire_scheduler: stands by grpc=(\S+) http=(\S+)"
READY = r"^quire_scheduler: ready grpc=(\S+) http=(\S+)"
LISTENS = r"^quire_scheduler: listens grpc=(\S+) http=(\S+)"


def request(seed, num_tokens=NUM_TOKENS):
    return api.GenerateRequest(text=b"Once upon a time", sampling={"temperature": 1, "seed": seed},
                               stopping={"max_tokens": num_tokens, "ignore_eos": True})


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


def start_scheduler(worker_address, *flags):
    return Process([os.path.join(BIN, "quire_scheduler"), "--model", MODEL, "--workers", worker_address,
                    "--port=0", "--http-port=0", *flags])


def take_over(worker_address):
    """A scheduler that does not stand by, and its address."""
    scheduler = start_scheduler(worker_address, "--standby=false")
    return scheduler, scheduler.wait_for(READY)[1]


def page(http_address, path):
    try:
        with urllib.request.urlopen(f"http://{http_address}{path}", timeout=10) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


def wait_until_ready(http_address):
    deadline = time.monotonic() + 20
    while page(http_address, "/readyz")[0] != 200:
        assert time.monotonic() < deadline
        time.sleep(0.1)


def short_answer_at(address, seed):
    with grpc.insecure_channel(address, options=[("grpc.use_local_subchannel_pool", 1)]) as channel:
        return generate(channel, request(seed, NUM_SHORT_TOKENS))


def role_of(scheduler):
    """Returns the role of the scheduler's last line. With one rank the older scheduler may be ready until the newer
    one has asked."""
    return re.findall("^quire_scheduler: (ready|stands by) ", scheduler.text(), re.M)[-1]


class StandbyTest(unittest.TestCase):

    def check_standby(self, standby):
        """Checks a standby by its pages, and by its gRPC port, which refuses requests."""
        address, http_address = standby.wait_for(LISTENS).groups()
        self.assertEqual(page(http_address, "/readyz"), (503, "standby\n"))
        self.assertEqual(page(http_address, "/admission"), (503, "STANDBY\n"))
        self.assertEqual(page(http_address, "/livez")[0], 200)
        self.assertIn("\nquire_scheduler_standby 1", page(http_address, "/metrics")[1])
        self.assertIn('"standby":true', page(http_address, "/top.json")[1].replace(" ", ""))
        with grpc.insecure_channel(address) as channel, self.assertRaises(grpc.RpcError) as raised:
            generate(channel, request(0))
        failure = Failure(raised.exception)
        self.assertEqual((failure.code, failure.reason), (grpc.StatusCode.UNAVAILABLE, ""), str(failure))
        return address, http_address

    def check_takeover(self, end_it):
        """The standby serves within seconds of end_it(server)."""
        with Server() as server:
            standby = start_scheduler(server.worker_address)
            try:
                standby.wait_for(STANDS_BY)
                address, http_address = self.check_standby(standby)
                expected = short_answer_at(server.address, 1)
                self.assertIsNone(standby.popen.poll())
                self.assertEqual(server.worker.text().count("epoch begins"), 1, "it took nothing")
                end_it(server)
                standby.wait_for("no scheduler has the workers any more", seconds=20)
                standby.wait_for(READY, seconds=20)
                self.assertEqual(short_answer_at(address, 1).tokens, expected.tokens)
                self.assertEqual(page(http_address, "/readyz"), (200, "ready\n"))
                self.assertEqual(page(http_address, "/admission"), (200, "takes requests\n"))
                self.assertIn("\nquire_scheduler_standby 0", page(http_address, "/metrics")[1])
            finally:
                standby.kill()

    def test_a_standby_takes_over_from_one_that_was_killed(self):
        self.check_takeover(lambda server: server.scheduler.kill())

    def test_a_standby_takes_over_from_one_that_was_told_to_end(self):
        self.check_takeover(lambda server: server.terminate())

    def test_a_standby_takes_over_from_one_that_was_stopped_and_which_then_stands_by(self):
        with Server() as server, server.channel() as channel:
            standby = start_scheduler(server.worker_address)
            try:
                standby.wait_for(STANDS_BY)
                streams = Streams(channel)
                server.scheduler.popen.send_signal(signal.SIGSTOP)
                address = standby.wait_for(READY, seconds=20)[1]
                server.scheduler.popen.send_signal(signal.SIGCONT)
                server.scheduler.wait_for(STANDS_BY, seconds=20)
                for outcome in streams.wait():
                    self.assertIsInstance(outcome, Failure)
                    self.assertEqual(outcome.code, grpc.StatusCode.UNAVAILABLE)
                self.assertEqual(len(short_answer_at(address, 1).tokens[0]), NUM_SHORT_TOKENS)
            finally:
                standby.kill()

    # Once, schedulers that started together kept ending each other's meeting of ranks.
    def test_of_schedulers_that_start_together_one_serves(self):
        for num_ranks, num_schedulers in ((1, 2), (4, 2), (4, 4)):
            with self.subTest(num_ranks=num_ranks, num_schedulers=num_schedulers), \
                    tempfile.TemporaryDirectory() as folder:
                self.start_together(folder, num_ranks, num_schedulers)

    def start_together(self, folder, num_ranks, num_schedulers):
        addresses = [f"unix:{folder}/{rank}" for rank in range(num_ranks)]
        workers = [Process([os.path.join(BIN, "quire_worker"), "--model", MODEL, "--listen", address,
                            f"--rank={rank}", f"--tensor-parallel-size={num_ranks}",
                            f"--ranks-on-host={num_ranks}"])
                   for rank, address in enumerate(addresses)]
        schedulers = []
        try:
            for worker in workers:
                worker.wait_for("^quire_worker: ready ")
            schedulers = [start_scheduler(",".join(addresses)) for _ in range(num_schedulers)]
            for scheduler in schedulers:
                scheduler.wait_for(rf"{READY}|{STANDS_BY}", seconds=20)
            time.sleep(1)
            roles = [role_of(scheduler) for scheduler in schedulers]
            self.assertEqual(sorted(roles), ["ready"] + (num_schedulers - 1) * ["stands by"],
                             "\n\n".join(scheduler.text() for scheduler in schedulers))
        finally:
            for process in [*schedulers, *workers]:
                process.kill()


class TakingOverAtOnceTest(unittest.TestCase):

    def expect_superseded(self, outcomes):
        for outcome in outcomes:
            self.assertIsInstance(outcome, Failure)
            self.assertEqual((outcome.code, outcome.reason),
                             (grpc.StatusCode.UNAVAILABLE, "SUPERSEDED"), str(outcome))

    def test_the_newer_one_serves_and_the_older_one_stands_by_and_serves_again_behind_it(self):
        with Server() as server, server.channel() as channel:
            expected = short_answer_at(server.address, 0)
            streams = Streams(channel)
            newer, address = take_over(server.worker_address)
            try:
                self.expect_superseded(streams.wait())
                server.scheduler.wait_for(STANDS_BY)
                self.assertEqual(page(server.http_address, "/readyz"), (503, "standby\n"))
                self.assertEqual(short_answer_at(address, 0).tokens, expected.tokens)
                self.assertNotIn("worker group lost", newer.text())
                self.assertNotIn("WORKER_CRASH", server.scheduler.text())
            finally:
                newer.kill()
            wait_until_ready(server.http_address)
            self.assertEqual(short_answer_at(server.address, 0).tokens, expected.tokens)
            self.assertIsNone(server.scheduler.popen.poll())

    # An idle one once said that it was ready until somebody sent it a request.
    def test_an_idle_one_knows_at_once(self):
        with Server() as server:
            newer, _ = take_over(server.worker_address)
            try:
                server.scheduler.wait_for(STANDS_BY)
            finally:
                newer.kill()

    # The scheduler that was here once gave up: the spare knew of a newer one.
    def test_a_spare_worker_that_another_one_has_used_is_taken(self):
        with Server() as server, server.channel() as channel:
            spare_address = server.worker_address + ".spare"
            spare = Process([os.path.join(BIN, "quire_worker"), "--model", MODEL, "--listen",
                             spare_address])
            try:
                spare.wait_for("^quire_worker: ready ")
                take_over(spare_address)[0].kill()
                streams = Streams(channel)
                server.worker.kill()
                os.rename(spare_address.removeprefix("unix:"),
                          server.worker_address.removeprefix("unix:"))
                for outcome in streams.wait():
                    self.assertEqual(len(outcome.tokens[0]), NUM_TOKENS, str(outcome))
            finally:
                spare.kill()

    def test_serve_stands_by_for_the_newer_one_and_serves_again_behind_it(self):
        with Served() as served, grpc.insecure_channel(served.address) as channel:
            streams = Streams(channel)
            newer, address = take_over(worker_address_of(served))
            try:
                self.expect_superseded(streams.wait())
                served.wait_for("another scheduler has the workers of this server")
                num_lines = len(served.lines)
                os.kill(served.pid_of("scheduler"), signal.SIGKILL)
                served.wait_for("another scheduler has the workers of this server", after=num_lines)
                self.assertEqual(len(short_answer_at(address, 0).tokens[0]), NUM_SHORT_TOKENS)
                self.assertEqual(page(served.http_address, "/healthz"), (503, "standby\n"))
                self.assertNotIn("worker group lost", newer.text())
            finally:
                newer.kill()
            wait_until_ready(served.http_address)
            self.assertEqual(len(short_answer_at(served.address, 0).tokens[0]), NUM_SHORT_TOKENS)

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
                    self.assertEqual(len(outcome.tokens[0]), NUM_TOKENS, str(outcome))
                self.assertEqual(server.worker.text().count("epoch begins"), 1)


if __name__ == "__main__":
    unittest.main(verbosity=2)
