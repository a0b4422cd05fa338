#!/usr/bin/env python3
"""Serves a small model on a device and on the CPU and compares what they generate.

Greedy tokens should be the same. The device computes in bf16, so that two tokens of nearly equal
probability may change places. Where the answers part, both tokens must be within --max-gap of each
other in the CPU's log-probabilities, else the test fails. With keys and values in fp8, or with the
layers' weights and activations in fp8, the tokens may be --max-fp8-gap apart.

With --batch-invariant, a prompt must get the same tokens alone and together with all others. Without
graphs (--enforce-eager) it must get the same tokens and log-probabilities as with graphs. The same holds
through windows (--kv-backend vmm), alone and together. Two ranks that share the device must write the
tokens that one rank writes, except at near ties of --max-gap. At the end `quire bench serve` runs for a
short time. One JSON object goes to --json.
"""
import argparse
import pathlib
import sys

import quire_programs

PROMPTS = ["Once upon a time", "One day, a little girl named Lily", "The dog was very happy because",
           "Tom and Sam went to the park", "\"I want to help you,\" said", "The big red ball",
           "It was raining and", "In the forest there lived a"]


class Test:
    """The prompts, and the programs that answer them."""

    def __init__(self, arguments):
        self.arguments = arguments
        self.programs = quire_programs.Programs(arguments)
        self.prompts = PROMPTS[:arguments.prompts]

    def _start(self, server, prompt):
        return self.programs.start_generate(server, prompt, self.arguments.tokens)

    def alone(self, server):
        return [self.programs.read_tokens(self._start(server, prompt)) for prompt in self.prompts]

    def together(self, server):
        processes = [self._start(server, prompt) for prompt in self.prompts]
        return [self.programs.read_tokens(process) for process in processes]

    def bench(self, server):
        return self.programs.bench(
            server, "--num-prompts", self.arguments.bench_prompts, "--max-concurrency", 32,
            "--random-input-len", 128, "--random-output-len", 64)

    def answers(self, *flags):
        """Returns the answers of a new server to each prompt alone."""
        with self.programs.serve_on_device(self.arguments.model, *flags) as server:
            return self.alone(server)


def ids(tokens):
    return [token["token_id"] for token in tokens]


def bits(answers):
    """Returns the values that must agree bit for bit: tokens and their log-probabilities."""
    return [[(token["token_id"], token["logprob"]) for token in tokens] for tokens in answers]


def compare(prompt, expected, actual, max_gap):
    """Returns where the answers part, and whether the tokens there are a near tie."""
    pairs = zip(ids(expected), ids(actual))
    equal = next((i for i, (a, b) in enumerate(pairs) if a != b), min(len(expected), len(actual)))
    result = {"prompt": prompt, "num_tokens": len(expected), "equal_tokens": equal, "ok": True}
    if len(expected) != len(actual) and equal == min(len(expected), len(actual)):
        return {**result, "ok": False, "note": "one answer ended before the other"}
    if equal == len(expected):
        return result
    candidates = {top["token_id"]: top["logprob"]
                  for top in expected[equal].get("top_logprobs", [])}
    candidates[expected[equal]["token_id"]] = expected[equal]["logprob"]
    other = candidates.get(actual[equal]["token_id"])
    gap = None if other is None else expected[equal]["logprob"] - other
    return {**result, "gap_where_they_part": gap, "ok": gap is not None and gap <= max_gap}


def largest_logprob_error(expected, actual):
    """Returns the largest error over the tokens before the answers part."""
    error = 0.0
    for a, b in zip(expected, actual):
        if a["token_id"] != b["token_id"]:
            break
        error = max(error, abs(a["logprob"] - b["logprob"]))
    return error


def compare_all(test, expected, actual, max_gap):
    cases = [compare(*case, max_gap) for case in zip(test.prompts, expected, actual)]
    return {"ok": all(case["ok"] for case in cases), "cases": cases,
            "largest_logprob_error": max(map(largest_logprob_error, expected, actual))}


