"""The distinct requests of a chaos run: what they ask decides their tokens, so one undisturbed run
of each is the oracle of every later one."""
import random
import uuid

KINDS = ("greedy", "sampled", "logprobs", "four", "beams", "penalties", "stop", "cold")
HTTP_KINDS = tuple("two" if kind == "beams" else kind for kind in KINDS)  # OpenAI's API has no beams
NUM_BEGINNINGS = 4
BEGINNING_TOKENS = 72  # four blocks of 16 that requests share, and a part of one
TEXT_TOKENS = (280, 3800)  # a range of ids


def make_request(api, number, max_tokens, kinds=KINDS):
    """The request of this number: its kind is number % len(kinds). max_tokens scales its length."""
    chance = random.Random(number)
    kind = kinds[number % len(kinds)]
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
    elif kind == "two":
        request.MergeFrom(api.GenerateRequest(n=2, sampling=sampled, response={"logprobs": 5}))
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


def http_body_of(request):
    """Returns the body of POST /v1/completions that asks for the same answer as events."""
    sampling, stopping = request.sampling, request.stopping
    body = {"prompt": request.text.decode() or list(request.token_ids.ids),
            "max_tokens": stopping.max_tokens, "ignore_eos": stopping.ignore_eos,
            "n": request.n or 1, "stop": [text.decode() for text in stopping.stop],
            "stream": True, "return_token_ids": True,
            "stream_options": {"include_usage": True, "continuous_usage_stats": True}}
    for name in ("temperature", "seed", "top_p", "repetition_penalty", "frequency_penalty"):
        if sampling.HasField(name):
            body[name] = getattr(sampling, name)
    if request.response.HasField("logprobs"):
        body["logprobs"] = request.response.logprobs
    if request.bypass_prefix_cache:
        body["cache_salt"] = uuid.uuid4().hex  # no other request has this part of the prefix cache
    return body
