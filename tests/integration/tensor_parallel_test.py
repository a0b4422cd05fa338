#!/usr/bin/python3
"""One model over several workers: the answers of 1, 2 and 4 ranks are the same bits, also when a rank
dies, and ranks that live keep their weights."""
import json
import math
import os
import re
import signal
import subprocess
import tempfile
import threading
import unittest

from quire_server import BIN, MODEL, Process, admin_api, api, generate, get_load, metric, server_info
from serve_test import Served, eventually, is_alive
import grpc

# Too few blocks for all requests together: they are swapped and recomputed.
FLAGS = ("--num-gpu-blocks-override=40", "--kv-cache-dtype=int8", "--preemption-mode=swap",
         "--swap-space=64MiB", "--threads=1", "--max-num-batched-tokens=48", "--load-format=auto")
LARGE = {"architectures": ["LlamaForCausalLM"], "torch_dtype": "bfloat16", "vocab_size": 512,
         "hidden_size": 1024, "intermediate_size": 4096, "num_hidden_layers": 8,
         "num_attention_heads": 16, "max_position_embeddings": 256}
SMALL = os.path.join(os.environ["QUIRE_SOURCE"], "tests/bench/small")
TINY = os.path.join(os.environ["QUIRE_SOURCE"], "tests/worker/model/testdata/llama_bf16")
STORY = b"Once upon a time there was a small dog who lived in a big house by the sea. "


def requests():
    """Returns requests: greedy, sampled, of several sequences, beams; shared beginnings; log-probabilities."""
    asked = []
    for i in range(4):
        prompt = STORY * 3 + b"%d" % i
        stopping = {"max_tokens": 40 + 10 * i, "ignore_eos": True}
        asked += [
            api.GenerateRequest(text=prompt, sampling={"temperature": 0}, stopping=stopping,
                                response={"logprobs": 3, "prompt_logprobs": 2}),
            api.GenerateRequest(text=prompt, n=3, stopping=stopping, response={"logprobs": 0},
                                sampling={"temperature": 1, "seed": i, "top_k": 50,
                                          "repetition_penalty": 1.1}),
            api.GenerateRequest(text=prompt, n=2, stopping=stopping, beam_search={"num_beams": 3}),
        ]
    return asked