def fp8_weights(test, expected, max_gap):
    """Compares answers with weights in fp8. A worker whose device has no such products does not start, which
    must not hide the other results."""
    try:
        return compare_all(test, expected, test.answers("--quantization", "fp8"), max_gap)
    except RuntimeError as error:
        return {"ok": False, "note": str(error)[-500:], "cases": [], "largest_logprob_error": 0.0}


def through_windows(test, expected):
    """Returns whether answers through windows have the same bits as through block tables. A server that
    does not start must not hide the other results."""
    try:
        with test.programs.serve_on_device(test.arguments.model, "--batch-invariant",
                                           "--kv-backend", "vmm") as server:
            alone, together = test.alone(server), test.together(server)
            result = {"bits": bits(alone) == bits(expected) and bits(together) == bits(expected)}
            if test.arguments.bench_prompts > 0:
                result["bench"] = test.bench(server)
            return result
    except RuntimeError as error:
        return {"bits": False, "note": str(error)[-500:]}


def two_ranks(test, expected, max_gap):
    """Compares the answers of two ranks on the one GPU. The ranks add up through main memory, so their sums
    are rounded at other places. Ranks that do not start must not hide the other results."""
    try:
        return compare_all(test, expected, test.answers("--tensor-parallel-size", 2), max_gap)
    except RuntimeError as error:
        return {"ok": False, "note": str(error)[-500:], "cases": [], "largest_logprob_error": 0.0}


def run(arguments):
    test = Test(arguments)
    result = {"device": arguments.device, "model": arguments.model.name}
    with test.programs.serve(arguments.model, "--device", "cpu") as server:
        expected = test.alone(server)

    with test.programs.serve_on_device(arguments.model) as server:
        result["seconds_to_ready"] = server.seconds_to_ready
        actual = test.alone(server)
        if arguments.bench_prompts > 0:
            result["bench"] = test.bench(server)
    result["against_cpu"] = compare_all(test, expected, actual, arguments.max_gap)

    with test.programs.serve_on_device(arguments.model, "--batch-invariant") as server:
        alone = test.alone(server)
        together = test.together(server)
        if arguments.bench_prompts > 0:
            result["bench_batch_invariant"] = test.bench(server)
    result["same_tokens_in_company"] = list(map(ids, alone)) == list(map(ids, together))
    eager = test.answers("--batch-invariant", "--enforce-eager")
    result["same_bits_without_graphs"] = bits(alone) == bits(eager)
    result["through_windows"] = through_windows(test, alone)
    # Equal bits are not promised here: a graph may have more rows, whose fastest product adds in another order.
    eager = test.answers("--enforce-eager")
    result["same_bits_without_graphs_by_default"] = bits(actual) == bits(eager)

    fp8 = test.answers("--kv-cache-dtype", "fp8")
    result["fp8_cache_against_cpu"] = compare_all(test, expected, fp8, arguments.max_fp8_gap)
    result["fp8_weights_against_cpu"] = fp8_weights(test, expected, arguments.max_fp8_gap)

    result["two_ranks_against_one"] = two_ranks(test, actual, arguments.max_gap)

    result["ok"] = (result["against_cpu"]["ok"] and result["same_tokens_in_company"] and
                    result["same_bits_without_graphs"] and
                    result["through_windows"]["bits"] and
                    result["fp8_cache_against_cpu"]["ok"] and
                    result["fp8_weights_against_cpu"]["ok"] and
                    result["two_ranks_against_one"]["ok"])
    return result


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    quire_programs.add_arguments(parser)
    parser.add_argument("--model", type=pathlib.Path, required=True)
    parser.add_argument("--prompts", type=int, default=len(PROMPTS))
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--bench-prompts", type=int, default=128)
    parser.add_argument("--max-gap", type=float, default=0.2)
    parser.add_argument("--max-fp8-gap", type=float, default=1.0)
    return quire_programs.write_result(parser.parse_args(), run)


if __name__ == "__main__":
    sys.exit(main())
