#!/usr/bin/python3
"""The kernels of the GPU, emulated on the CPU, serve the bundled model and write what the CPU writes."""
import concurrent.futures
import re
import unittest
import urllib.request

from quire_server import Server, api, generate

PROMPTS = ["Once upon a time", "One day, a little dog", "The sun was", "Tom and his sister went to"]
MAX_TOKENS = 24


def answers(device, num_prompts, more_flags=(), scheduler_flags=(), **sampling):
    """Tokens of the prompts, all asked at once, so that steps hold prefills and decodes."""
    flags = ["--device", device, "--kv-cache-memory-bytes", "64MiB", *more_flags]
    with Server("--max-num-batched-tokens=16", *scheduler_flags, worker_flags=flags) as server:
        with server.channel() as channel:
            requests = [api.GenerateRequest(text=prompt.encode(), sampling=sampling,
                                            stopping={"max_tokens": MAX_TOKENS, "ignore_eos": True})
                        for prompt in PROMPTS[:num_prompts]]
            with concurrent.futures.ThreadPoolExecutor(num_prompts) as pool:
                return [answer.tokens[0]
                        for answer in pool.map(lambda r: generate(channel, r), requests)]


def common_prefix(a, b):
    """Returns the number of tokens that two answers share before they part."""
    return next((i for i, pair in enumerate(zip(a, b)) if pair[0] != pair[1]), min(len(a), len(b)))


class DeviceTest(unittest.TestCase):

    def test_greedy_tokens_of_the_emulated_gpu_are_those_of_the_cpu(self):
        emulated = answers("emu", len(PROMPTS), temperature=0)
        cpu = answers("cpu", len(PROMPTS), temperature=0)

        self.assertEqual([len(tokens) for tokens in emulated], [MAX_TOKENS] * len(PROMPTS))
        self.assertEqual(emulated, cpu)

    def test_most_steps_of_a_decode_are_prepared_before_their_plan(self):
        flags = ["--device", "emu", "--kv-cache-memory-bytes", "64MiB", "--http-port=0"]
        with Server(worker_flags=flags) as server:
            address = server.worker.wait_for(r"^quire_worker: listens listen=\S+ http=(\S+)").group(1)
            with server.channel() as channel:
                generate(channel, api.GenerateRequest(text=PROMPTS[0].encode(),
                                                      stopping={"max_tokens": 60, "ignore_eos": True}))
            with urllib.request.urlopen(f"http://{address}/metrics", timeout=60) as page:
                text = page.read().decode()
        prepared, steps = (float(re.search(rf"(?m)^quire_worker_{name}_total (\S+)$", text).group(1))
                           for name in ("prepared_steps", "steps"))
        self.assertGreaterEqual(prepared, 0.9 * steps)
        self.assertLess(prepared, steps, "the prompt's step cannot be prepared")

    def test_with_fp8_the_greedy_tokens_begin_as_those_of_the_cpu(self):
        fp8 = answers("emu", len(PROMPTS), ["--quantization=fp8"], temperature=0)
        cpu = answers("cpu", len(PROMPTS), temperature=0)
        shared = [common_prefix(*pair) for pair in zip(fp8, cpu)]

        self.assertEqual([len(tokens) for tokens in fp8], [MAX_TOKENS] * len(PROMPTS))
        # Seen: 24, 24, 24 and 5 tokens of 24, then a near tie falls the other way. Weights with a
        # wrong scale write other words from the first token.
        self.assertGreaterEqual(min(shared), 2, shared)
        self.assertGreaterEqual(sum(shared), 2 * MAX_TOKENS, shared)

    def test_with_keys_and_values_of_eight_bits_the_greedy_tokens_begin_as_without(self):
        flags = {"scheduler_flags": ["--kv-cache-dtype=float32"]}
        plain = answers("cpu", len(PROMPTS), **flags, temperature=0)
        for dtype, device in (("int8", "cpu"), ("fp8", "cpu"), ("fp8", "emu")):
            flags = {"scheduler_flags": [f"--kv-cache-dtype={dtype}"]}
            stored = answers(device, len(PROMPTS), **flags, temperature=0)
            shared = [common_prefix(*pair) for pair in zip(stored, plain)]

            with self.subTest(dtype=dtype, device=device):
                self.assertEqual([len(tokens) for tokens in stored], [MAX_TOKENS] * len(PROMPTS))
                self.assertGreaterEqual(min(shared), 2, shared)
                self.assertGreaterEqual(sum(shared), 2 * MAX_TOKENS, shared)

    def test_another_gpu_of_the_machine_serves_the_same_tokens(self):
        second = answers("emu", len(PROMPTS), ["--device-index=1"], temperature=0)

        self.assertEqual(second, answers("emu", len(PROMPTS), temperature=0))

    def test_a_gpu_refuses_int8_keys_and_values_with_a_reason(self):
        flags = ["--device", "emu", "--kv-cache-memory-bytes", "64MiB"]
        with Server("--kv-cache-dtype=int8", worker_flags=flags, with_worker=False) as server:
            server.start_worker()
            server.scheduler.wait_for(
                "kv_cache_dtype: this worker cannot store keys and values as int8")

    def test_a_seed_gives_the_same_tokens_again(self):
        parameters = {"temperature": 0.8, "top_p": 0.95, "top_k": 40, "repetition_penalty": 1.1,
                      "seed": 7}

        self.assertEqual(answers("emu", 1, **parameters), answers("emu", 1, **parameters))


if __name__ == "__main__":
    unittest.main()