def bits(answer):
    """Returns the parts of an answer that tensor parallelism could change."""
    return (answer.tokens, answer.text,
            {i: [(p.logprob, [(t.token_id, t.logprob) for t in p.top]) for p in positions]
             for i, positions in [*answer.logprobs.items(), ("prompt", answer.prompt_logprobs)]},
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
    """Returns process ids by rank."""
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


def llama_tensors(config):
    """Yields names and shapes of the weights."""
    hidden, inner, vocab = (config[key] for key in ("hidden_size", "intermediate_size", "vocab_size"))
    kv = hidden // config["num_attention_heads"] * config["num_key_value_heads"]
    yield "model.embed_tokens.weight", [vocab, hidden]
    for layer in range(config["num_hidden_layers"]):
        prefix = f"model.layers.{layer}."
        for name, shape in (("input_layernorm", [hidden]), ("post_attention_layernorm", [hidden]),
                            ("self_attn.q_proj", [hidden, hidden]), ("self_attn.k_proj", [kv, hidden]),
                            ("self_attn.v_proj", [kv, hidden]), ("self_attn.o_proj", [hidden, hidden]),
                            ("mlp.gate_proj", [inner, hidden]), ("mlp.up_proj", [inner, hidden]),
                            ("mlp.down_proj", [hidden, inner])):
            yield prefix + name + ".weight", shape
    yield "model.norm.weight", [hidden]
    yield "lm_head.weight", [vocab, hidden]


def write_zeros(folder, config):
    """Writes a model whose weights are a hole in a file, which takes no disk. Returns the bytes of weights that
    every rank holds whole."""
    header, end, replicated = {}, 0, 0
    for name, shape in llama_tensors(config):
        begin, end = end, end + 2 * math.prod(shape)
        header[name] = {"dtype": "BF16", "shape": shape, "data_offsets": [begin, end]}
        replicated += end - begin if len(shape) == 1 else 0
    text = json.dumps(header).encode()
    with open(os.path.join(folder, "config.json"), "w", encoding="utf-8") as file:
        json.dump(config, file)
    with open(os.path.join(folder, "model.safetensors"), "wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        file.truncate(file.tell() + end)
    return replicated


def last_norm():
    """Returns the first 16 numbers of the bundled model's last norm, as each rank has them: bf16 made fp32. A matrix
    would not do, since its order in memory differs from the file's."""
    with open(os.path.join(MODEL, "model.safetensors"), "rb") as file:
        header_bytes = int.from_bytes(file.read(8), "little")
        norm = json.loads(file.read(header_bytes))["model.norm.weight"]
        assert norm["dtype"] == "BF16"
        file.seek(8 + header_bytes + norm["data_offsets"][0])
        return b"".join(b"\0\0" + file.read(2) for _ in range(16))


def flip_bit(pid, pattern):
    """Flips a bit of the pattern's first byte, at each place in writable memory that has the pattern. Returns the
    number of places."""
    num_flipped = 0
    with open(f"/proc/{pid}/maps", encoding="utf-8") as maps, open(f"/proc/{pid}/mem", "r+b", 0) as memory:
        for line in maps:
            bounds, mode = line.split()[:2]
            begin, end = (int(bound, 16) for bound in bounds.split("-"))
            if not mode.startswith("rw") or "[v" in line:
                continue
            memory.seek(begin)
            data = memory.read(end - begin)
            place = data.find(pattern)
            while place >= 0:
                memory.seek(begin + place)
                memory.write(bytes([pattern[0] ^ 1]))
                num_flipped += 1
                place = data.find(pattern, place + 1)
    return num_flipped


def resident_bytes(model, *flags):
    """Returns the resident bytes of a worker that has loaded its model and has no scheduler."""
    with tempfile.TemporaryDirectory() as folder:
        worker = Process([os.path.join(BIN, "quire_worker"), "--model", model, "--threads=1",
                          f"--listen=unix:{folder}/worker.sock", *flags])
        try:
            worker.wait_for("^quire_worker: ready ")
            with open(f"/proc/{worker.popen.pid}/status", encoding="utf-8") as file:
                return 1024 * int(re.search(r"VmRSS:\s+(\d+)", file.read())[1])
        finally:
            worker.kill()


class TensorParallelTest(unittest.TestCase):

    @classmethod
    def setUpClass(cls):
        with Served(*FLAGS) as served:
            cls.expected = all_answers(served.address, requests())

    def check_ranks(self, served, size):
        """Checks that the server names its ranks wherever it describes itself."""
        with grpc.insecure_channel(served.address) as channel:
            self.assertEqual(server_info(channel).tensor_parallel_size, size)
            ranks = get_load(served).ranks
            self.assertEqual([rank.phase for rank in ranks], [admin_api.Rank.READY] * size)
            for i, rank in enumerate(ranks):
                self.assertIn(f"worker{i}.sock", rank.address)
                self.assertEqual(metric(served, f'quire_rank_ready{{rank="{i}"}}'), 1)

    def test_any_number_of_ranks_gives_the_same_bits(self):
        for size, backend in ((2, "paged"), (2, "vmm"), (4, "paged")):
            with self.subTest(size=size, backend=backend), \
                    Served(*FLAGS, "-tp", str(size), f"--kv-backend={backend}") as served:
                self.assertEqual(len(workers_of(served)), size)
                self.check_ranks(served, size)
                self.assertEqual(all_answers(served.address, requests()), self.expected)
                if backend == "vmm":  # each rank reads through its windows
                    eventually(lambda s=served: all(r.kv_memory.num_places > 0 for r in get_load(s).ranks))

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

    def test_a_bit_that_flips_in_a_ranks_own_weights_ends_that_rank(self):
        """The other rank gets the wrong sums too, so no comparison of the two would find it."""
        with Served(*FLAGS, "-tp", "2") as served:
            ranks = eventually(lambda: len(r := workers_of(served)) == 2 and r)
            self.assertEqual(all_answers(served.address, requests()[:2]), self.expected[:2])
            self.assertGreater(flip_bit(ranks[1], last_norm()), 0)
            after = eventually(lambda: len(r := workers_of(served)) == 2 and r != ranks and r)
            self.assertEqual(after[0], ranks[0])
            served.wait_for("the weights have changed in memory")
            self.assertEqual(all_answers(served.address, requests()), self.expected)

    def test_a_model_that_one_worker_cannot_hold_serves_on_two(self):
        # 268 MB of weights, beside some 250 that a process of many threads reserves.
        flags = ("--load-format=dummy", "--threads=1", "--kv-cache-memory-bytes=16MiB")
        limit = ("prlimit", "--data=450000000")
        prompt = api.GenerateRequest(token_ids={"ids": [1, 2, 3]}, sampling={"temperature": 0},
                                     stopping={"max_tokens": 4, "ignore_eos": True})
        with tempfile.TemporaryDirectory() as model:
            with open(os.path.join(model, "config.json"), "w", encoding="utf-8") as file:
                json.dump(LARGE, file)
            alone = subprocess.run(
                [*limit, os.path.join(BIN, "quire"), "serve", "--model", model, "--port=0",
                 "--http-port=0", *flags], capture_output=True, text=True, timeout=60, check=False)
            self.assertEqual(alone.returncode, 4, alone.stderr)
            self.assertIn("no memory for a matrix", alone.stderr)
            with Served(*flags, "-tp", "2", model=model, under=limit) as served:
                answers = all_answers(served.address, [prompt])
            with Served(*flags, model=model) as served:
                self.assertEqual(all_answers(served.address, [prompt]), answers)

    def test_a_rank_holds_its_part_and_nothing_else(self):
        with open(os.path.join(SMALL, "config.json"), encoding="utf-8") as file:
            config = json.load(file)
        with tempfile.TemporaryDirectory() as model:
            # Norms are kept as fp32.
            replicated = 2 * write_zeros(model, config)
            empty = resident_bytes(TINY)
            whole = resident_bytes(model) - empty
            for size in (2, 4, 8):
                for rank in (0, size - 1):
                    with self.subTest(size=size, rank=rank):
                        part = resident_bytes(model, f"--tensor-parallel-size={size}",
                                              f"--rank={rank}") - empty
                        self.assertLessEqual(part, 1.02 * whole / size + replicated)

    def test_a_limit_on_the_size_of_files_ends_no_rank(self):
        # The memory that ranks share is a file, larger than this.
        with Served(*FLAGS, "-tp", "2", under=("prlimit", "--fsize=65536")) as served:
            self.assertEqual(all_answers(served.address, requests()[:2]), self.expected[:2])

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

    def test_gpus_that_are_fewer_than_the_ranks_are_shared_only_when_told_what_each_takes(self):
        ended = subprocess.run(
            [os.path.join(BIN, "quire"), "serve", "--model", MODEL, "--port=0", "--http-port=0", "-tp",
             "4", "--device=emu"], capture_output=True, text=True, timeout=60, check=False)
        self.assertEqual(ended.returncode, 2, ended.stderr)
        self.assertIn("--kv-cache-memory-bytes: must be given if ranks share a GPU "
                      "(ranks on this machine 4, GPUs 2)", ended.stdout + ended.stderr)


class EmulatedGpuTest(unittest.TestCase):
    """Ranks on emulated GPUs, which add up through main memory. Sums of other sizes are rounded otherwise,
    so the tests compare tokens, whose candidates lie far apart, and not bits."""

    FLAGS = ("--device=emu", "--kv-cache-memory-bytes=32MiB", "--swap-space=0",
             "--max-num-batched-tokens=16")
    REQUESTS = [api.GenerateRequest(text=text, sampling={"temperature": 0},
                                    stopping={"max_tokens": 24, "ignore_eos": True})
                for text in (b"Once upon a time", b"One day, a little dog")]

    def tokens(self, *flags, on_message=lambda served: None):
        with Served(*self.FLAGS, *flags) as served:
            answers = all_answers(served.address, self.REQUESTS, lambda: on_message(served))
            return [answer[0] for answer in answers]

    def test_any_number_of_ranks_writes_the_same_tokens(self):
        expected = self.tokens()
        for size in ("2", "4"):
            with self.subTest(size=size):
                self.assertEqual(self.tokens("-tp", size), expected)

    def test_any_rank_may_die(self):
        expected = self.tokens("-tp", "2")
        for victim in (0, 1):
            killed = []

            def kill_in_the_middle(served, victim=victim, killed=killed, num_messages=[0]):
                num_messages[0] += 1
                if num_messages[0] == 20:
                    killed.append(workers_of(served))
                    os.kill(killed[0][victim], signal.SIGKILL)
                if num_messages[0] == 40:
                    killed.append(workers_of(served))

            with self.subTest(victim=victim):
                self.assertEqual(self.tokens("-tp", "2", on_message=kill_in_the_middle), expected)
                before, after = killed
                self.assertEqual(after[1 - victim], before[1 - victim])
                self.assertNotEqual(after[victim], before[victim])


if __name__ == "__main__":
    unittest.main()
