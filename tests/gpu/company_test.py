#!/usr/bin/env python3
"""Asks the same questions thousands of times in changing company; every answer must be the same.

A server with --batch-invariant answers each of --prompts prompts alone, then --requests requests for
them in a shuffled order, --concurrency at once: lengths of prompts and answers differ, so that
no two steps hold the same batch. Every answer must be, token by token, the one given alone. Some of
the requests go to a server that reuses the blocks of equal prompts, where the answers must be the same
again, and to one without --batch-invariant: what the flag costs, and how many answers differ there.
One JSON object goes to --json.
"""
import argparse
import pathlib
import random
import sys

import quire_programs

NUM_TOKENS_IN_VOCABULARY = 4096  # of the bundled model
FIRST_TOKEN = 16                 # those before it are special


def make_prompts(count, longest, rng):
    """Pairs of token ids and number of output tokens."""
    return [([rng.randrange(FIRST_TOKEN, NUM_TOKENS_IN_VOCABULARY)
              for _ in range(rng.randint(1, longest))], rng.randint(4, 32))
            for _ in range(count)]


def ask(programs, server, prompts, order, concurrency):
    """Answers in this order, and tokens a second."""
    result = programs.bench_prompts(server, [prompts[i] for i in order],
                                    "--max-concurrency", concurrency, "--num-warmups", 0)
    return result["output_token_ids"], result["output_throughput"]


def count_differences(answers, order, alone):
    return sum(answer != alone[i] for answer, i in zip(answers, order))


def run(arguments):
    programs = quire_programs.Programs(arguments)
    rng = random.Random(arguments.seed)
    prompts = make_prompts(arguments.prompts, arguments.longest_prompt, rng)
    order = [i % len(prompts) for i in range(arguments.requests)]
    rng.shuffle(order)
    result = {"device": arguments.device, "requests": len(order), "prompts": len(prompts),
              "concurrency": arguments.concurrency}

    # Small steps and no reuse: prompts are computed again and again, beside others in other chunks.
    steps = ("--max-num-batched-tokens", arguments.step_tokens)
    anew = (*steps, "--enable-prefix-caching=false")
    with programs.serve_on_device(arguments.model, "--batch-invariant", *anew) as server:
        alone, _ = ask(programs, server, prompts, range(len(prompts)), 1)
        answers, invariant = ask(programs, server, prompts, order, arguments.concurrency)
    result["different_answers"] = count_differences(answers, order, alone)
    result["tokens"] = sum(map(len, answers))
    result["invariant_tokens_per_s"] = invariant

    some = order[:max(1, len(order) // 10)]
    with programs.serve_on_device(arguments.model, "--batch-invariant", *steps) as server:
        answers, _ = ask(programs, server, prompts, some + some, arguments.concurrency)
    result["requests_with_reuse"] = 2 * len(some)
    result["different_answers_with_reuse"] = count_differences(answers, some + some, alone)

    some = order[:max(1, len(order) // 4)]
    with programs.serve_on_device(arguments.model, *anew) as server:
        answers, fastest = ask(programs, server, prompts, some, arguments.concurrency)
    result["default_requests"] = len(some)
    result["default_different_answers"] = count_differences(answers, some, alone)
    result["default_tokens_per_s"] = fastest
    result["throughput_cost"] = 1 - invariant / fastest
    result["ok"] = result["different_answers"] + result["different_answers_with_reuse"] == 0
    return result


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    quire_programs.add_arguments(parser)
    parser.add_argument("--model", type=pathlib.Path, required=True)
    parser.add_argument("--requests", type=int, default=10000)
    parser.add_argument("--prompts", type=int, default=100)
    parser.add_argument("--longest-prompt", type=int, default=300, help="tokens")
    parser.add_argument("--concurrency", type=int, default=128)
    parser.add_argument("--step-tokens", type=int, default=512)
    parser.add_argument("--seed", type=int, default=1)
    return quire_programs.write_result(parser.parse_args(), run)


if __name__ == "__main__":
    sys.exit(main())
