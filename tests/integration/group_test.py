#!/usr/bin/python3
"""Requests of several sequences, from outside: beam search answers what Hugging Face transformers
answers, best_of chooses by its definition, and groups get under pressure what they get alone."""
import collections
import json
import os
import threading
import unittest

from kv_cache_test import metric, prompt_of
from quire_server import Server, api, generate, server_info, wait_until_idle

SOURCE = os.environ["QUIRE_SOURCE"]
GOLDENS = os.path.join(SOURCE, "tests/scheduler/core/testdata/beam_golden.json")
MODELS = os.path.join(SOURCE, "tests/worker/model/testdata")
EARLY_STOPPING = {"false": api.EARLY_STOPPING_UNSPECIFIED, "true": api.EARLY_STOPPING_TRUE,
                  "never": api.EARLY_STOPPING_NEVER}
NUM_GROUPS = 64


def at_once(channel, requests, num_threads=16):
    """Returns the answers to the requests. num_threads threads ask at a time."""
    answers = [None] * len(requests)
    left = collections.deque(enumerate(requests))

    def ask():
        while left:
            try:
                i, request = left.popleft()
            except IndexError:
                return
            answers[i] = generate(channel, request)

    threads = [threading.Thread(target=ask) for _ in range(num_threads)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return answers


class BeamSearchTest(unittest.TestCase):

    def test_finds_what_transformers_finds(self):
        cases = collections.defaultdict(list)
        with open(GOLDENS) as file:
            for case in json.load(file)["cases"]:
                cases[case["model"]].append(case)
        self.assertGreaterEqual(sum(map(len, cases.values())), 200)
        worst = 0
        for model, of_model in cases.items():
            requests = [api.GenerateRequest(
                token_ids={"ids": case["prompt"]}, n=case["n"],
                beam_search={"num_beams": case["num_beams"],
                             "length_penalty": case["length_penalty"],
                             "early_stopping": EARLY_STOPPING[case["early_stopping"]]},
                stopping={"max_tokens": case["max_tokens"], "min_tokens": case["min_tokens"],
                          "stop_token_ids": case["stop_token_ids"], "ignore_eos": True})
                for case in of_model]
            with Server("--block-size=8", model=os.path.join(MODELS, model)) as server, \
                    server.channel() as channel:
                answers = at_once(channel, requests)
                wait_until_idle(server)
            for case, answer in zip(of_model, answers):
                with self.subTest(model=model, prompt=case["prompt"]):
                    self.assertEqual([answer.tokens[i] for i in range(case["n"])],
                                     case["sequences"])
                    for i, score in enumerate(case["scores"]):
                        worst = max(worst, abs(answer.finished[i].score - score))
                        stopped = case["sequences"][i][-1] in case["stop_token_ids"]
                        self.assertEqual(answer.finished[i].reason,
                                         api.FINISH_REASON_STOP if stopped
                                         else api.FINISH_REASON_LENGTH)
        self.assertLess(worst, 1e-3)
        print(f"{sum(map(len, cases.values()))} searches, scores within {worst:.1e}")


class BestOfTest(unittest.TestCase):

    def test_the_sequences_of_the_highest_mean_logprob_are_sent(self):
        with Server() as server, server.channel() as channel:
            info = server_info(channel)

            def ask(**more):
                return generate(channel, api.GenerateRequest(
                    token_ids=prompt_of(info, 20), sampling={"temperature": 1, "seed": 5},
                    stopping={"max_tokens": 12, "ignore_eos": True}, response={"logprobs": 0},
                    **more))

            every = ask(n=6)
            means = {i: sum(one.logprob for one in logprobs) / len(logprobs)
                     for i, logprobs in every.logprobs.items()}
            best = sorted(means, key=means.get, reverse=True)[:2]
            answer = ask(n=2, best_of=6)
            self.assertEqual([answer.tokens[0], answer.tokens[1]], [every.tokens[i] for i in best])
            for rank, i in enumerate(best):
                self.assertAlmostEqual(answer.finished[rank].score, means[i], places=5)
            self.assertEqual(len(answer.finished), 2)


class SeedTest(unittest.TestCase):

    def test_sequence_i_is_a_lone_sequence_of_seed_plus_i(self):
        with Server() as server, server.channel() as channel:
            info = server_info(channel)

            def ask(seed, n):
                return generate(channel, api.GenerateRequest(
                    token_ids=prompt_of(info, 20), sampling={"temperature": 1, "seed": seed}, n=n,
                    stopping={"max_tokens": 12, "ignore_eos": True})).tokens

            for seed in (7, 2**64 - 2):
                together = ask(seed, n=4)
                alone = {i: ask((seed + i) % 2**64, n=1)[0] for i in range(4)}
                self.assertEqual(together, alone)
                self.assertEqual(len(set(map(tuple, alone.values()))), 4)


class PressureTest(unittest.TestCase):

    def answers_under_pressure(self, mode):
        """Checks that groups get the same answers alone, and all at once in a pool that is too small for all."""
        with Server(f"--preemption-mode={mode}", "--block-size=8", "--max-num-seqs=128",
                    worker_flags=["--num-gpu-blocks-override=200"]) as server, \
                server.channel() as channel:
            info = server_info(channel)
            requests = []
            for i in range(NUM_GROUPS):
                way = ({"n": 4, "sampling": {"temperature": 1, "seed": i}} if i % 2 else
                       {"n": 2, "beam_search": {"num_beams": 4}})
                requests.append(api.GenerateRequest(
                    token_ids=prompt_of(info, 9 + i, first=13 * i), bypass_prefix_cache=True,
                    stopping={"max_tokens": 40 + i % 16, "ignore_eos": True}, **way))
            alone = [generate(channel, request) for request in requests]
            self.assertEqual(metric(server, f'quire_preemptions_total{{mode="{mode}"}}'), 0)
            together = at_once(channel, requests, num_threads=NUM_GROUPS)
            for one, other in zip(alone, together):
                self.assertEqual(one.tokens, other.tokens)
                self.assertEqual({i: end.score for i, end in one.finished.items()},
                                 {i: end.score for i, end in other.finished.items()})
            preemptions = metric(server, f'quire_preemptions_total{{mode="{mode}"}}')
            self.assertGreater(preemptions, 24)
            wait_until_idle(server)
            print(f"{mode}: {preemptions:.0f} preemptions")

    def test_swapped_groups_get_what_they_get_alone(self):
        self.answers_under_pressure("swap")

    def test_recomputed_groups_get_what_they_get_alone(self):
        self.answers_under_pressure("recompute")


if __name__ == "__main__":
    unittest.main()
