#!/usr/bin/python3
"""KV events, from outside: a subscriber's index of cached blocks foretells what the server finds in its cache."""
import os
import random
import subprocess
import tempfile
import unittest

from quire_server import BIN, MODEL, Server, api, generate, metric, server_info, wait_until_idle

from kv_event_router import Subscriber

BLOCK_SIZE = 16
TOPIC = "kv@127.0.0.1:8000@tiny"


class KvEventsTest(unittest.TestCase):

    def setUp(self):
        folder = tempfile.TemporaryDirectory(prefix="quire-kv-")
        self.addCleanup(folder.cleanup)
        self.endpoints = [f"ipc://{folder.name}/{name}" for name in ("events", "replay")]
        self.flags = [f"--kv-events-endpoint={self.endpoints[0]}", f"--kv-events-replay-endpoint={self.endpoints[1]}",
                      f"--kv-events-topic={TOPIC}", f"--block-size={BLOCK_SIZE}"]

    def start(self, *flags):
        self.server = Server(*self.flags, *flags)
        self.addCleanup(self.server.close)
        self.channel = self.server.channel()
        self.addCleanup(self.channel.close)
        self.vocab_size = server_info(self.channel).vocab_size

    def subscribe(self):
        subscriber = Subscriber(*self.endpoints, topic=TOPIC)
        self.addCleanup(subscriber.close)
        return subscriber

    def follow(self, subscriber):
        """Follows until the server is idle and has no batch that the subscriber lacks."""
        wait_until_idle(self.server)
        subscriber.follow(metric(self.server, 'quire_kv_event_batches_total{result="published"}'))
        self.assertEqual(metric(self.server, 'quire_kv_event_batches_total{result="dropped"}'), 0)

    def num_hits(self):
        return metric(self.server, 'quire_prefix_cache_tokens_total{result="hit"}')

    def answer(self, prompt, salt="", **fields):
        return generate(self.channel, api.GenerateRequest(
            token_ids={"ids": prompt}, cache_salt=salt.encode(), sampling={"temperature": 0},
            stopping={"max_tokens": 8, "ignore_eos": True}, **fields))

    def prompts(self, seed, count):
        """Prompts that share beginnings, more than the pool holds."""
        draw = random.Random(seed)
        beginnings = [[draw.randrange(280, self.vocab_size) for _ in range(BLOCK_SIZE * draw.randint(1, 8))]
                      for _ in range(6)]
        for _ in range(count):
            beginning = draw.choice(beginnings)
            end = [draw.randrange(280, self.vocab_size) for _ in range(draw.randint(1, 40))]
            yield draw.choice([beginning, beginning + end, end]), draw.choice(["", "", "a", "b"])

    def check_hits(self, subscriber, seed, count):
        """Returns the tokens found. Each request finds what the subscriber's blocks foretell."""
        found = 0
        for prompt, salt in self.prompts(seed, count):
            self.follow(subscriber)
            foretold = subscriber.blocks.num_cached_tokens(prompt, BLOCK_SIZE, salt)
            before, cleared = self.num_hits(), subscriber.blocks.num_cleared
            self.answer(prompt, salt)
            self.follow(subscriber)
            if subscriber.blocks.num_cleared == cleared:  # a machine that is too busy loses its worker
                self.assertEqual(self.num_hits() - before, foretold, self.server.scheduler.text())
                found += foretold
        return found

    def test_events_foretell_what_requests_find_in_a_pool_that_is_too_small(self):
        self.start("--num-gpu-blocks-override=33")
        subscriber = self.subscribe()

        found = self.check_hits(subscriber, seed=1, count=60)

        self.assertGreater(found, 500)
        self.assertGreater(subscriber.blocks.num_removed, 50)
        late = self.subscribe()  # learns all of it from the replay
        late.catch_up()
        self.assertEqual(late.payloads, subscriber.payloads)
        self.assertEqual(late.blocks.blocks, subscriber.blocks.blocks)

    def test_lost_messages_are_replayed(self):
        self.start("--num-gpu-blocks-override=33")
        subscriber = self.subscribe()
        new_prompts = ([first + i for i in range(100)] for first in range(300, 3900, 100))
        while subscriber.num_live == 0:  # ZeroMQ does not tell when a subscriber is connected
            self.answer(next(new_prompts))
            self.follow(subscriber)
        before = len(subscriber.payloads)
        replayed = subscriber.num_replayed

        self.answer(next(new_prompts))
        self.answer(next(new_prompts))
        subscriber.lose(2)
        self.answer(next(new_prompts))
        self.follow(subscriber)

        self.assertGreater(len(subscriber.payloads), before + 2)
        self.assertGreaterEqual(subscriber.num_replayed, replayed + 2)
        self.check_hits(subscriber, seed=3, count=5)

    def test_requests_that_share_nothing_are_not_told(self):
        self.start()
        subscriber = self.subscribe()
        self.follow(subscriber)
        before = len(subscriber.payloads)

        self.answer(list(range(300, 400)), bypass_prefix_cache=True)
        self.answer(list(range(300, 400)), bypass_prefix_cache=True, n=3)

        self.follow(subscriber)
        self.assertEqual(len(subscriber.payloads), before)
        self.assertEqual(subscriber.blocks.blocks, {})

    def test_a_lost_worker_clears_the_blocks(self):
        self.start()
        subscriber = self.subscribe()
        self.answer(list(range(300, 400)))
        self.follow(subscriber)
        cleared = subscriber.blocks.num_cleared
        self.assertEqual(len(subscriber.blocks.blocks), 106 // BLOCK_SIZE)

        self.server.worker.kill()
        self.server.scheduler.wait_for("worker group lost")
        while subscriber.blocks.num_cleared == cleared:
            self.assertTrue(subscriber.receive(timeout_ms=30_000))
        self.assertEqual(subscriber.blocks.blocks, {})
        self.server.start_worker()

        self.check_hits(subscriber, seed=4, count=5)

    def test_a_new_scheduler_begins_at_0_with_a_cleared_cache(self):
        self.start()
        self.answer(list(range(300, 400)))

        self.server.kill_scheduler()
        self.server.wait_until_ready()
        subscriber = self.subscribe()
        subscriber.catch_up()

        self.assertGreaterEqual(subscriber.blocks.num_cleared, 1)
        self.assertEqual(subscriber.blocks.blocks, {})

    def test_flags_that_would_tell_strangers_or_tell_nothing_are_refused(self):
        for flags, message in {
            ("--kv-events-endpoint=tcp://*:0",): "--kv-events-endpoint: other machines can read prompts",
            ("--kv-events-endpoint=tcp://0.0.0.0:0",): "--kv-events-endpoint: other machines can read prompts",
            ("--kv-events-endpoint=ipc:///tmp/x", "--kv-events-replay-endpoint=tcp://*:0"):
                "--kv-events-replay-endpoint: other machines can read prompts",
            ("--kv-events-endpoint=127.0.0.1:5557",): "--kv-events-endpoint: must be tcp://IP:PORT",
            ("--kv-events-endpoint=inproc://x",): "--kv-events-endpoint: must be tcp://IP:PORT",
            ("--kv-events-replay-endpoint=ipc:///tmp/x",): "--kv-events-replay-endpoint: needs --kv-events-endpoint",
            ("--kv-events-endpoint=ipc:///tmp/x", "--enable-prefix-caching=false"):
                "--kv-events-endpoint: needs --enable-prefix-caching",
            ("--kv-events-buffer-steps=0",): "--kv-events-buffer-steps: must be in [1, 1000000]",
        }.items():
            with self.subTest(flags):
                ran = subprocess.run([os.path.join(BIN, "quire_scheduler"), "--model", MODEL, "--workers",
                                      "unix:/tmp/none", *flags], capture_output=True, text=True, timeout=60)
                self.assertEqual(ran.returncode, 2, ran.stderr)
                self.assertIn(message, ran.stderr)

    def test_an_endpoint_that_is_taken_ends_the_start(self):
        self.flags[0] = "--kv-events-endpoint=ipc:///no/such/folder/events"
        with self.assertRaisesRegex(AssertionError, "KV_EVENTS_BIND|cannot listen on ipc:///no/such/folder/events"):
            self.start()


if __name__ == "__main__":
    unittest.main(verbosity=2)
