"""A server with known answers: the page, GET /v1/models and the two POST routes of OpenAI's API.

The first word of the last message, or of the prompt, chooses the answer (ANSWERS). A token is a word
with the blank before it. Token i has the log-probability LOGPROBS[i % 4], and three alternatives.

Thread safety: `requests` and `num_aborted` grow while requests are served.
"""
import base64
import hashlib
import http.server
import json
import math
import pathlib
import re
import threading
import time

PAGE = pathlib.Path(__file__).resolve().parents[3] / "deploy/gateway/page/chat.html"
MODEL = "fake-model-1b"
LOGPROBS = [math.log(0.97), math.log(0.7), math.log(0.4), math.log(0.05)]
MARKUP = '<img src=x onerror="window.pwned=1"><script>window.pwned=2</script><b>bold</b> &amp; **text**'
CODE = ("A loop in Python:\n\n```python\nfor i in range(3):\n    print(\"<b>\", i)\n```\n\nIt prints three lines. "
        "A fence in a list:\n\n1. first\n   ```\n   indented\n   ```\n2. second `x` and ``\n```not a fence` at all\n")
PROSE = ("A paged KV cache stores keys and values in blocks of fixed size. A sequence owns a table of blocks, "
         "so memory is taken only when a token needs it.\n\nTwo sequences with the same beginning share blocks. "
         "The last block is copied when one of them writes to it.")


def source_of(page, tag):
    text, = re.findall(f"<{tag}>(.*?)</{tag}>", page, re.S)
    return "'sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode() + "'"


def policy_of(page):
    return (f"default-src 'none'; connect-src 'self'; style-src {source_of(page, 'style')}; "
            f"script-src {source_of(page, 'script')}; img-src data:; base-uri 'none'; form-action 'none'; "
            "frame-ancestors 'none'")


