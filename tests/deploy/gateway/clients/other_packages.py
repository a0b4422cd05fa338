"""Sessions of litellm, langchain-openai, the command llm, and curl."""
import asyncio
import json
import os
import pathlib
import subprocess
import sys
import tempfile

from clients.openai_package import CHAT, client_of
from clients.served import STORY


def want_texts(server, **options):
    """Returns what the package openai gets: the texts of a completion and of a chat."""
    client = client_of(server)
    asked = {"model": server.model, "max_tokens": 24, "temperature": 0} | options
    return (client.completions.create(prompt=STORY, **asked).choices[0].text,
            client.chat.completions.create(messages=CHAT, **asked).choices[0].message.content)


def litellm(report, server):
    os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"  # else the import asks the network
    import litellm as package  # pylint: disable=import-outside-toplevel
    package.telemetry = False
    package.suppress_debug_info = True
    text, chat = want_texts(server)
    asked = {"api_base": server.url, "api_key": "none", "max_tokens": 24, "temperature": 0, "num_retries": 0}
    for prefix in ("openai", "hosted_vllm"):
        model = f"{prefix}/{server.model}"
        whole = package.completion(model=model, messages=CHAT, **asked)
        report.equal(f"{prefix}: completion", whole.choices[0].message.content, chat)
        report.equal(f"{prefix}: usage", whole.usage.completion_tokens, 24)
        report.equal(f"{prefix}: finish_reason", whole.choices[0].finish_reason, "length")
        stream = package.completion(model=model, messages=CHAT, stream=True,
                                    stream_options={"include_usage": True}, **asked)
        events = list(stream)
        report.equal(f"{prefix}: a stream", "".join(
            e.choices[0].delta.content or "" for e in events if e.choices), chat)
        report.equal(f"{prefix}: its usage", events[-1].usage.completion_tokens, 24)
        scored = package.completion(model=model, messages=CHAT, logprobs=True, top_logprobs=2, **asked)
        report.equal(f"{prefix}: logprobs", len(scored.choices[0].logprobs.content), 24)

        async def run(model=model):
            answer = await package.acompletion(model=model, messages=CHAT, **asked)
            parts = [e async for e in await package.acompletion(model=model, messages=CHAT, stream=True, **asked)]
            return answer.choices[0].message.content, "".join(e.choices[0].delta.content or "" for e in parts)

        report.equal(f"{prefix}: acompletion, whole and streamed", asyncio.run(run()), (chat, chat))
        report.raises(f"{prefix}: BadRequestError", package.BadRequestError,
                      lambda model=model: package.completion(
                          model=model, messages=CHAT, **(asked | {"temperature": -1})))
        report.raises(f"{prefix}: NotFoundError", package.NotFoundError,
                      lambda prefix=prefix: package.completion(model=prefix + "/gpt-4o", messages=CHAT, **asked))
        report.raises(f"{prefix}: ContextWindowExceededError", package.ContextWindowExceededError,
                      lambda model=model: package.completion(
                          model=model, messages=[{"role": "user", "content": "ab " * 3000}], **asked))
    extra = package.completion(model=f"hosted_vllm/{server.model}", messages=CHAT, top_k=1,
                               **(asked | {"temperature": 1}))
    report.equal("vLLM's top_k", extra.choices[0].message.content, chat)
    for prefix in ("text-completion-openai", "hosted_vllm"):
        answer = package.text_completion(model=f"{prefix}/{server.model}", prompt=STORY, **asked)
        report.equal(f"{prefix}: text_completion", answer.choices[0].text, text)
        report.equal(f"{prefix}: its stream", "".join(
            e.choices[0].text or "" for e in package.text_completion(
                model=f"{prefix}/{server.model}", prompt=STORY, stream=True, **asked) if e.choices), text)


