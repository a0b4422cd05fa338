"""Sessions of the package openai: what it asks, streams and raises."""
import asyncio
import os
import time

import openai

from clients.served import MODEL, Program, Served, STORY, free_port, make_key, write_temporary

CHAT = [{"role": "user", "content": "Tell me a story about a fox named Pip."}]
# Long enough to be still running when a client goes away.
LONG = {"max_tokens": 1500, "n": 16, "extra_body": {"ignore_eos": True}}
NUM_LONG_TOKENS = 1500 * 16


def client_of(server, **options):
    return openai.OpenAI(**({"base_url": server.url, "api_key": "none", "max_retries": 0, "timeout": 120} | options))


def async_client_of(server, **options):
    return openai.AsyncOpenAI(
        **({"base_url": server.url, "api_key": "none", "max_retries": 0, "timeout": 120} | options))


def joined(stream):
    """Returns text and finish reason of a stream of completions with one choice."""
    text, reason = "", None
    for event in stream:
        for choice in event.choices:
            text += choice.text
            reason = choice.finish_reason or reason
    return text, reason


def joined_chat(stream):
    text, reason = "", None
    for event in stream:
        for choice in event.choices:
            text += choice.delta.content or ""
            reason = choice.finish_reason or reason
    return text, reason


def completions(report, server):
    client = client_of(server)
    create = client.completions.create
    asked = {"model": server.model, "prompt": STORY, "max_tokens": 24, "temperature": 0}
    whole = create(**asked)
    choice = whole.choices[0]
    report.check("a greedy completion has text", len(choice.text) > 20, choice)
    report.equal("max_tokens ends it", choice.finish_reason, "length")
    report.equal("usage counts it", (whole.usage.completion_tokens, whole.usage.total_tokens),
                 (24, 24 + whole.usage.prompt_tokens))
    report.equal("object", whole.object, "text_completion")
    report.check("created is now", abs(whole.created - time.time()) < 3600, whole.created)
    report.equal("a stream gives the same text", joined(create(**asked, stream=True)), (choice.text, "length"))

    events = list(create(**asked, stream=True, stream_options={"include_usage": True}))
    report.equal("the last event has the usage", (events[-1].choices, events[-1].usage), ([], whole.usage))
    report.check("no other event has it", all(e.usage is None for e in events[:-1]))
    report.equal("all events have one id", len({e.id for e in events}), 1)

    echo = create(**asked, echo=True)
    report.equal("echo puts the prompt first", echo.choices[0].text, STORY + choice.text)
    report.equal("echo in a stream", joined(create(**asked, echo=True, stream=True))[0], STORY + choice.text)
    scored = create(**asked, echo=True, logprobs=3).choices[0].logprobs
    report.equal("echo has the prompt's log-probabilities",
                 {len(scored.tokens), len(scored.token_logprobs), len(scored.top_logprobs), len(scored.text_offset)},
                 {24 + whole.usage.prompt_tokens})
    report.equal("the first token has none", scored.token_logprobs[0], None)
    report.check("a greedy token is the likeliest one",
                 all(max(top.values()) == value for top, value in zip(
                     scored.top_logprobs[-24:], scored.token_logprobs[-24:])))
    only = create(**(asked | {"max_tokens": 0}), echo=True, logprobs=1)
    report.equal("max_tokens 0 echoes alone", (only.choices[0].text, only.usage.completion_tokens), (STORY, 0))
    report.equal("with the prompt's log-probabilities", only.choices[0].logprobs.token_logprobs,
                 scored.token_logprobs[:whole.usage.prompt_tokens])

    many = create(**(asked | {"temperature": 1, "n": 4}), seed=7)
    report.equal("n choices in order", [c.index for c in many.choices], [0, 1, 2, 3])
    report.check("they differ", len({c.text for c in many.choices}) > 1, many)
    again = create(**(asked | {"temperature": 1, "n": 4}), seed=7)
    report.equal("a seed repeats them", [c.text for c in again.choices], [c.text for c in many.choices])
    report.equal("both have the same system_fingerprint", again.system_fingerprint, many.system_fingerprint)
    other = create(**(asked | {"temperature": 1, "n": 4}), seed=8)
    report.check("another seed does not", [c.text for c in other.choices] != [c.text for c in many.choices])

    stop = choice.text[8:12]
    stopped = create(**asked, stop=stop).choices[0]
    report.equal("stop cuts the text", (stopped.text, stopped.finish_reason),
                 (choice.text[:choice.text.index(stop)], "stop"))
    report.equal("stop_reason names the string, as in vLLM", stopped.stop_reason, stop)
    report.equal("stop in a stream", joined(create(**asked, stop=["@", stop], stream=True)),
                 (stopped.text, "stop"))
    ids = create(**asked, extra_body={"return_token_ids": True}).choices[0].token_ids
    banned = create(**asked, logit_bias={str(ids[0]): -100}, extra_body={"return_token_ids": True})
    report.check("logit_bias bans a token", banned.choices[0].token_ids[0] != ids[0], banned)
    forced = create(**(asked | {"max_tokens": 3}), logit_bias={"42": 100}, extra_body={"return_token_ids": True})
    report.equal("logit_bias forces a token", forced.choices[0].token_ids, [42] * 3)

    prompts = [STORY, "One day,", "Long ago,"]
    listed = create(**(asked | {"prompt": prompts}))
    report.equal("a list of prompts gives the choices of each", [c.text for c in listed.choices],
                 [create(**(asked | {"prompt": p})).choices[0].text for p in prompts])
    texts = ["", "", ""]
    for event in create(**(asked | {"prompt": prompts}), stream=True):
        for part in event.choices:
            texts[part.index] += part.text
    report.equal("and in a stream", texts, [c.text for c in listed.choices])
    prompt_ids = create(**asked, extra_body={"return_token_ids": True}).choices[0].prompt_token_ids
    report.equal("a prompt of token ids", create(**(asked | {"prompt": prompt_ids})).choices[0].text, choice.text)
    report.equal("prompts of token ids",
                 [c.text for c in create(**(asked | {"prompt": [prompt_ids, prompt_ids]})).choices],
                 [choice.text] * 2)
    report.equal("max_tokens defaults to 16",
                 create(model=server.model, prompt=STORY, extra_body={"ignore_eos": True}).usage.completion_tokens, 16)