def answer_to(prompt):
    """The tokens of the answer and the seconds before each."""
    word, _, rest = prompt.strip().partition(" ")
    number = int(rest) if rest.isdecimal() else 0
    if word == "count":
        return [f" {i}" + ("\n" if i % 20 == 0 else "") for i in range(1, number + 1)], 0
    if word == "line":  # without a line break
        return [f" {i}" for i in range(1, number + 1)], 0
    if word == "slow":
        return [f" {i}" for i in range(1, number + 1)], 0.03
    texts = {"markup": MARKUP, "code": CODE, "explain": PROSE, "cut": "These words arrive before the end", "early": "A proxy ends this",
             "fail": "These words arrive before the error", "bytes": "Grüße 😀 العربية 漢字", "empty": ""}
    text = texts.get(word, f"You said: {prompt}")
    return re.findall(r" ?[^\s]+|\s", text), 0.01 if word == "explain" else 0.002


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *_):
        pass

    def answer(self, status, content_type, body, **headers):
        self.send_response(status)
        self.send_header("Content-Type", content_type)
        self.send_header("Content-Length", str(len(body)))
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()
        self.wfile.write(body)

    def refuse(self, status, message, error_type, code=None, **headers):
        body = {"error": {"message": message, "type": error_type, "param": None, "code": code}}
        self.answer(status, "application/json", json.dumps(body).encode(), **headers)

    def has_key(self):
        keys = self.server.gateway.keys
        if not keys or self.headers.get("Authorization", "").removeprefix("Bearer ") in keys:
            return True
        self.refuse(401, "the API key is missing or not known", "authentication_error")
        return False

    def do_GET(self):
        if self.server.gateway.is_closed:
            self.close_connection = True
            return
        if self.path == "/":
            page = PAGE.read_text(encoding="utf-8")
            self.answer(200, "text/html; charset=utf-8", page.encode(), Content_Security_Policy=policy_of(page))
        elif self.path == "/top":
            self.answer(200, "text/plain", b"top")
        elif self.path == "/v1/models":
            if self.has_key():
                model = {"id": MODEL, "object": "model", "created": 1, "owned_by": "quire", "max_model_len": 8192}
                self.answer(200, "application/json", json.dumps({"object": "list", "data": [model]}).encode())
        else:
            self.server.gateway.unknown_paths.append(self.path)
            self.refuse(404, "not found", "invalid_request_error")

    def do_POST(self):
        if self.server.gateway.is_closed:
            self.close_connection = True
            return
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if not self.has_key():
            return
        self.server.gateway.requests.append((self.path, body))
        is_chat = self.path == "/v1/chat/completions"
        prompt = body["messages"][-1]["content"] if is_chat else body["prompt"]
        if prompt.startswith("busy"):
            self.refuse(429, "too many requests are waiting", "rate_limit_error", "QUEUE_FULL", Retry_After="5")
        elif prompt.startswith("refuse"):
            self.refuse(400, "temperature: must be in [0, 100]", "invalid_request_error", "SAMPLING_RANGE")
        else:
            try:
                self.stream(is_chat, body, prompt)
            except (BrokenPipeError, ConnectionResetError):
                self.server.gateway.num_aborted += 1
                self.close_connection = True

    def stream(self, is_chat, body, prompt):
        tokens, delay_s = answer_to(prompt)
        limit = body.get("max_tokens") or (len(tokens) if is_chat else max(16, len(tokens)))
        finish_reason = "length" if limit < len(tokens) else "stop"
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        if is_chat:
            self.event(self.choice(is_chat, body, "", [], None), 0)
        held = []
        for i, token in enumerate(tokens[:limit]):
            time.sleep(delay_s)
            held.append((i, token))
            # A character of several bytes is held until it is complete.
            if token.startswith("\ufffd"):
                continue
            self.event(self.choice(is_chat, body, token, held, None), i + 1, split=prompt.startswith("bytes"))
            held = []
        if prompt.startswith("cut"):
            time.sleep(1)  # a browser drops what it has not delivered when the connection breaks
            self.close_connection = True
            return
        if prompt.startswith("early"):
            self.chunk(b"")
            return
        if prompt.startswith("fail"):
            self.event({"error": {"message": "no server can continue", "type": "server_error", "code": "LOST"}}, None)
        else:
            self.event(self.choice(is_chat, body, "", [], finish_reason), len(tokens[:limit]))
        self.chunk(b"data: [DONE]\n\n")
        self.chunk(b"")

    def choice(self, is_chat, body, text, tokens, finish_reason):
        choice = {"index": 0, "logprobs": None, "finish_reason": finish_reason}
        choice.update({"delta": {"content": text}} if is_chat else {"text": text})
        if body.get("logprobs") and tokens:
            choice["logprobs"] = chat_logprobs(tokens) if is_chat else completion_logprobs(tokens)
        return {"id": "fake-1", "model": MODEL, "choices": [choice]}

    def event(self, event, num_tokens, split=False):
        if num_tokens is not None:
            event["usage"] = {"prompt_tokens": 7, "completion_tokens": num_tokens, "total_tokens": 7 + num_tokens}
        data = f"data: {json.dumps(event, ensure_ascii=False)}\n\n".encode()
        # A split event arrives in two pieces, with a character of several bytes in both.
        middle = next((i + 1 for i, byte in enumerate(data) if byte >= 0xC0), 0) if split else 0
        if middle:
            self.chunk(data[:middle])
            time.sleep(0.1)  # so that the browser reads the pieces one by one
        self.chunk(data[middle:])

    def chunk(self, data):
        self.wfile.write(b"%x\r\n%s\r\n" % (len(data), data))


def top_of(i, token):
    """Alternatives, likeliest first. The last log-probability of LOGPROBS is not among the likeliest."""
    own = LOGPROBS[i % 4]
    others = [(" other", math.log(0.02)), ("\n", math.log(0.01))]
    return others + [(" rare", math.log(0.005))] if i % 4 == 3 else [(token, own)] + others


def chat_logprobs(tokens):
    return {"content": [
        {"token": token, "logprob": LOGPROBS[i % 4], "bytes": list(token.encode()),
         "top_logprobs": [{"token": other, "logprob": value, "bytes": []} for other, value in top_of(i, token)]}
        for i, token in tokens]}


def completion_logprobs(tokens):
    return {"tokens": [token for _, token in tokens], "token_logprobs": [LOGPROBS[i % 4] for i, _ in tokens],
            "top_logprobs": [dict(top_of(i, token)) for i, token in tokens], "text_offset": [0] * len(tokens)}


class FakeGateway:
    """with FakeGateway() as gateway: gateway.url"""

    def __init__(self, keys=()):
        self.keys = set(keys)
        self.requests = []
        self.unknown_paths = []
        self.num_aborted = 0
        self.is_closed = False

    def __enter__(self):
        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self._server.gateway = self
        self.url = f"http://127.0.0.1:{self._server.server_port}/"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *_):
        self.is_closed = True  # also for connections that are open
        self._server.shutdown()
        self._server.server_close()


if __name__ == "__main__":
    with FakeGateway() as fake:
        print(fake.url, flush=True)
        threading.Event().wait()
