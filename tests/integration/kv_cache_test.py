#!/usr/bin/python3
"""Sharing and swapping of KV blocks, from outside: answers stay, metrics tell what happened."""
import os
import sys
import threading
import time
import types
import unittest

from quire_server import (Server, api, generate, get_load, metric, server_info, types_api,
                          wait_until_idle)

NUM_REQUESTS = 24


def prompt_of(info, length, first=0):
    """Returns token ids that are no special tokens."""
    return {"ids": [(first + 7 * i) % (info.vocab_size - 300) + 280 for i in range(length)]}


def request(i, info, **more):
    return api.GenerateRequest(token_ids=prompt_of(info, 20 + 3 * i, first=11 * i),
                               sampling={"temperature": i % 2, "seed": i}, n=1 + (i % 4 == 1),
                               stopping={"max_tokens": 60 + i, "ignore_eos": True}, **more)


class PrefixCacheTest(unittest.TestCase):

    def test_a_prompt_is_computed_once_for_each_salt(self):
        with Server() as server, server.channel() as channel:
            info = server_info(channel)
            prompt = prompt_of(info, 1024)

            def ask(**more):
                begin = time.monotonic()
                answer = generate(channel, api.GenerateRequest(
                    token_ids=prompt, sampling={"temperature": 0},
                    stopping={"max_tokens": 1, "ignore_eos": True}, **more))
                return answer.tokens, time.monotonic() - begin

            def hits():
                return metric(server, 'quire_prefix_cache_tokens_total{result="hit"}')

            ask(bypass_prefix_cache=True)  # the first steps of a process are slow
            self.assertEqual(hits(), 0)
            first, seconds_first = ask()
            self.assertEqual(hits(), 0)
            again, seconds_again = ask()
            self.assertEqual(again, first)
            self.assertEqual(hits(), 1024 - info.block_size_tokens)
            self.assertEqual(ask(cache_salt=b"other")[0], first)
            self.assertEqual(ask(bypass_prefix_cache=True)[0], first)
            self.assertEqual(hits(), 1024 - info.block_size_tokens)
            self.assertEqual(ask(cache_salt=b"other")[0], first)
            self.assertEqual(hits(), 2 * (1024 - info.block_size_tokens))
            print(f"first token after {1e3 * seconds_first:.1f} ms, "
                  f"with a cached prompt after {1e3 * seconds_again:.1f} ms", file=sys.stderr)
            wait_until_idle(server)

    def test_switched_off_it_finds_nothing(self):
        with Server("--noenable_prefix_caching") as server, server.channel() as channel:
            info = server_info(channel)
            self.assertEqual(generate(channel, request(0, info)).tokens,
                             generate(channel, request(0, info)).tokens)
            self.assertEqual(metric(server, "quire_prefix_cache_blocks"), 0)


