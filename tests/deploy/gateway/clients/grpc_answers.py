"""HTTP and gRPC give the same answer, bit for bit: random requests with a seed."""
import json
import random

import quire_client
from quire_client import api

from clients.served import STORY, post

PROMPTS = [STORY, "One day,", "In a small village", "Long ago,", "There once was a café – naïve 🦊",
           "Tell me a story about a fox named Pip.\n\n", " ", "x<|end_of_text|>y"]
STOPS = [" was", ".", "\n\n", "the", "a", "zzz", "é", ", "]
SCALARS = {  # field: values; those of sampling have the same name in both APIs
    "temperature": [0, 0.3, 0.7, 1, 1.5, 3], "top_p": [0.3, 0.9, 1], "top_k": [-1, 0, 1, 5, 50, 4096],
    "min_p": [0, 0.02, 0.3], "repetition_penalty": [0.8, 1.1, 2], "presence_penalty": [-2, 0.5, 2],
    "frequency_penalty": [-1, 0.3, 2],
}


def random_request(rng):
    """Returns the route and the body of a request."""
    body = {"model": "model", "seed": rng.choice([0, 1, -5, 2**63 - 1, rng.getrandbits(40)]),
            "max_tokens": rng.choice([1, 2, 7, 20, 40]), "n": rng.choice([1, 1, 2, 5]), "return_token_ids": True}

    def maybe(name, value, share=0.4):
        if rng.random() < share:
            body[name] = value

    for name, values in SCALARS.items():
        maybe(name, rng.choice(values))
    maybe("stop", rng.sample(STOPS, rng.randint(1, 3)))
    maybe("stop_token_ids", rng.sample(range(4096), 20))
    maybe("min_tokens", rng.randint(0, body["max_tokens"]))
    maybe("ignore_eos", True)
    maybe("include_stop_str_in_output", True)
    maybe("skip_special_tokens", rng.random() < 0.5)
    maybe("logit_bias", {str(rng.randrange(4096)): rng.choice([-100, -1.5, 3, 8]) for _ in range(5)})
    maybe("stream", True, 0.5)
    maybe("prompt_logprobs", rng.randint(0, 3), 0 if body.get("stream") else 0.3)
    if rng.random() < 0.3:
        body["messages"] = [{"role": "user", "content": rng.choice(PROMPTS)} for _ in range(rng.randint(1, 3))]
        if rng.random() < 0.6:
            body |= {"logprobs": True, "top_logprobs": rng.randint(0, 4)}
        return "chat/completions", body
    body["prompt"] = rng.choice(PROMPTS)
    if rng.random() < 0.2:
        body["prompt"] = [rng.randrange(2, 4096) for _ in range(rng.randint(1, 30))]
    maybe("echo", True)
    maybe("logprobs", rng.randint(0, 4), 0.6)
    maybe("best_of", body["n"] + 2, 0 if body.get("stream") else 0.2)
    return "completions", body


def tokens_of_chat(server, messages):
    return json.loads(post(server.root + "/tokenize", {"messages": messages}))["tokens"]


def grpc_request(server, body):
    """Writes the request by hand, as a user of gRPC would."""
    request = api.GenerateRequest(model=body["model"], n=body["n"], parse_special_tokens=True)
    if "messages" in body:
        request.token_ids.ids.extend(tokens_of_chat(server, body["messages"]))
    elif isinstance(body["prompt"], str):
        request.text = body["prompt"].encode()
    else:
        request.token_ids.ids.extend(body["prompt"])
    sampling, stopping, response = request.sampling, request.stopping, request.response
    sampling.seed = body["seed"] % 2**64
    for name in SCALARS:
        if name in body:
            setattr(sampling, name, max(0, body[name]) if name == "top_k" else body[name])
    for token, bias in body.get("logit_bias", {}).items():
        sampling.logit_bias.add(token_id=int(token), bias=bias)
    stopping.max_tokens = body["max_tokens"]
    if "min_tokens" in body:
        stopping.min_tokens = body["min_tokens"]
    stopping.stop.extend(text.encode() for text in body.get("stop", []))
    stopping.stop_token_ids.extend(body.get("stop_token_ids", []))
    stopping.ignore_eos = body.get("ignore_eos", False)
    stopping.include_stop_in_output = body.get("include_stop_str_in_output", False)
    if "skip_special_tokens" in body:
        response.skip_special_tokens = body["skip_special_tokens"]
    if "best_of" in body:
        request.best_of = body["best_of"]
    if body.get("logprobs") is not None:
        response.logprobs = body["top_logprobs"] if "messages" in body else body["logprobs"]
    if "prompt_logprobs" in body:
        response.prompt_logprobs = body["prompt_logprobs"]
    elif body.get("echo") and "logprobs" in body:
        response.prompt_logprobs = body["logprobs"]
    return request


