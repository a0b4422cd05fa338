#!/usr/bin/env python3
"""Validates our answers with the types of PyPI's openai package: pip install openai

    check_openai_types.py BUILD/bin/quire_openai_answers

Feeds the bodies of testdata/openai_bodies.txt to the program, whose scheduler is a fake. Each object and each
event must validate strictly, and must come back unchanged from the type. Runs by hand.
"""
import json
import pathlib
import subprocess
import sys

from openai.types import Completion, Model
from openai.types.chat import ChatCompletion, ChatCompletionChunk

BODIES = pathlib.Path(__file__).resolve().parent / "testdata" / "openai_bodies.txt"


def requests():
    for line in BODIES.read_text(encoding="utf-8").splitlines():
        if not line.startswith("#"):
            route, status, _, param, body = line.split(" ", 4)
            yield route, int(status), param, body
    yield "models", 200, "-", "{}"


def type_of(route, streams):
    if route == "completions":
        return Completion
    return ChatCompletionChunk if streams else ChatCompletion


def without_nulls(value):
    """OpenAI's types of whole answers have no null in some places where its servers send null in events."""
    if isinstance(value, dict):
        return {k: without_nulls(v) for k, v in value.items() if v is not None}
    return [without_nulls(v) for v in value] if isinstance(value, list) else value


def check_text(kind, text, body):
    value = json.loads(text)
    if kind is ChatCompletion and body.get("add_generation_prompt") is False:
        for choice in value["choices"]:  # vLLM's extension: the role of the message that is continued
            assert choice["message"]["role"] == body["messages"][-1]["role"]
            choice["message"]["role"] = "assistant"
    if kind is Completion:  # a completion's event has the type of a whole one, which must have an end
        for choice in value["choices"]:
            choice["finish_reason"] = choice["finish_reason"] or "stop"
            # OpenAI's server sends null for a prompt's first token, which the type lacks.
            if choice["logprobs"] and choice["logprobs"]["token_logprobs"][0] is None:
                assert choice["logprobs"]["top_logprobs"][0] is None
                choice["logprobs"]["token_logprobs"][0] = 0.0
                choice["logprobs"]["top_logprobs"][0] = {}
    parsed = kind.model_validate_json(json.dumps(value), strict=True)
    back = json.loads(parsed.model_dump_json(exclude_unset=True))
    assert without_nulls(back) == without_nulls(value), (back, value)


def check_sequence(route, body, texts):
    """The rules of OpenAI's documents that are about several events."""
    events = [json.loads(text) for text in texts]
    assert len({(e["id"], e["created"], e["model"]) for e in events}) == 1
    ends = [c for e in events for c in e["choices"] if c["finish_reason"]]
    assert len(ends) == len({c["index"] for c in ends}), "a choice ends once"
    if route == "chat":
        for index in {c["index"] for c in ends}:
            deltas = [c["delta"] for e in events for c in e["choices"] if c["index"] == index]
            assert "role" in deltas[0] and not any("role" in d for d in deltas[1:])
    if (body.get("stream_options") or {}).get("include_usage"):
        assert events[-1]["choices"] == [] and events[-1]["usage"]["completion_tokens"] > 0


def main():
    cases = list(requests())
    lines = "".join(f"{route} {body}\n" for route, _, _, body in cases)
    output = subprocess.run([sys.argv[1]], input=lines, capture_output=True, check=True, text=True).stdout.splitlines()
    assert len(output) == len(cases)
    checked = refused = 0
    for (route, status, param, body), line in zip(cases, output):
        answer = json.loads(line)
        assert answer["status"] == status, (route, body, line)
        if status != 200:
            assert answer["error"]["param"] == (None if param == "-" else param), (body, line)
            assert set(answer["error"]) == {"message", "type", "param", "code"}
            refused += 1
        elif route in ("completions", "chat"):
            streams = bool(json.loads(body).get("stream"))
            for text in answer["texts"]:
                check_text(type_of(route, streams), text, json.loads(body))
                checked += 1
            if streams:
                check_sequence(route, json.loads(body), answer["texts"])
        elif route == "models":
            listed = json.loads(answer["texts"][0])
            assert listed["object"] == "list"
            for model in listed["data"] + [json.loads(answer["texts"][1])]:
                Model.model_validate_json(json.dumps(model), strict=True)
                checked += 1
    print(f"{len(cases)} requests, {refused} refused, {checked} objects and events valid")


if __name__ == "__main__":
    main()
