#!/usr/bin/env python3
"""quire_gateway as HTTP clients see it: answers equal to gRPC's, streams that outlive the engine, bad input, keys."""
import concurrent.futures
import contextlib
import http.client
import json
import os
import pathlib
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import unittest

import grpc

sys.path.insert(0, os.path.dirname(__file__))
from authorization_test import KeyFile  # noqa: E402
from quire_server import BIN, MODEL, SOURCE, Process, api, generate  # noqa: E402
from serve_test import Served, eventually  # noqa: E402

CHAT = "/v1/chat/completions"
TEXT = "/v1/completions"
BOS, EOS = "<|begin_of_text|>", "<|end_of_text|>"


class Answer:
    """An HTTP answer. `events` are those of a stream, without [DONE]."""

    def __init__(self, response):
        self.status = response.status
        self.headers = response.headers
        self.body = response.read()
        self.events = []
        if (self.headers["content-type"] or "").startswith("text/event-stream"):
            *events, done = [line for line in self.body.decode().split("\n\n") if line]
            assert done == "data: [DONE]", done
            self.events = [json.loads(event.removeprefix("data: ")) for event in events]

    @property
    def json(self):
        return json.loads(self.body)

    @property
    def code(self):
        return self.json["error"]["code"]


class Client:
    def __init__(self, address, key=None):
        self.address = address
        self.headers = {} if key is None else {"Authorization": "Bearer " + key}

    def connect(self):
        return http.client.HTTPConnection(self.address, timeout=60)

    def send(self, method, path, body=None, headers=()):
        """`body`: JSON, or bytes to send as they are."""
        data = body if isinstance(body, (bytes, type(None))) else json.dumps(body)
        with contextlib.closing(self.connect()) as connection:
            connection.request(method, path, data, {**self.headers, **dict(headers)})
            return Answer(connection.getresponse())

    def get(self, path, **headers):
        return self.send("GET", path, headers=headers)

    def post(self, path, body, **headers):
        return self.send("POST", path, body, headers)


def texts(answer):
    """Returns the text of each choice of /v1/completions, streamed or whole."""
    if not answer.events:
        return {choice["index"]: choice["text"] for choice in answer.json["choices"]}
    joined = {}
    for event in answer.events:
        for choice in event["choices"]:
            joined[choice["index"]] = joined.get(choice["index"], "") + choice["text"]
    return joined


def gateway(*flags):
    return Process([os.path.join(BIN, "quire_gateway"), "--model", MODEL, "--port=0", "--http-port=0", *flags])