def chats(report, server):
    client = client_of(server)
    create = client.chat.completions.create
    asked = {"model": server.model, "messages": CHAT, "max_completion_tokens": 24, "temperature": 0}
    whole = create(**asked)
    choice = whole.choices[0]
    report.check("a chat has an answer", len(choice.message.content) > 20, choice)
    report.equal("role, end, object", (choice.message.role, choice.finish_reason, whole.object),
                 ("assistant", "length", "chat.completion"))
    report.equal("no tool calls and no refusal", (choice.message.tool_calls or None, choice.message.refusal),
                 (None, None))
    report.equal("max_tokens is the same", create(model=server.model, messages=CHAT, max_tokens=24, temperature=0)
                 .choices[0].message.content, choice.message.content)
    report.equal("a stream gives the same", joined_chat(create(**asked, stream=True)),
                 (choice.message.content, "length"))
    events = list(create(**asked, stream=True, stream_options={"include_usage": True}))
    report.equal("the first event has the role", events[0].choices[0].delta.role, "assistant")
    report.equal("the last event has the usage", (events[-1].choices, events[-1].usage), ([], whole.usage))
    continuous = list(create(**asked, stream=True, stream_options={
        "include_usage": True, "continuous_usage_stats": True}))
    counts = [e.usage.completion_tokens for e in continuous]
    report.check("continuous_usage_stats counts up", counts == sorted(counts) and counts[-1] == 24, counts)

    scored = create(**asked, logprobs=True, top_logprobs=4).choices[0].logprobs.content
    report.equal("log-probabilities of each token", len(scored), 24)
    report.equal("their tokens are the text", "".join(t.token for t in scored), choice.message.content)
    report.equal("their bytes too", b"".join(bytes(t.bytes) for t in scored).decode(), choice.message.content)
    report.check("four alternatives, the greedy one first",
                 all(len(t.top_logprobs) == 4 and t.top_logprobs[0].token == t.token for t in scored))
    streamed = [t for e in create(**asked, logprobs=True, top_logprobs=4, stream=True)
                for t in (e.choices[0].logprobs.content if e.choices and e.choices[0].logprobs else [])]
    report.equal("a stream has the same", streamed, scored)
    report.equal("logprobs without top_logprobs has none",
                 {len(t.top_logprobs) for t in create(**asked, logprobs=True).choices[0].logprobs.content}, {0})
    many = create(**(asked | {"temperature": 1}), n=3, seed=5)
    texts = ["", "", ""]
    for event in create(**(asked | {"temperature": 1}), n=3, seed=5, stream=True):
        for part in event.choices:
            texts[part.index] += part.delta.content or ""
    report.equal("n choices in a stream", texts, [c.message.content for c in many.choices])
    parts = [{"role": "user", "content": [{"type": "text", "text": CHAT[0]["content"]}]}]
    report.equal("content of parts", create(**(asked | {"messages": parts})).choices[0].message.content,
                 choice.message.content)
    history = [{"role": "system", "content": "Be kind."}, *CHAT, choice.message.to_dict(),
               {"role": "user", "content": "More."}]
    report.check("an answer can be sent back", create(**(asked | {"messages": history})).choices[0].message.content)
    report.check("the options of OpenAI that change nothing are taken",
                 create(**asked, user="u", store=False, metadata={"a": "b"}, service_tier="auto",
                        parallel_tool_calls=True, reasoning_effort="low", tools=[], tool_choice="none",
                        response_format={"type": "text"}).choices[0].message.content == choice.message.content)
    stop = choice.message.content[8:12]
    with client.chat.completions.stream(**asked, stop=stop) as stream:  # the package's own accumulator
        for _ in stream:
            pass
        report.equal("the accumulator of streams", stream.get_final_completion().choices[0].message.content,
                     choice.message.content[:choice.message.content.index(stop)])