def langchain(report, server):
    from langchain_openai import ChatOpenAI, OpenAI  # pylint: disable=import-outside-toplevel
    text, chat = want_texts(server)
    question = CHAT[0]["content"]
    model = ChatOpenAI(base_url=server.url, api_key="none", model=server.model, temperature=0, max_tokens=24,
                       max_retries=0, stream_usage=True)
    answer = model.invoke(question)
    report.equal("invoke", answer.content, chat)
    report.equal("usage_metadata", answer.usage_metadata["output_tokens"], 24)
    report.equal("finish_reason", answer.response_metadata["finish_reason"], "length")
    pieces = list(model.stream(question))
    total = pieces[0]
    for piece in pieces[1:]:
        total += piece
    report.equal("stream", total.content, chat)
    report.equal("usage of a stream", total.usage_metadata["output_tokens"], 24)
    report.check("many pieces", len(pieces) > 3, len(pieces))  # a busy machine joins tokens
    report.equal("batch", [m.content for m in model.batch([question] * 8)], [chat] * 8)
    report.equal("logprobs", len(model.bind(logprobs=True, top_logprobs=2).invoke(question)
                                 .response_metadata["logprobs"]["content"]), 24)
    report.equal("stop", model.invoke(question, stop=[chat[6:9]]).content, chat[:chat.index(chat[6:9])])
    report.equal("system, user and assistant messages", model.invoke(
        [("system", "s"), ("user", "u"), ("assistant", "a"), ("user", question)]).usage_metadata["output_tokens"], 24)

    async def run():
        whole = (await model.ainvoke(question)).content
        return whole, "".join([m.content async for m in model.astream(question)])

    report.equal("ainvoke and astream", asyncio.run(run()), (chat, chat))
    completions = OpenAI(base_url=server.url, api_key="none", model=server.model, temperature=0, max_tokens=24,
                         max_retries=0)
    report.equal("OpenAI: invoke", completions.invoke(STORY), text)
    report.equal("OpenAI: stream", "".join(completions.stream(STORY)), text)
    report.equal("OpenAI: batch", completions.batch([STORY] * 8), [text] * 8)
    report.equal("OpenAI: generate, n of each", len(OpenAI(
        base_url=server.url, api_key="none", model=server.model, n=2, best_of=3, max_tokens=4).generate(
            [STORY, "One day,"]).generations[1]), 2)


MODELS = """
- model_id: story
  model_name: {model}
  api_base: {url}
- model_id: story-text
  model_name: {model}
  api_base: {url}
  completion: true
"""


def llm(report, server):
    text, chat = want_texts(server)
    command = pathlib.Path(sys.executable).parent / "llm"
    with tempfile.TemporaryDirectory(prefix="quire-llm-") as folder:
        pathlib.Path(folder, "extra-openai-models.yaml").write_text(
            MODELS.format(model=server.model, url=server.url), encoding="utf-8")

        def run(*arguments, **options):
            done = subprocess.run([command, *arguments], capture_output=True, text=True, timeout=300, check=False,
                                  env=os.environ | {"LLM_USER_PATH": folder}, **options)
            assert done.returncode == 0, done.stderr
            return done.stdout

        limits = ("-o", "max_tokens", "24", "-o", "temperature", "0")
        question = CHAT[0]["content"]
        report.check("llm models", "story-text" in run("models"))
        report.equal("prompt, streamed", run("prompt", "-m", "story", *limits, question).strip(), chat.strip())
        report.equal("prompt, whole", run("prompt", "-m", "story", "--no-stream", *limits, question).strip(),
                     chat.strip())
        report.equal("text model, streamed", run("prompt", "-m", "story-text", *limits, STORY).strip(), text.strip())
        report.check("chat", chat.strip() in run("chat", "-m", "story", *limits, input=question + "\nexit\n"))
        report.check("a conversation goes on", run("prompt", "-c", *limits, "And then?").strip())
        logged = json.loads(run("logs", "--json", "-n", "1", "-m", "story"))[0]
        report.equal("the log has the usage", logged["output_tokens"], 24)


def curl(report, server):
    text, chat = want_texts(server)
    for path, prompt, piece, want in (
            ("completions", {"prompt": STORY}, lambda c: c["text"], text),
            ("chat/completions", {"messages": CHAT}, lambda c: c["delta"]["content"], chat)):
        body = {"model": server.model, "max_tokens": 24, "temperature": 0, "stream": True, **prompt}
        done = subprocess.run(["curl", "-sN", f"{server.url}/{path}", "-H", "Content-Type: application/json", "-d",
                               json.dumps(body)], capture_output=True, text=True, check=True)
        lines = done.stdout.split("\n\n")
        report.equal(f"{path}: [DONE] is last", lines[-2:], ["data: [DONE]", ""])
        events = [json.loads(line.removeprefix("data: ")) for line in lines[:-2]]
        report.equal(f"{path}: curl -N streams", "".join(piece(c) for e in events for c in e["choices"]), want)
        report.check(f"{path}: many events", len(events) > 4, len(events))