class AnswersTest(unittest.TestCase):

    @classmethod
    def setUpClass(cls):
        cls.server = cls.enterClassContext(Served())
        cls.client = Client(cls.server.http_address)

    def test_http_and_grpc_give_the_same_answer(self):
        body = {"prompt": "Once upon a time", "max_tokens": 40, "temperature": 0.9, "top_p": 0.95, "seed": 7, "n": 3,
                "logprobs": 2, "stop": [" the", "."], "presence_penalty": 0.5}
        whole = self.client.post(TEXT, body)
        streamed = self.client.post(TEXT, {**body, "stream": True, "stream_options": {"include_usage": True}})
        request = api.GenerateRequest(
            text=b"Once upon a time", n=3, parse_special_tokens=True,
            sampling={"temperature": 0.9, "top_p": 0.95, "seed": 7, "presence_penalty": 0.5},
            stopping={"max_tokens": 40, "stop": [b" the", b"."]}, response={"logprobs": 2})
        with grpc.insecure_channel(self.server.address) as channel:
            answer = generate(channel, request)
        self.assertEqual(texts(whole), {index: text.decode() for index, text in answer.text.items()})
        self.assertEqual(texts(streamed), texts(whole))
        for choice in whole.json["choices"]:
            self.assertEqual(choice["logprobs"]["token_logprobs"],
                             [entry.logprob for entry in answer.logprobs[choice["index"]]])
        usage = whole.json["usage"]
        self.assertEqual(usage["prompt_tokens"], answer.started.num_prompt_tokens)
        self.assertEqual(usage["completion_tokens"], sum(len(tokens) for tokens in answer.tokens.values()))
        self.assertEqual({**streamed.events[-1]["usage"], "prompt_tokens_details": None},
                         {**usage, "prompt_tokens_details": None})

    def test_an_answer_tells_its_request_id(self):
        body = {"prompt": "a", "max_tokens": 1}
        for given, pattern in (("my-id", "^my-id$"), ("no id!", "^[0-9a-f]{32}$"), ("", "^[0-9a-f]{32}$")):
            for stream in (False, True):
                answer = self.client.post(TEXT, {**body, "stream": stream}, **{"X-Request-Id": given})
                self.assertRegex(answer.headers["x-request-id"], pattern)
        self.assertTrue(self.client.post(TEXT, {"prompt": "a", "model": "other"}).headers["x-request-id"])
        self.assertTrue(self.client.post(TEXT, b"{").headers["x-request-id"])

    def test_usage_tells_cached_tokens(self):
        body = {"prompt": "A prompt of more than one block. " * 20, "max_tokens": 1}
        first, second = (self.client.post(TEXT, body).json["usage"] for _ in range(2))
        self.assertEqual(first["prompt_tokens_details"]["cached_tokens"], 0)
        cached = second["prompt_tokens_details"]["cached_tokens"]
        self.assertEqual(cached, (second["prompt_tokens"] - 1) // 16 * 16)

    def test_a_chat_is_rendered_by_the_models_template(self):
        messages = [{"role": "user", "content": "Once upon a time"}]
        rendered = self.client.post("/apply-template", {"messages": messages}).json["prompt"]
        self.assertEqual(rendered, BOS + "Once upon a time\n\n")
        tokens = self.client.post("/tokenize", {"messages": messages}).json["tokens"]
        self.assertEqual(tokens.count(0), 1, "BOS is not doubled")
        of_text = self.client.post(TEXT, {"prompt": tokens, "max_tokens": 20, "temperature": 0})
        chat = self.client.post(CHAT, {"messages": messages, "max_tokens": 20, "temperature": 0})
        self.assertEqual(chat.json["choices"][0]["message"]["content"], texts(of_text)[0])
        streamed = self.client.post(CHAT, {"messages": messages, "max_tokens": 20, "temperature": 0, "stream": True})
        deltas = [event["choices"][0]["delta"] for event in streamed.events]
        self.assertEqual(deltas[0], {"role": "assistant", "content": ""})
        self.assertEqual("".join(delta.get("content") or "" for delta in deltas), texts(of_text)[0])

    def test_a_message_cannot_name_special_tokens(self):
        tokens = self.client.post("/tokenize", {"messages": [{"role": "user", "content": f"a{EOS}b{BOS}"}]}).json["tokens"]
        self.assertEqual((tokens[0], tokens.count(0), tokens.count(1)), (0, 1, 0))
        self.assertEqual(self.client.post("/detokenize", {"tokens": tokens}).json["prompt"], f"{BOS}a{EOS}b{BOS}\n\n")

    def test_a_message_may_be_continued(self):
        messages = [{"role": "user", "content": "Tell."}, {"role": "assistant", "content": "Once upon a"}]
        body = {"messages": messages, "continue_final_message": True, "add_generation_prompt": False}
        self.assertEqual(self.client.post("/apply-template", body).json["prompt"], f"{BOS}Tell.\n\nOnce upon a")

    def test_a_text_is_scored(self):
        text = "Once upon a time there was a girl"
        answer = self.client.post(TEXT, {"prompt": text, "max_tokens": 0, "echo": True, "logprobs": 0}).json["choices"][0]
        self.assertEqual(answer["text"], text)
        scores = answer["logprobs"]["token_logprobs"]
        self.assertIsNone(scores[0])
        self.assertEqual(len(scores), len(self.client.post("/tokenize", {"prompt": text}).json["tokens"]))

    def test_small_routes(self):
        models = self.client.get("/v1/models").json["data"]
        self.assertEqual([model["id"] for model in models], ["model"])
        self.assertEqual(self.client.get("/v1/models/model").json["id"], "model")
        self.assertEqual((self.client.get("/v1/models/other").status, self.client.get("/v1/models/").status), (404, 404))
        for path in ("/health", "/ping", "/readyz", "/livez", "/", "/top", "/version", "/top.json"):
            self.assertEqual(self.client.get(path).status, 200, path)
        metrics = self.client.get("/metrics").body.decode()
        for name in ("quire_kv_blocks", "vllm:num_requests_running", "quire_gateway_requests_total"):
            self.assertIn(name, metrics)
        self.assertIn("quire_gateway_requests_total", self.client.get("/metrics/native").body.decode())
        self.assertEqual(self.client.send("DELETE", TEXT).status, 405)
        self.assertEqual(self.client.get("/nowhere").status, 404)
        self.assertIsNone(self.client.get("/health", Origin="https://a.example").headers["access-control-allow-origin"])

    def test_bad_input_gets_a_clear_error(self):
        def nested(depth):
            return b'{"prompt":' + b"[" * depth + b"1" + b"]" * depth + b"}"
        cases = [
            (TEXT, b"", 400, "JSON"), (TEXT, b"[]", 400, "FIELD_TYPE"), (TEXT, b'{"prompt":"a"', 400, "JSON"),
            (TEXT, nested(10_000), 400, "JSON"), (TEXT, b'{"prompt":"\xff"}', 400, "JSON"),
            (TEXT, b'{"prompt":"\\ud800"}', 400, "JSON"), (TEXT, b'{"prompt":"a","temperature":NaN}', 400, "JSON"),
            (TEXT, b'{"prompt":"a","n":1,"n":2}', 400, "JSON"), (TEXT, b'{"prompt":"a","n":1e9}', 400, None),
            (TEXT, {"prompt": "a", "stop": [""]}, 400, None), (TEXT, {"prompt": ""}, 400, "MISSING_FIELD"),
            (TEXT, {"prompt": "a", "model": "other"}, 404, "MODEL"), (TEXT, {"prompt": [99999]}, 400, None),
            (TEXT, {"prompt": "a " * 10_000}, 400, "context_length_exceeded"), (TEXT, {"prompt": "a", "suffix": "b"}, 400, "UNSUPPORTED"),
            (CHAT, {"messages": []}, 400, None), (CHAT, {"messages": [{"role": "user", "content": "a"}], "tools": [
                {"type": "function", "function": {"name": "f"}}]}, 400, "UNSUPPORTED"),
            (CHAT, {"messages": [{"role": "user", "content": "a"}] * 10_000}, 400, None),
            ("/tokenize", {}, 400, "MISSING_FIELD"), ("/detokenize", {"tokens": [-1]}, 400, "TOKEN_ID_RANGE")]
        for path, body, status, code in cases:
            answer = self.client.post(path, body)
            self.assertEqual(answer.status, status, (path, str(body)[:60], answer.body))
            self.assertTrue(answer.json["error"]["message"], answer.body)
            if code is not None:
                self.assertEqual(answer.code, code, (path, str(body)[:60], answer.body))
        self.assertEqual(self.client.post(TEXT, b" " * (9 << 20)).status, 413)
        self.assertEqual(self.client.post(TEXT, {"prompt": "a", "max_tokens": 1}).status, 200, "others are served")

    def test_a_list_with_an_impossible_prompt_is_refused_as_a_whole(self):
        length = self.client.get("/v1/models").json["data"][0]["max_model_len"]
        for prompts, param, code in (
                (["Once"] * 20 + ["word " * length], "prompt", "context_length_exceeded"),
                ([[5]] * 20 + [[5] * length], "prompt", "context_length_exceeded"),
                ([[5]] * 20 + [[5] * (length - 49)], "max_tokens", "context_length_exceeded"),
                ([[5]] * 20 + [[99999]], "prompt", "TOKEN_ID_RANGE")):
            for stream in (False, True):
                answer = self.client.post(TEXT, {"prompt": prompts, "max_tokens": 50, "stream": stream})
                self.assertEqual((answer.status, answer.code, answer.json["error"]["param"]), (400, code, param))
                self.assertIn("item 20,", answer.json["error"]["message"], "all items are checked before one is sent")
        for prompt in ([5], [[5], [5] * length]):
            answer = self.client.post(TEXT, {"prompt": prompt, "max_tokens": length + 1})
            self.assertEqual((answer.code, answer.json["error"]["message"]), (
                "MAX_TOKENS_RANGE", f"max_tokens: must be in [1, limit] (got {length + 1}, limit {length})"), "as one prompt")
        possible = self.client.post(TEXT, {"prompt": [[5], [5] * (length - 50)], "max_tokens": 50, "ignore_eos": True})
        self.assertEqual((possible.status, possible.json["usage"]["completion_tokens"]), (200, 100))

    def test_an_unknown_model_is_refused_before_its_prompt_is_looked_at(self):
        long = "word " * self.client.get("/v1/models").json["data"][0]["max_model_len"]
        for path, prompt in ((TEXT, {"prompt": ["a", long]}), (TEXT, {"prompt": long}),
                             (CHAT, {"messages": [{"role": "user", "content": long}]})):
            answer = self.client.post(path, {"model": "other", "max_tokens": 1, **prompt})
            self.assertEqual((answer.status, answer.code, answer.json["error"]["param"]), (404, "MODEL", "model"))

    def test_an_error_names_max_tokens_as_the_client_does(self):
        length = self.client.get("/v1/models").json["data"][0]["max_model_len"]
        chat = {"messages": [{"role": "user", "content": "a"}]}
        for name in ("max_tokens", "max_completion_tokens"):
            for number, code in ((length + 1, "MAX_TOKENS_RANGE"), (length - 1, "context_length_exceeded")):
                for stream in (False, True):
                    answer = self.client.post(CHAT, {**chat, name: number, "stream": stream})
                    error = answer.json["error"]
                    self.assertEqual((answer.status, error["code"], error["param"]), (400, code, name))
                    self.assertTrue(error["message"].startswith(name + ": "), error["message"])

    def test_pages_of_other_origins_are_refused(self):
        own, other = self.server.http_address, "https://a.example"
        for status, headers in (
                (200, {}), (200, {"Origin": "http://" + own}), (200, {"Origin": "https://" + own}),
                (200, {"Origin": "http://LocalHost:8000", "Host": "localhost:8000"}),
                (403, {"Origin": "http://evil.example:8000", "Host": "evil.example:8000"}),  # DNS rebinding
                (200, {"Host": "quire.example"}),  # a program behind a proxy
                (403, {"Origin": other}), (403, {"Origin": "null"}), (403, {"Origin": f"http://{own}0"}),
                (403, {"Origin": other, "Sec-Fetch-Site": "cross-site"}),
                (200, {"Origin": other, "Sec-Fetch-Site": "same-origin"})):  # a proxy has changed Host
            answer = self.client.post(TEXT, {"prompt": "a", "max_tokens": 1}, **{"Content-Type": "text/plain", **headers})
            self.assertEqual(answer.status, status, headers)
            if status == 403:
                self.assertEqual(answer.code, "ORIGIN")
        self.assertEqual(self.client.get("/metrics", Origin=other).status, 403)

    def test_log_probabilities_are_bounded(self):
        body = {"prompt": [list(range(300, 2300))] * 4, "echo": True, "logprobs": 20, "max_tokens": 1, "n": 16,
                "temperature": 0}
        for stream in (False, True):
            answer = self.client.post(TEXT, {**body, "stream": stream})
            self.assertEqual((answer.status, answer.code), (400, "ANSWER_SIZE"))
        asked = {"prompt": body["prompt"], "prompt_logprobs": 20, "n": 16, "temperature": 0}
        self.assertEqual(self.client.post(TEXT, asked).json["error"]["param"], "prompt_logprobs", "as the client wrote it")
        one = {**body, "prompt": body["prompt"][0], "n": 1}
        whole, streamed = (self.client.post(TEXT, {**one, "stream": stream}) for stream in (False, True))
        self.assertGreater(len(streamed.body), 1 << 20, "one event is longer than what may wait for a client")
        scores = [score for event in streamed.events for choice in event["choices"] if choice["logprobs"]
                  for score in choice["logprobs"]["token_logprobs"]]
        self.assertTrue(scores == whole.json["choices"][0]["logprobs"]["token_logprobs"])

    def test_texts_are_bounded_before_they_are_tokenized(self):
        text = "a" * ((1 << 20) + 1)
        for path, body in (("/tokenize", {"prompt": text}), (CHAT, {"messages": [{"role": "user", "content": text}]}),
                           (TEXT, {"prompt": text, "echo": True, "logprobs": 1}), (TEXT, {"prompt": text})):
            answer = self.client.post(path, body)
            self.assertEqual((answer.status, answer.code), (413, "PROMPT_BYTES"), path)

    def test_a_client_that_leaves_bytes_behind_is_noticed(self):
        with contextlib.closing(self.client.connect()) as connection:
            body = json.dumps({"prompt": "Once", "max_tokens": 1500, "n": 16, "ignore_eos": True}).encode()
            connection.connect()
            connection.sock.sendall(b"POST %s HTTP/1.1\r\nHost: a\r\nContent-Length: %d\r\n\r\n%s%s"
                                    % (TEXT.encode(), len(body), body, b"G" * 20_000))
            eventually(lambda: b"quire_gateway_streams 1\n" in self.client.get("/metrics").body)
        eventually(lambda: b"quire_gateway_streams 0\n" in self.client.get("/metrics").body, seconds=2)

    def test_a_client_that_leaves_ends_its_requests(self):
        with contextlib.closing(self.client.connect()) as connection:
            connection.request("POST", TEXT, json.dumps({"prompt": ["Once", "There"], "max_tokens": 1500, "n": 2, "stream": True,
                                                         "ignore_eos": True}))
            self.assertTrue(connection.getresponse().read(100))
            eventually(lambda: b"quire_gateway_streams 2\n" in self.client.get("/metrics").body)
        eventually(lambda: b'quire_gateway_streams 0\n' in self.client.get("/metrics").body, seconds=5)
        eventually(lambda: b'quire_requests{state="running"} 0\n' in self.client.get("/metrics").body, seconds=5)


class FaultsTest(unittest.TestCase):

    BODY = {"prompt": "Once upon a time", "max_tokens": 1000, "temperature": 1, "seed": 5, "ignore_eos": True, "n": 2,
            "logprobs": 1, "stream": True}

    def test_a_stream_goes_on_when_the_engine_dies(self):
        with Served() as server:
            client = Client(server.http_address)
            expected = client.post(TEXT, self.BODY)
            for program, number in (("worker", signal.SIGKILL), ("scheduler", signal.SIGKILL)):
                with contextlib.closing(client.connect()) as connection:
                    connection.request("POST", TEXT, json.dumps(self.BODY))
                    response = connection.getresponse()
                    begin = response.read(2000)
                    server.replace(program, number)
                    answer = begin + response.read()
                self.assertTrue(self.choices(answer) == self.choices(expected.body), program)
            self.assertNotIn(b"quire_gateway_resumed_streams_total 0\n", client.get("/metrics").body)

    @staticmethod
    def choices(body):
        """Returns texts and log-probabilities by choice. Events of a resumed stream may be cut elsewhere."""
        found = {}
        *events, done = [line for line in body.decode().split("\n\n") if line]
        assert done == "data: [DONE]", done
        for event in events:
            for choice in json.loads(event.removeprefix("data: "))["choices"]:
                text, scores, end = found.get(choice["index"], ("", [], None))
                scores = scores + (choice["logprobs"] or {"token_logprobs": []})["token_logprobs"]
                found[choice["index"]] = (text + choice["text"], scores, choice["finish_reason"] or end)
        return found

    def test_a_gateway_that_dies_comes_back_and_holds_no_block(self):
        with Served() as server:
            client = Client(server.http_address)
            with contextlib.closing(client.connect()) as connection:
                connection.request("POST", TEXT, json.dumps(self.BODY))
                response = connection.getresponse()
                response.read(500)
                server.replace("gateway", signal.SIGKILL)
                with self.assertRaises((http.client.IncompleteRead, ConnectionError)):
                    response.read()
            eventually(lambda: self.try_get(client, "/readyz") == 200)
            eventually(lambda: b'quire_requests{state="running"} 0\n' in client.get("/metrics").body, seconds=5)
            server.replace("gateway", signal.SIGSTOP)
            eventually(lambda: self.try_get(client, "/readyz") == 200)
            self.assertIn("gives no sign of life", server.text())

    @staticmethod
    def try_get(client, path):
        with contextlib.suppress(OSError):
            return client.get(path).status
        return None

    def test_sigterm_lets_answers_finish(self):
        with Served() as server:
            client = Client(server.http_address)
            expected = client.post(TEXT, self.BODY).body
            answers = []

            def ask():
                answers.append(client.post(TEXT, self.BODY).body)
            threads = [threading.Thread(target=ask) for _ in range(3)]
            for thread in threads:
                thread.start()
            eventually(lambda: b'quire_requests{state="running"} 3\n' in client.get("/metrics").body)
            server.popen.send_signal(signal.SIGTERM)
            for thread in threads:
                thread.join()
            self.assertEqual(len(answers), 3)
            self.assertTrue(all(self.choices(answer) == self.choices(expected) for answer in answers))
            self.assertEqual(server.popen.wait(timeout=30), 0)


class StartTest(unittest.TestCase):

    def setUp(self):
        self.folder = self.enterContext(tempfile.TemporaryDirectory(prefix="quire-gateway-"))

    def start(self, *flags):
        process = gateway(*flags)
        self.addCleanup(process.kill)
        return process, Client(process.wait_for(r"^quire_gateway: listens api=(\S+)").group(1))

    def test_it_answers_503_before_a_scheduler_is_ready(self):
        _, client = self.start("--scheduler=127.0.0.1:1")
        answer = client.post(TEXT, {"prompt": "a"})
        self.assertEqual((answer.status, answer.code), (503, "LOADING"))
        self.assertTrue(answer.headers["retry-after"])
        self.assertEqual((client.get("/health").status, client.get("/livez").status), (503, 200))
        self.assertEqual(client.get("/metrics").status, 404, "no scheduler's pages were asked for")

    def test_pages_of_a_scheduler_that_hangs_do_not_delay_its_end(self):
        with socket.create_server(("127.0.0.1", 0)) as silent:
            process, client = self.start("--scheduler=127.0.0.1:1", "--shutdown-timeout=0",
                                         "--scheduler-http=127.0.0.1:%d" % silent.getsockname()[1])

            def ask():
                with contextlib.suppress(OSError, http.client.HTTPException):
                    client.get("/top")
            threads = [threading.Thread(target=ask) for _ in range(12)]
            for thread in threads:
                thread.start()
            silent.accept()  # the first page is being fetched, which may take 5 s; the others wait
            process.popen.send_signal(signal.SIGTERM)
            self.assertEqual(process.popen.wait(timeout=20), 0)
            for thread in threads:
                thread.join()

    def test_a_page_that_many_ask_for_takes_no_place_of_a_health_check(self):
        with socket.create_server(("127.0.0.1", 0)) as silent:
            _, client = self.start("--scheduler=127.0.0.1:1", "--scheduler-http=127.0.0.1:%d" % silent.getsockname()[1])
            with concurrent.futures.ThreadPoolExecutor(101) as threads:
                tops = [threads.submit(client.get, "/top") for _ in range(100)]
                held, _ = silent.accept()  # the first page is being fetched; 32 requests wait for the next one
                while sum(top.done() for top in tops) < 60:
                    time.sleep(0.01)
                self.assertIn(b"too many requests for this page", next(top for top in tops if top.done()).result().body)
                health = threads.submit(client.get, "/healthz")
                time.sleep(0.2)
                self.assertFalse(health.done(), "it waits for the scheduler")
                held.close()
                for _ in range(2):
                    silent.accept()[0].close()
                self.assertIn(b"the scheduler does not answer", health.result().body)

    def test_it_needs_the_schedulers_tokenizer(self):
        other = os.path.join(SOURCE, "tests/scheduler/text/testdata/gpt2.tokenizer.json")
        pathlib.Path(self.folder, "config.json").write_bytes(pathlib.Path(MODEL, "config.json").read_bytes())
        pathlib.Path(self.folder, "tokenizer.json").write_bytes(pathlib.Path(other).read_bytes())
        with Served() as server:
            process = Process([os.path.join(BIN, "quire_gateway"), self.folder, "--port=0", "--scheduler=" + server.address])
            self.addCleanup(process.kill)
            client = Client(process.wait_for(r"^quire_gateway: listens api=(\S+)").group(1))
            answer = client.post(TEXT, {"prompt": "a"})
            self.assertEqual((answer.status, answer.code), (503, "MODEL_FILES"))
            self.assertEqual(client.get("/readyz").status, 503)

    def test_a_hostile_template_ends_as_a_bad_request(self):
        template = os.path.join(self.folder, "loop.jinja")
        pathlib.Path(template).write_text("{% for a in range(100000) %}{% for b in range(100000) %}{{ a }}{% endfor %}{% endfor %}",
                                          encoding="ascii")
        with Served("--chat-template", template) as server:
            client = Client(server.http_address)
            answer = client.post(CHAT, {"messages": [{"role": "user", "content": "a"}]})
            self.assertEqual((answer.status, answer.code), (400, "TEMPLATE_LIMIT"))
            self.assertEqual(client.post(TEXT, {"prompt": "a", "max_tokens": 1}).status, 200)

    def test_a_template_gets_the_contents_that_it_reads(self):
        parts = [{"type": "text", "text": "a"}, {"type": "text", "text": f"b{EOS}"}]
        loop = "{% for m in messages %}{% for part in m.content %}[{{ part.text }}]{% endfor %}{{ eos_token }}{% endfor %}"
        plain = "{% for m in messages %}[{{ m.content }}]{{ eos_token }}{% endfor %}"
        for template, expected in ((loop, f"[a][b{EOS}]{EOS}"), (plain, f"[a\nb{EOS}]{EOS}")):
            file = pathlib.Path(self.folder, "template.jinja")
            file.write_text(template, encoding="ascii")
            with Served("--chat-template", str(file)) as server:
                client = Client(server.http_address)
                body = {"messages": [{"role": "user", "content": parts}]}
                self.assertEqual(client.post("/apply-template", body).json["prompt"], expected)
                tokens = client.post("/tokenize", body).json["tokens"]
                self.assertEqual((tokens.count(1), tokens[-1]), (1, 1), "the template's own is a token, the user's is text")

    def test_a_message_that_the_template_trims_is_continued_without_its_blanks(self):
        template = pathlib.Path(self.folder, "trim.jinja")
        template.write_text("{% for m in messages %}{{ m.content | trim }}{% endfor %}", encoding="ascii")
        with Served("--chat-template", str(template)) as server:
            body = {"messages": [{"role": "assistant", "content": "Once \x1f\u00a0\u3000"}],
                    "continue_final_message": True, "add_generation_prompt": False}
            self.assertEqual(Client(server.http_address).post("/apply-template", body).json["prompt"], "Once")

    def test_a_model_without_a_template_refuses_chats(self):
        for name in ("config.json", "tokenizer.json", "model.safetensors"):
            pathlib.Path(self.folder, name).write_bytes(pathlib.Path(MODEL, name).read_bytes())
        with Served(model=self.folder) as server:
            client = Client(server.http_address)
            answer = client.post(CHAT, {"messages": [{"role": "user", "content": "a"}]})
            self.assertEqual((answer.status, answer.code), (400, "NO_CHAT_TEMPLATE"))
            self.assertEqual(client.post(TEXT, {"prompt": "a", "max_tokens": 1}).status, 200)

    def test_special_tokens_in_messages_may_be_allowed(self):
        with Served("--allow-special-tokens-in-messages") as server:
            tokens = Client(server.http_address).post(
                "/tokenize", {"messages": [{"role": "user", "content": f"a{EOS}"}]}).json["tokens"]
            self.assertIn(1, tokens)

    def test_pages_of_allowed_origins_may_call(self):
        with Served("--allowed-origins=https://a.example") as server:
            client = Client(server.http_address)
            preflight = client.send("OPTIONS", CHAT, headers={
                "Origin": "https://a.example", "Access-Control-Request-Method": "POST",
                "Access-Control-Request-Headers": "authorization"})
            self.assertEqual(preflight.status, 204)
            self.assertEqual(preflight.headers["access-control-allow-origin"], "https://a.example")
            self.assertEqual(preflight.headers["access-control-allow-headers"], "authorization")
            refused = client.post(TEXT, b"{", Origin="https://a.example")
            self.assertEqual((refused.status, refused.headers["access-control-allow-origin"]), (400, "https://a.example"))
            self.assertIsNone(client.get("/health", Origin="https://b.example").headers["access-control-allow-origin"])
            self.assertEqual(client.post(TEXT, b"{", Origin="https://b.example").status, 403)
            self.assertEqual(client.post(TEXT, b"{", Origin="https://a.example", Host="a.example").status, 400, "a name, allowed")

    def test_mistakes_on_the_command_line_end_it_with_the_reason(self):
        bad = os.path.join(self.folder, "bad.jinja")
        pathlib.Path(bad).write_text("{% for %}", encoding="ascii")
        for code, message, *flags in (
                (2, "--scheduler: ", "--scheduler=nowhere"), (2, "--host: other machines", "--host=0.0.0.0"),
                (2, "--allowed-origins: ", "--allowed-origins=example.com"), (2, "--ssl-ca-certs: ", "--ssl-ca-certs=x"),
                (2, "--model: must be given", "--model="), (3, "bad.jinja: ", "--chat-template=" + bad),
                (3, "config.json: ", "--model=/nonexistent"),
                (3, "tokenizer", "--model=" + self.write_broken_model())):
            done = subprocess.run([os.path.join(BIN, "quire_gateway"), "--model", MODEL, "--port=0", *flags], timeout=20,
                                  capture_output=True, text=True, check=False)
            self.assertEqual(done.returncode, code, (flags, done.stderr))
            self.assertIn(message, done.stderr)

    def write_broken_model(self):
        folder = os.path.join(self.folder, "broken")
        os.mkdir(folder)
        for name in ("config.json", "tokenizer.json"):
            pathlib.Path(folder, name).write_text("{", encoding="ascii")
        return folder


class KeysTest(unittest.TestCase):

    def test_each_route_has_its_keys(self):
        folder = self.enterContext(tempfile.TemporaryDirectory(prefix="quire-gateway-"))
        clients = KeyFile(os.path.join(folder, "keys"), "alice")
        admins = KeyFile(os.path.join(folder, "admin-keys"), "olga")
        alice, olga = clients.keys["alice"], admins.keys["olga"]
        with Served("--api-keys-file=" + clients.path, "--admin-api-keys-file=" + admins.path) as server:
            def status(path, key, body=None):
                client = Client(server.http_address, key)
                return (client.get(path) if body is None else client.post(path, body)).status
            body = {"prompt": "a", "max_tokens": 1}
            self.assertEqual([status(TEXT, key, body) for key in (None, olga, alice)], [401, 401, 200])
            self.assertEqual([status("/v1/models", key) for key in (None, alice)], [401, 200])
            self.assertEqual([status("/metrics", key) for key in (None, alice, olga)], [401, 401, 200])
            self.assertEqual([status("/top.json", key) for key in (None, alice, olga)], [401, 401, 200])
            for path in ("/", "/top", "/health", "/ping", "/livez", "/readyz"):
                self.assertEqual(status(path, None), 200, path)
            page = Client(server.http_address, alice).post(TEXT, body, Origin="https://a.example")
            self.assertEqual(page.status, 200, "a page of another origin that has a key")
            self.assertEqual(Client(server.http_address).post(TEXT, body).json["error"]["type"], "authentication_error")
            self.assertNotIn(alice, server.text())
        with Served("--api-keys-file=" + clients.path) as server:
            self.assertEqual(Client(server.http_address, alice).get("/metrics").status, 403)


if __name__ == "__main__":
    unittest.main(verbosity=2)
