#!/usr/bin/python3
"""One model over several workers: the answers of 1, 2 and 4 ranks are the same bits, also when a rank
dies, and ranks that live keep their weights."""
import os
import re
import signal
import subprocess
import threading
import unittest

from quire_server import BIN, MODEL, api, generate
from serve_test import Served, eventually, is_alive
import grpc

# Too few blocks for all requests together: they are swapped and recomputed.
FLAGS = ("--num-gpu-blocks-override=40", "--kv-cache-dtype=int8", "--preemption-mode=swap",
         "--swap-space=64MiB", "--threads=1", "--max-num-batched-tokens=48", "--load-format=auto")
STORY = b"Once upon a time there was a small dog who lived in a big house by the sea. "


def requests():
    """Greedy, sampled, of several sequences, beams; shared beginnings; log-probabilities."""
    asked = []
    for i in range(4):
        prompt = STORY * 3 + b"%d" % i
        stopping = {"max_tokens": 40 + 10 * i, "ignore_eos": True}
        asked += [
            api.GenerateRequest(text=prompt, sampling={"temperature": 0}, stopping=stopping,
                                response={"logprobs": 3}),
            api.GenerateRequest(text=prompt, n=3, stopping=stopping, response={"logprobs": 0},
                                sampling={"temperature": 1, "seed": i, "top_k": 50,
                                          "repetition_penalty": 1.1}),
            api.GenerateRequest(text=prompt, n=2, stopping=stopping, beam_search={"num_beams": 3}),
        ]
    return asked


def bits(answer):
    """All that the client got which tensor parallelism could change."""
    return (answer.tokens, answer.text,
            {i: [(p.logprob, [(t.token_id, t.logprob) for t in p.top]) for p in positions]
             for i, positions in answer.logprobs.items()},
            {i: f.score for i, f in answer.finished.items()})


def all_answers(address, asked, on_message=lambda: None):
    answers = [None] * len(asked)
    with grpc.insecure_channel(address, options=[("grpc.use_local_subchannel_pool", 1)]) as channel:

        def ask(i):
            answers[i] = bits(generate(channel, asked[i], timeout=120, on_message=on_message))

        threads = [threading.Thread(target=ask, args=(i,)) for i in range(len(asked))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    return answers


def workers_of(served):
    """Process ids by rank."""
    pid = served.popen.pid
    with open(f"/proc/{pid}/task/{pid}/children", encoding="utf-8") as file:
        children = file.read().split()
    ranks = {}
    for child in children:
        try:
            with open(f"/proc/{child}/cmdline", "rb") as file:
                match = re.search(rb"--rank=(\d+)", file.read())
        except (FileNotFoundError, ProcessLookupError):
            continue
        if match and is_alive(child):
            ranks[int(match[1])] = int(child)
    return ranks


def bytes_read(pid):
    with open(f"/proc/{pid}/io", encoding="utf-8") as file:
        return int(re.search(r"rchar: (\d+)", file.read())[1])


class TensorParallelTest(unittest.TestCase):

    @classmethod
    def setUpClass(cls):
        with Served(*FLAGS) as served:
            cls.expected = all_answers(served.address, requests())

    def test_any_number_of_ranks_gives_the_same_bits(self):
        for size in (2, 4):
            with self.subTest(size=size), Served(*FLAGS, "-tp", str(size)) as served:
                self.assertEqual(len(workers_of(served)), size)
                self.assertEqual(all_answers(served.address, requests()), self.expected)

    def test_any_rank_may_die(self):
        for number in (signal.SIGKILL, signal.SIGSTOP):
            for victim in (0, 1):
                with self.subTest(victim=victim, signal=number), \
                        Served(*FLAGS, "--tensor-parallel-size=2") as served:
                    ranks = eventually(lambda s=served: len(r := workers_of(s)) == 2 and r)
                    survivor = ranks[1 - victim]
                    before = bytes_read(survivor)
                    num_messages = [0]

                    def kill_in_the_middle():
                        num_messages[0] += 1
                        if num_messages[0] == 60:
                            os.kill(ranks[victim], number)

                    answers = all_answers(served.address, requests(), kill_in_the_middle)
                    self.assertEqual(answers, self.expected)
                    after = workers_of(served)
                    self.assertEqual(after[1 - victim], survivor)
                    self.assertNotEqual(after[victim], ranks[victim])
                    weights = os.path.getsize(os.path.join(MODEL, "model.safetensors"))
                    self.assertLess(bytes_read(survivor) - before, weights // 4)

    def test_sizes_that_cannot_work_end_it_with_the_reason(self):
        for size, reason in (("3", "must be 1, 2, 4 or 8 (got 3)"),
                             ("8", "does not divide the heads (got 8, the model has 4)"),
                             ("0", "must be a number from 1 to 8"),
                             ("9", "must be a number from 1 to 8")):
            with self.subTest(size=size):
                ended = subprocess.run(
                    [os.path.join(BIN, "quire"), "serve", "--model", MODEL, "--port=0",
                     "--http-port=0", "-tp", size], capture_output=True, text=True, timeout=60,
                    check=False)
                self.assertEqual(ended.returncode, 2, ended.stderr)
                self.assertIn(reason, ended.stdout + ended.stderr)


if __name__ == "__main__":
    unittest.main()