def raw(report, server):
    client = client_of(server)
    asked = {"model": server.model, "prompt": STORY, "max_tokens": 8, "temperature": 0}
    text = client.completions.create(**asked).choices[0].text
    answer = client.completions.with_raw_response.create(**asked, extra_headers={"X-Request-Id": "my-id.1"})
    report.equal("with_raw_response parses", answer.parse().choices[0].text, text)
    report.check("content type", answer.headers["content-type"].startswith("application/json"), answer.headers)
    report.check("X-Request-Id names the answer", answer.parse().id.endswith("my-id.1"), answer.parse().id)
    streamed = client.completions.with_raw_response.create(**asked, stream=True)
    report.check("event stream", streamed.headers["content-type"].startswith("text/event-stream"), streamed.headers)
    report.equal("a raw stream parses", joined(streamed.parse())[0], text)
    with client.completions.with_streaming_response.create(**asked) as response:
        report.equal("with_streaming_response parses", response.parse().choices[0].text, text)
    with client.completions.with_streaming_response.create(**asked, stream=True) as response:
        lines = [line for line in response.iter_lines() if line]
    report.check("each line of a stream is data", all(line.startswith("data: ") for line in lines), lines)
    report.equal("[DONE] is last", lines[-1], "data: [DONE]")
    models = client.models.list()
    report.equal("models.list", [m.id for m in models.data], [server.model])
    report.equal("its object", (models.object, models.data[0].object), ("list", "model"))
    report.equal("models.retrieve", client.models.retrieve(server.model), models.data[0])


async def asynchronous(server):
    """Returns texts: whole and streamed, of completions and of chats; then 64 streamed and whole."""
    # Retries as by default: a client that is slow to send a body gets 408.
    async with async_client_of(server, max_retries=2) as client:
        asked = {"model": server.model, "max_tokens": 24, "temperature": 0.9, "seed": 11}
        whole = await client.completions.create(prompt=STORY, **asked)
        streamed = "".join([e.choices[0].text async for e in await client.completions.create(
            prompt=STORY, stream=True, **asked)])
        chat = await client.chat.completions.create(messages=CHAT, **asked)
        chat_streamed = "".join([e.choices[0].delta.content or "" async for e in
                                 await client.chat.completions.create(messages=CHAT, stream=True, **asked)])

        async def one(seed):
            stream = await client.chat.completions.create(
                **(asked | {"messages": CHAT, "stream": True, "seed": seed, "max_tokens": 64}))
            return "".join([e.choices[0].delta.content or "" async for e in stream])

        crowd = await asyncio.gather(*(one(seed) for seed in range(64)))
        alone = [(await client.chat.completions.create(
            **(asked | {"messages": CHAT, "seed": seed, "max_tokens": 64}))).choices[0].message.content
            for seed in range(64)]
        return (whole.choices[0].text, chat.choices[0].message.content), (streamed, chat_streamed), crowd, alone


def asyncs(report, server):
    whole, streamed, crowd, alone = asyncio.run(asynchronous(server))
    report.equal("async streams give the texts of async answers", streamed, whole)
    for seed, (text, want) in enumerate(zip(crowd, alone)):
        report.equal(f"stream {seed} of 64 at once", text, want)
    report.check("the streams differ", len(set(crowd)) > 32, len(set(crowd)))


