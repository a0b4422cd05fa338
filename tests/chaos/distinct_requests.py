"""The distinct requests of a chaos run: what they ask decides their tokens, so one undisturbed run
of each is the oracle of every later one."""
import random

KINDS = ("greedy", "sampled", "logprobs", "four", "beams", "penalties", "stop", "cold")
NUM_BEGINNINGS = 4
BEGINNING_TOKENS = 72  # four blocks of 16 that requests share, and a part of one
TEXT_TOKENS = (280, 3800)  # a range of ids


def make_request(api, number, max_tokens):
    """The request of this number: its kind is number % len(KINDS). max_tokens scales its length."""
    chance = random.Random(number)
    kind = KINDS[number % len(KINDS)]
    beginning = random.Random(1_000_000 + number // len(KINDS) % NUM_BEGINNINGS)
    ids = [beginning.randrange(*TEXT_TOKENS) for _ in range(BEGINNING_TOKENS)]
    ids += [chance.randrange(*TEXT_TOKENS) for _ in range(chance.randint(1, 60))]
    num_tokens = chance.randint(max_tokens // 4, max_tokens)
    request = api.GenerateRequest(token_ids={"ids": ids}, sampling={"temperature": 0},
                                  stopping={"max_tokens": num_tokens, "ignore_eos": True})
    sampled = {"temperature": 1, "seed": number, "top_p": 0.95}
    if kind == "sampled":
        request.sampling.MergeFrom(api.GenerateRequest(sampling=sampled).sampling)
    elif kind == "logprobs":
        request.response.logprobs = 3
    elif kind == "four":
        request.MergeFrom(api.GenerateRequest(n=4, sampling=sampled, response={"logprobs": 0}))
        request.stopping.max_tokens = max(2, request.stopping.max_tokens // 2)
    elif kind == "beams":
        request.ClearField("sampling")
        request.MergeFrom(api.GenerateRequest(n=2, beam_search={"num_beams": 4}))
        request.stopping.max_tokens = max(2, request.stopping.max_tokens // 3)
    elif kind == "penalties":
        request.MergeFrom(api.GenerateRequest(
            sampling={**sampled, "repetition_penalty": 1.1, "frequency_penalty": 0.3},
            response={"logprobs": 1}))
    elif kind == "stop":
        request.ClearField("token_ids")
        request.text = b"Once upon a time there was " + b"a small dog and " * (1 + number % 7)
        request.MergeFrom(api.GenerateRequest(sampling=sampled,
                                              stopping={"stop": [b"the end", b". The"]}))
        request.stopping.ignore_eos = False
    elif kind == "cold":
        request.bypass_prefix_cache = True
    return request
