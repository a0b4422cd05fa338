#!/usr/bin/python3
"""Workers that hang, are slow or crash on purpose: which workers are fenced, which requests end, which go on.

QUIRE_SLOW_STEP_SECONDS=60 makes the slow step as long as a true one may be.
"""
import os
import re
import sys
import threading
import time
import unittest
import urllib.error
import urllib.request

from quire_server import Failure, Server, api, generate, grpc
from serve_test import Served

SLOW_STEP_SECONDS = int(os.environ.get("QUIRE_SLOW_STEP_SECONDS", "4"))
MAGIC_TOKEN = 4000
NUM_INNOCENT = 6
MAX_CRASHES = 5


def request(number, max_tokens, ids=()):
    """Returns a request whose tokens no other request has. Its output never has the magic token."""
    prompt = [280 + (37 * number + 11 * k) % 3000 for k in range(20 + number)] + list(ids)
    return api.GenerateRequest(
        token_ids={"ids": prompt}, n=1 + (number % 3 == 2),
        sampling={"temperature": 1, "seed": number,
                  "logit_bias": [{"token_id": MAGIC_TOKEN, "bias": -100}]},
        stopping={"max_tokens": max_tokens, "ignore_eos": True})


class Streams:
    """Runs requests, one thread each. An outcome is a stream's tokens, or its failure."""

    def __init__(self, channel, requests):
        self.outcomes = [None] * len(requests)
        self.longest_gap = 0.0
        self._threads = [threading.Thread(target=self._run, args=(channel, i, one))
                         for i, one in enumerate(requests)]
        for thread in self._threads:
            thread.start()

    def _run(self, channel, i, one):
        last = None

        def on_message():
            nonlocal last
            now = time.monotonic()
            self.longest_gap = max(self.longest_gap, now - (last or now))
            last = now

        try:
            self.outcomes[i] = generate(channel, one, timeout=150, on_message=on_message).tokens
        except grpc.RpcError as error:
            self.outcomes[i] = Failure(error)

    def wait(self):
        for thread in self._threads:
            thread.join()
        return self.outcomes


def status_of(server):
    """Returns the status of /readyz."""
    try:
        with urllib.request.urlopen(f"http://{server.http_address}/readyz") as page:
            return page.status
    except urllib.error.HTTPError as error:
        return error.code


def answers(requests):
    """Returns the tokens that an undisturbed server answers."""
    with Server() as server, server.channel() as channel:
        return [generate(channel, one).tokens for one in requests]


class FailPointTest(unittest.TestCase):

    def test_a_stuck_executor_is_replaced_and_streams_go_on(self):
        self.expect_replaced("stick-at-step")

    def test_an_executor_that_hangs_between_two_steps_is_replaced_too(self):
        self.expect_replaced("stick-when-idle")

    def expect_replaced(self, fail_point):
        requests = [request(i, 60) for i in range(NUM_INNOCENT)]
        # The replacing worker counts steps from 1 again. Fewer than 40 are left, so it does not fail too.
        with Served(f"--fail-points={fail_point}=40") as served:
            with grpc.insecure_channel(served.address) as channel:
                streams = Streams(channel, requests)
                outcomes = streams.wait()
            served.wait_for('program="worker 0".*exit code 70')

        print(f"{fail_point}: the longest gap was {streams.longest_gap:.1f} s", file=sys.stderr)
        self.assertEqual(outcomes, answers(requests))
        self.assertGreater(streams.longest_gap, 1)

    def test_a_slow_step_that_gets_on_is_not_fenced(self):
        requests = [request(i, 30) for i in range(NUM_INNOCENT)]
        timeout = 1 if SLOW_STEP_SECONDS < 10 else 5
        slow = f"--fail-points=slow-step=15:{SLOW_STEP_SECONDS * 1000}"
        with Server(f"--step-timeout={timeout}", worker_flags=[slow]) as server:
            with server.channel() as channel:
                streams = Streams(channel, requests)
                outcomes = streams.wait()
            with urllib.request.urlopen(f"http://{server.http_address}/metrics") as page:
                losses = re.search(r"^quire_worker_group_losses_total (\d+)",
                                   page.read().decode(), re.M)

        self.assertEqual(outcomes, answers(requests))
        self.assertGreaterEqual(streams.longest_gap, SLOW_STEP_SECONDS)
        self.assertEqual(int(losses[1]), 0)

    def test_a_poison_request_ends_alone_after_a_few_crashes(self):
        self.expect_poison_ends(f"--fail-points=crash-on-token={MAGIC_TOKEN}")

    def test_a_request_that_hangs_all_ranks_ends_alone_too(self):
        self.expect_poison_ends(f"--fail-points=stick-on-token={MAGIC_TOKEN}", "--step-timeout=1",
                                "-tp", "2", num_ranks=2)

    def test_workers_whose_answers_are_always_wrong_are_given_up(self):
        timeout = 3
        expected = answers([request(0, 20)])
        with Server(f"--worker-timeout={timeout}", worker_flags=["--fail-points=wrong-digests"]) as server:
            with server.channel() as channel:
                begin = time.monotonic()
                outcome = Streams(channel, [request(0, 20)]).wait()[0]
                waited = time.monotonic() - begin
                refused = Streams(channel, [request(0, 20)]).wait()[0]
                self.assertEqual(status_of(server), 503)
                server.worker.kill()
                server._worker_flags = []
                server.start_worker()
                while status_of(server) != 200:
                    time.sleep(0.1)
            with server.channel() as channel:  # the server has ended the first connection
                afterwards = generate(channel, request(0, 20)).tokens
            server.scheduler.wait_for("the wait for workers timed out.*OTHER_PLAN")

        print(f"given up after {waited:.1f} of {timeout} s", file=sys.stderr)
        self.assertEqual((outcome.code, outcome.reason), (grpc.StatusCode.UNAVAILABLE, "WORKERS_FAIL"))
        self.assertEqual((refused.code, refused.reason), (grpc.StatusCode.UNAVAILABLE, "NO_WORKERS"))
        self.assertEqual([afterwards], expected)

    def expect_poison_ends(self, *flags, num_ranks=1):
        innocent = [request(i, 150) for i in range(NUM_INNOCENT)]
        poison = request(NUM_INNOCENT, 20, ids=[MAGIC_TOKEN, 300])
        with Served(*flags) as served:
            with grpc.insecure_channel(served.address) as channel:
                outcomes = Streams(channel, innocent + [poison]).wait()
                afterwards = generate(channel, request(0, 5)).tokens
            ends = len(re.findall('ended and is started again program="worker', served.text()))
        crashes = ends // num_ranks

        failure = outcomes.pop()
        print(f"poison: {crashes} crashes, {failure} {failure.metadata}", file=sys.stderr)
        self.assertEqual((failure.code, failure.reason), (grpc.StatusCode.INTERNAL, "WORKER_CRASH"))
        self.assertIn(str(crashes), failure.metadata.values())
        self.assertGreater(crashes, 1)
        self.assertLessEqual(crashes, MAX_CRASHES)
        self.assertEqual(outcomes, answers(innocent))
        self.assertEqual(afterwards, answers([request(0, 5)])[0])


if __name__ == "__main__":
    unittest.main(verbosity=2)