def over_grpc(channel, request):
    """Returns the prompt's log-probabilities, and of each sequence: tokens, text, reason, stop, log-probabilities."""
    prompt, choices = [], [[[], b"", None, b"", []] for _ in range(request.n)]
    num_prompt_tokens = 0
    for message in quire_client.generate([channel], request):
        if message.HasField("started"):
            num_prompt_tokens = message.started.num_prompt_tokens
        prompt += message.prompt_logprobs.logprobs
        if message.HasField("chunk"):
            choice = choices[message.chunk.index]
            choice[0] += message.chunk.token_ids
            choice[1] += message.chunk.text
            choice[4] += message.chunk.logprobs
        if message.HasField("finished"):
            choice = choices[message.finished.index]
            choice[1] += message.finished.text
            choice[2] = {1: "stop", 2: "length"}[message.finished.reason]
            choice[3] = message.finished.matched_stop
    return num_prompt_tokens, prompt, choices


def over_http(server, route, body):
    """Returns the answer's fields, those of a stream put together."""
    answer = post(f"{server.url}/{route}", body)
    if not body.get("stream"):
        return json.loads(answer)
    events = [json.loads(line[len("data: "):]) for line in answer.split("\n\n")[:-2]]
    choices = [{"text": "", "token_ids": [], "logprobs": {}} for _ in range(body["n"])]
    for event in events:
        for part in event["choices"]:
            choice = choices[part["index"]]
            choice["text"] += part.get("text") or part.get("delta", {}).get("content") or ""
            choice["token_ids"] += part.get("token_ids") or []
            for name, values in (part["logprobs"] or {}).items():
                choice["logprobs"].setdefault(name, []).extend(values)
            if part["finish_reason"] is not None:
                choice |= {"finish_reason": part["finish_reason"], "stop_reason": part["stop_reason"]}
    return {"choices": choices, "usage": events[-1].get("usage")}


def finite(logprob):
    return max(logprob, -9999.0)


def scores_of_completion(logprobs):
    """Returns the log-probability and the set of alternatives at each position."""
    return [(own, own is not None and sorted(top.values()))
            for own, top in zip(logprobs["token_logprobs"], logprobs["top_logprobs"])]


def compare(report, server, channel, case, rng):
    route, body = random_request(rng)
    name = f"case {case} {json.dumps(body)}"
    answer = over_http(server, route, body)
    is_chat = "messages" in body
    request = grpc_request(server, body)
    num_prompt_tokens, prompt, choices = over_grpc(channel, request)
    for index, (tokens, text, reason, stop, logprobs) in enumerate(choices):
        got = answer["choices"][index]
        echo = ""
        if body.get("echo"):
            echo = body["prompt"] if isinstance(body["prompt"], str) else json.loads(
                post(server.root + "/detokenize", {"tokens": body["prompt"]}))["prompt"]
        got_text = got["message"]["content"] if is_chat and not body.get("stream") else got["text"]
        report.equal(f"text {index} of {name}", got_text, echo + text.decode())
        report.equal(f"tokens {index} of {name}", got["token_ids"], tokens)
        report.equal(f"finish_reason {index} of {name}", got["finish_reason"], reason)
        want_stop = stop.decode() or None
        if reason == "stop" and not stop and tokens[-1] in body.get("stop_token_ids", []):
            want_stop = tokens[-1]
        report.equal(f"stop_reason {index} of {name}", got["stop_reason"], want_stop)
        if body.get("logprobs") is None:
            continue
        scores = [finite(entry.logprob) for entry in logprobs]
        if is_chat:
            entries = (got["logprobs"] or {}).get("content", [])
            report.equal(f"logprobs {index} of {name}", [e["logprob"] for e in entries], scores)
            report.equal(f"top_logprobs {index} of {name}",
                         [[t["logprob"] for t in e["top_logprobs"]] for e in entries],
                         [[finite(t.logprob) for t in entry.top] for entry in logprobs])
            continue
        before = [None] + [finite(entry.logprob) for entry in prompt] if body.get("echo") else []
        report.equal(f"logprobs {index} of {name}", got["logprobs"]["token_logprobs"], before + scores)
        for top, entry in zip(got["logprobs"]["top_logprobs"][len(before):], logprobs):
            want = {finite(entry.logprob)} | {finite(t.logprob) for t in entry.top}
            report.check(f"top_logprobs {index} of {name}", set(top.values()) <= want and max(want) in top.values(),
                         (top, want))
    if "prompt_logprobs" in body:
        entries = answer["prompt_logprobs"] if is_chat else answer["choices"][0]["prompt_logprobs"]
        report.equal(f"prompt_logprobs of {name}",
                     [sorted((e["logprob"] for e in position.values()), reverse=True) for position in entries[1:]],
                     [sorted({t.token_id: finite(t.logprob) for t in [*entry.top]}.values(), reverse=True)
                      if any(t.logprob == entry.logprob for t in entry.top) else
                      sorted([finite(entry.logprob), *(finite(t.logprob) for t in entry.top)], reverse=True)
                      for entry in prompt])
    if not body.get("stream"):
        report.equal(f"usage of {name}", (answer["usage"]["prompt_tokens"], answer["usage"]["completion_tokens"]),
                     (num_prompt_tokens, sum(len(tokens) for tokens, *_ in choices)))


def same_answers(report, server, num_cases, seed):
    channel = quire_client.dial(server.grpc)
    rng = random.Random(seed)
    for case in range(num_cases):
        compare(report, server, channel, case, rng)
    channel.close()