class LoadTest(unittest.TestCase):

    def check_sums(self, load, info):
        blocks = load.kv_blocks
        self.assertEqual(blocks.num_blocks, info.num_blocks)
        self.assertEqual(blocks.num_free + blocks.num_cached + blocks.num_active
                         + blocks.num_leaving + blocks.num_pending, blocks.num_blocks)
        slots = blocks.num_active * blocks.block_size_tokens
        self.assertLessEqual(blocks.num_stored_tokens, slots)
        self.assertLessEqual(blocks.num_stored_tokens, blocks.num_referenced_tokens)
        self.assertAlmostEqual(blocks.fragmentation,
                               1 - blocks.num_stored_tokens / slots if slots else 0)

    def test_it_follows_sequences_that_share_a_prompt(self):
        num_prompt, num_sequences = 1000, 4
        with Server() as server, server.channel() as channel:
            info = server_info(channel)
            before = get_load(server)
            self.assertTrue(before.ready)
            self.assertEqual(before.kv_blocks.num_free, info.num_blocks)
            self.assertGreater(before.kv_blocks.block_bytes, 0)

            loads = []
            generate(channel, api.GenerateRequest(
                token_ids=prompt_of(info, num_prompt), n=num_sequences,
                sampling={"temperature": 1, "seed": 1},
                stopping={"max_tokens": 100, "ignore_eos": True}),
                on_message=lambda: loads.append(get_load(server)))
            wait_until_idle(server)
            after = get_load(server)

            for load in loads:
                self.check_sums(load, info)
            # All sequences of a request start together, and share the prompt once it is computed. Until
            # then the pool stores no more than the prompt. The first message may come before that.
            shared = [load for load in loads if load.num_running_sequences == num_sequences
                      and load.kv_blocks.num_stored_tokens > num_prompt]
            self.assertTrue(shared)
            for load in shared:
                blocks = load.kv_blocks
                self.assertEqual((load.num_running_requests, load.num_waiting_requests), (1, 0))
                self.assertEqual(blocks.num_shared, num_prompt // info.block_size_tokens)
                self.assertGreaterEqual(blocks.num_referenced_tokens - blocks.num_stored_tokens,
                                        3 * (num_prompt - info.block_size_tokens))
            self.check_sums(after, info)
            self.assertEqual(after.kv_blocks.num_active, 0)
            self.assertEqual(after.kv_blocks.num_stored_tokens, 0)
            self.assertGreaterEqual(after.kv_blocks.num_cached,
                                    num_prompt // info.block_size_tokens)
            self.assertEqual(after.num_prefix_hit_tokens, 0)
            self.assertGreaterEqual(after.num_prefix_queried_tokens, num_prompt)
            for state in ("free", "cached", "active", "leaving", "pending"):
                self.assertEqual(metric(server, f'quire_kv_blocks{{state="{state}",tier="device"}}'),
                                 getattr(after.kv_blocks, "num_" + state), state)
            self.assertEqual(metric(server, "quire_kv_block_bytes"), after.kv_blocks.block_bytes)
            self.assertEqual(metric(server, "quire_kv_shared_blocks"), 0)

    def test_it_tells_how_workers_keep_blocks_as_they_do_themselves(self):
        with Server("--block-size=1", worker_flags=["--kv-backend=vmm", "--http-port=0"]) as server, \
                server.channel() as channel:
            info = server_info(channel)
            http = server.worker.wait_for(r"^quire_worker: listens listen=\S+ http=(\S+)$").group(1)
            worker = types.SimpleNamespace(http_address=http)
            for num_tokens in (100, 300):
                generate(channel, api.GenerateRequest(
                    token_ids=prompt_of(info, num_tokens), sampling={"temperature": 0},
                    stopping={"max_tokens": 1, "ignore_eos": True}))
                deadline = time.monotonic() + 20
                num_places = metric(worker, "quire_worker_window_places")
                self.assertGreaterEqual(num_places, num_tokens)
                while True:  # reports come four times a second
                    load = get_load(server)
                    memory = load.ranks[0].kv_memory
                    if memory.num_places == num_places or time.monotonic() > deadline:
                        break
                    time.sleep(0.05)
                self.assertEqual(memory.num_places, num_places)
            self.assertEqual(memory.backend, types_api.KV_BACKEND_VMM)
            self.assertEqual(memory.page_bytes, os.sysconf("SC_PAGESIZE"))
            self.assertEqual(load.kv_blocks.block_bytes % memory.page_bytes, 0)
            self.assertGreater(memory.padding_bytes, 0)
            self.assertEqual(memory.padding_bytes,
                             metric(worker, 'quire_worker_memory_bytes{kind="padding"}'))
            self.assertEqual(memory.max_places, metric(worker, "quire_worker_window_places_limit"))


class PreemptionTest(unittest.TestCase):

    def answers_under_pressure(self, mode):
        """Checks that requests get the same tokens alone, and all at once in a pool that is too small for all.
        Returns the tokens, the bytes swapped out and in, and the number of recomputed tokens."""
        with Server(f"--preemption-mode={mode}", "--noenable_prefix_caching", "--block-size=8",
                    worker_flags=["--num-gpu-blocks-override=120"]) as server, \
                server.channel() as channel:
            info = server_info(channel)
            alone = [generate(channel, request(i, info)).tokens for i in range(NUM_REQUESTS)]
            together = [None] * NUM_REQUESTS

            def ask(i):
                together[i] = generate(channel, request(i, info)).tokens

            threads = [threading.Thread(target=ask, args=(i,)) for i in range(NUM_REQUESTS)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            self.assertEqual(together, alone)
            self.assertGreater(metric(server, f'quire_preemptions_total{{mode="{mode}"}}'), 0)
            wait_until_idle(server)
            load = get_load(server)
            swapped = [load.swapped_out_bytes, load.swapped_in_bytes]
            for way, num_bytes in zip(("out", "in"), swapped):
                self.assertEqual(metric(server, f'quire_kv_swap_bytes_total{{direction="{way}"}}'),
                                 num_bytes)
                self.assertEqual(num_bytes % load.kv_blocks.block_bytes, 0)
            self.assertEqual(load.num_failed_swap_ins, 0)
            self.assertEqual(metric(server, "quire_kv_swap_in_failures_total"), 0)
            preemptions = {"recompute": load.num_recompute_preemptions,
                           "swap": load.num_swap_preemptions}
            self.assertGreater(preemptions.pop(mode), 0)
            self.assertEqual(list(preemptions.values()), [0])
            recomputed = metric(server, 'quire_tokens_total{kind="recomputed"}')
            return alone, swapped, recomputed

    def test_swapped_requests_get_what_they_get_alone(self):
        _, swapped, recomputed = self.answers_under_pressure("swap")
        self.assertGreater(swapped[0], 0)
        self.assertEqual(swapped[0], swapped[1])
        self.assertEqual(recomputed, 0)

    def test_recomputed_requests_get_what_they_get_alone(self):
        _, swapped, recomputed = self.answers_under_pressure("recompute")
        self.assertEqual(swapped, [0, 0])
        self.assertGreater(recomputed, 0)


if __name__ == "__main__":
    unittest.main()