BAD = [  # arguments, param of the error
    ({"temperature": -1}, "temperature"), ({"top_p": 1.5}, "top_p"), ({"n": 0}, "n"), ({"n": 99}, "n"),
    ({"max_tokens": -1}, "max_tokens"), ({"max_tokens": 100000}, "max_tokens"),
    ({"presence_penalty": 3}, "presence_penalty"),
    ({"logit_bias": {"99999": 1}}, "logit_bias"), ({"stop": [""]}, "stop"), ({"seed": "x"}, "seed"),
    ({"stream_options": {"include_usage": True}}, "stream_options"), ({"suffix": "x"}, "suffix"),
    ({"prompt": ""}, "prompt"), ({"prompt": [99999]}, "prompt"), ({"logprobs": 21}, "logprobs"),
    ({"extra_body": {"min_p": 2}}, "min_p"), ({"extra_body": {"top_k": -2}}, "top_k"),
    ({"extra_body": {"repetition_penalty": 0}}, "repetition_penalty"),
    ({"extra_body": {"guided_json": {}}}, "guided_json"), ({"extra_body": {"min_tokens": 50}}, "min_tokens"),
]
BAD_CHATS = [
    ({"messages": []}, "messages"), ({"messages": [{"role": "user", "content": 5}]}, "messages[0].content"),
    ({"top_logprobs": 3}, "top_logprobs"), ({"logprobs": True, "top_logprobs": 21}, "top_logprobs"),
    ({"response_format": {"type": "json_object"}}, "response_format.type"),
    ({"tools": [{"type": "function", "function": {"name": "f"}}]}, "tools"),
    ({"messages": [{"role": "user", "content": "ab " * 3000}]}, "messages"),
]


def errors(report, server):
    client = client_of(server)
    for create, defaults, cases in (
            (client.completions.create, {"model": server.model, "prompt": STORY}, BAD),
            (client.chat.completions.create, {"model": server.model, "messages": CHAT}, BAD_CHATS)):
        for stream in (False, True):
            for arguments, param in cases:
                if stream and "stream_options" in arguments:
                    continue
                name = f"{str(arguments)[:60]} stream={stream}"
                error = report.raises(f"BadRequestError for {name}", openai.BadRequestError,
                                      lambda: create(**(defaults | arguments), stream=stream))
                if error is not None:
                    report.equal(f"param of {name}", error.param, param)
                    report.check(f"code, type and message of {name}",
                                 error.code and error.type == "invalid_request_error" and param in error.message,
                                 error)
        error = report.raises("NotFoundError for an unknown model", openai.NotFoundError,
                              lambda: create(**(defaults | {"model": "gpt-4o"})))
        report.equal("its param", error and error.param, "model")
    report.raises("NotFoundError of models.retrieve", openai.NotFoundError, lambda: client.models.retrieve("gpt-4o"))
    for call in (lambda: client.embeddings.create(model=server.model, input="a"),
                 lambda: client.responses.create(model=server.model, input="a")):
        report.raises("NotFoundError of an API that is not served", openai.NotFoundError, call)
    too_long = report.raises("BadRequestError for a prompt beyond the context", openai.BadRequestError,
                             lambda: client.completions.create(model=server.model, prompt=[5] * 3000))
    report.check("clients know it by its code and its words",
                 too_long and too_long.code == "context_length_exceeded"
                 and "this model's maximum context length is" in too_long.message, too_long)


def going_away(report, server):
    """Clients that end a request early; the scheduler must stop it."""
    client = client_of(server)
    asked = {"model": server.model, **LONG}

    def was_cut(name, run):
        before = server.metric("vllm:generation_tokens_total")
        run()
        report.check(f"{name}: the scheduler has no request left", server.wait_until_idle())
        made = server.metric("vllm:generation_tokens_total") - before
        report.check(f"{name}: the answer was not computed to its end", 0 <= made < NUM_LONG_TOKENS, made)

    def close_stream(create, **arguments):
        stream = create(**asked, **arguments, stream=True)
        for _, _event in zip(range(20), stream):
            pass
        stream.close()

    was_cut("a completion's closed stream", lambda: close_stream(client.completions.create, prompt=STORY))
    was_cut("a list's closed stream", lambda: close_stream(client.completions.create, prompt=[STORY, "One day,"]))
    was_cut("a chat's closed stream", lambda: close_stream(client.chat.completions.create, messages=CHAT))
    was_cut("a timeout", lambda: report.raises(
        "APITimeoutError", openai.APITimeoutError,
        lambda: client.with_options(timeout=0.3).completions.create(prompt=STORY, **asked)))

    async def cancel():
        async with async_client_of(server) as own:
            task = asyncio.create_task(own.completions.create(prompt=STORY, **asked))
            await asyncio.to_thread(server.wait_until_running)
            task.cancel()
            try:
                await task
            except asyncio.CancelledError:
                return
            report.check("the task is cancelled", False)

    was_cut("a cancelled task", lambda: asyncio.run(cancel()))
    answer = client.with_options(timeout=120).completions.create(model=server.model, prompt=STORY, max_tokens=8)
    report.equal("the server goes on", answer.usage.completion_tokens, 8)


def restarts(report, server):
    client = client_of(server, max_retries=8)
    asked = {"model": server.model, "prompt": STORY, "max_tokens": 8, "temperature": 0}
    text = client.completions.create(**asked).choices[0].text
    for _ in range(3):
        server.kill_gateway()
        report.equal("retries reach the next gateway", client.completions.create(**asked).choices[0].text, text)
    stream = client.completions.create(model=server.model, prompt=STORY, stream=True, **LONG)
    next(iter(stream))
    server.kill_gateway()
    try:
        for _ in stream:
            pass
        report.check("a torn stream raises", False)
    except Exception as error:  # pylint: disable=broad-except
        report.check("a torn stream raises", "APIError" in str(type(error).__mro__) or "httpx" in type(error).__module__
                     or "httpx" in str(type(error)), repr(error))
    client.models.list()
    report.check("and the scheduler ends its request", server.wait_until_idle())


def refusals(report, binaries):
    """Servers with keys, with a short queue, and without a model."""
    key, line = make_key(binaries, "alice")
    operator_key, operator_line = make_key(binaries, "operator")
    files = [write_temporary(text + "\n") for text in (line, operator_line)]
    try:
        with Served(binaries, f"--api-keys-file={files[0]}", f"--admin-api-keys-file={files[1]}") as server:
            asked = {"model": server.model, "prompt": STORY, "max_tokens": 4}
            for name, other in (("no such key", operator_key), ("a key of another form", "sk-123")):
                for call in (lambda c: c.completions.create(**asked), lambda c: c.models.list(),
                             lambda c: c.completions.create(**asked, stream=True)):
                    report.raises(f"AuthenticationError for {name}", openai.AuthenticationError,
                                  lambda: call(client_of(server, api_key=other)))
            answer = client_of(server, api_key=key).completions.create(**asked)
            report.equal("a key opens", answer.usage.completion_tokens, 4)
            chat = client_of(server, api_key=key).chat.completions.create(
                model=server.model, messages=CHAT, max_tokens=4)
            report.equal("also for chats", chat.usage.completion_tokens, 4)
    finally:
        for file in files:
            os.unlink(file)

    with Served(binaries, "--max-num-seqs=16", "--max-queued-requests=1") as server:
        client = client_of(server)
        streams = [client.completions.create(model=server.model, prompt=STORY, stream=True, **LONG)]
        next(iter(streams[0]))  # it runs, so that the next one waits
        failed = []

        async def crowd():
            async with async_client_of(server) as own:
                tasks = [asyncio.create_task(own.completions.create(
                    model=server.model, prompt=STORY, max_tokens=4)) for _ in range(4)]
                await asyncio.wait(tasks, return_when=asyncio.FIRST_EXCEPTION)
                for task in tasks:
                    if task.done() and task.exception():
                        failed.append(task.exception())
                    task.cancel()
                await asyncio.gather(*tasks, return_exceptions=True)

        asyncio.run(crowd())
        report.check("RateLimitError of a full queue",
                     failed and all(type(e) is openai.RateLimitError for e in failed), failed)
        if failed:
            report.check("it has Retry-After", int(failed[0].response.headers["retry-after"]) >= 1,
                         failed[0].response.headers)
            report.equal("its code and type", (failed[0].code, failed[0].type), ("QUEUE_FULL", "rate_limit_error"))
        streams[0].close()
        report.check("and the server becomes idle", server.wait_until_idle())

    gateway = Program([str(binaries / "quire_gateway"), "--model", str(MODEL), "--port=0",
                       f"--scheduler=127.0.0.1:{free_port()}"])
    try:
        address = gateway.wait_for(r"^quire_gateway: listens api=(\S+)").group(1)
        client = openai.OpenAI(base_url=f"http://{address}/v1", api_key="none", max_retries=0)
        for call in (client.models.list, lambda: client.completions.create(model="model", prompt=STORY),
                     lambda: client.chat.completions.create(model="model", messages=CHAT, stream=True)):
            error = report.raises("InternalServerError while loading", openai.InternalServerError, call)
            report.equal("status and code", error and (error.status_code, error.code), (503, "LOADING"))
            report.check("Retry-After", error and int(error.response.headers["retry-after"]) >= 1)
    finally:
        gateway.stop()
