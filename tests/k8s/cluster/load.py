"""Load for the cluster. Compares every answer of the resuming clients with the tokens of an undisturbed run, and
measures how long each stream stood still."""
import collections
import http.client
import json
import math
import pathlib
import random
import ssl
import subprocess
import threading
import time
from dataclasses import dataclass, field

import grpc
import quire_client
from proto.v1 import generation_pb2 as api

NUM_QUESTIONS = 24
VOCABULARY = range(5, 4000)  # ids of ordinary tokens, which every model has
REDIAL_PROBABILITY = 0.3  # of a new connection after an answer, so that the load has old and new ones


@dataclass(frozen=True)
class Question:
    token_ids: tuple
    max_tokens: int
    temperature: float
    seed: int
    num_sequences: int


def make_question(number, max_tokens):
    """Returns a question: a short or long prompt, greedy or sampled, one sequence or two. The same number gives the
    same question."""
    generator = random.Random(number)
    length = generator.choice([5, 40, 200])
    num_sequences = 2 if number % 5 == 1 else 1  # greedy requests have one sequence, so two are sampled
    return Question(token_ids=tuple(generator.choice(VOCABULARY) for _ in range(length)),
                    max_tokens=max_tokens,
                    temperature=0.0 if number % 3 == 0 and num_sequences == 1 else 0.9,
                    seed=number,
                    num_sequences=num_sequences)


class CountResumed(grpc.UnaryStreamClientInterceptor):
    """Counts the calls that resume an answer."""

    def __init__(self):
        self.count = 0

    def intercept_unary_stream(self, continuation, client_call_details, request):
        self.count += request.HasField("resume")
        return continuation(client_call_details, request)


@dataclass(frozen=True)
class Server:
    """The address of a server, and the files that clients need for TLS and for an API key; None: not needed. api: the
    address of its gateways."""
    target: str
    ca_file: str | None = None
    api_key_file: str | None = None
    api: str | None = None


class PythonClient:
    """The client of deploy/clients/python, used by one thread. dial() opens new connections."""

    def __init__(self, server):
        self._server = server
        self._key = server.api_key_file and pathlib.Path(server.api_key_file).read_text("utf-8").strip()
        self._resumed = CountResumed()
        self._channel = None
        self.dial()

    @property
    def num_resumed(self):
        return self._resumed.count

    def dial(self):
        self.close()
        # Without this option all clients of this process would share one connection, and so one server.
        options = [*quire_client.CHANNEL_OPTIONS, ("grpc.use_local_subchannel_pool", 1)]
        if self._server.ca_file is None:
            self._channel = grpc.insecure_channel(self._server.target, options)
        else:
            authorities = pathlib.Path(self._server.ca_file).read_bytes()
            self._channel = grpc.secure_channel(
                self._server.target, grpc.ssl_channel_credentials(authorities), options)

    def close(self):
        if self._channel is not None:
            self._channel.close()

    def ask(self, question):
        """Yields (sequence index, new token ids) for each message."""
        request = api.GenerateRequest(
            token_ids={"ids": question.token_ids}, n=question.num_sequences,
            sampling={"temperature": question.temperature, "seed": question.seed},
            stopping={"max_tokens": question.max_tokens, "ignore_eos": True})
        channel = grpc.intercept_channel(self._channel, self._resumed)
        for message in quire_client.generate([channel], request, self._key):
            if message.HasField("chunk"):
                yield message.chunk.index, list(message.chunk.token_ids)


class HttpError(Exception):
    """A gateway refused a request, or broke its stream."""


class HttpClient:
    """A client of OpenAI's API, which resumes nothing: an answer that breaks is lost. It tries again for a while if no
    answer has begun, as clients do after 503."""

    num_resumed = 0  # the gateway resumes
    MAX_WAIT_SECONDS = 180

    def __init__(self, server):
        self._host = server.api
        self._headers = {"Content-Type": "application/json"}
        if server.api_key_file is not None:
            key = pathlib.Path(server.api_key_file).read_text("utf-8").strip()
            self._headers["Authorization"] = f"Bearer {key}"
        self._tls = server.ca_file and ssl.create_default_context(cafile=server.ca_file)
        self._connection = None

    def dial(self):
        """Drops the connection; the next question opens one."""
        self.close()

    def close(self):
        if self._connection is not None:
            self._connection.close()
        self._connection = None

    def _connect(self):
        if self._connection is None:
            self._connection = (http.client.HTTPSConnection(self._host, timeout=300, context=self._tls)
                                if self._tls else http.client.HTTPConnection(self._host, timeout=300))
        return self._connection

    def _post(self, body):
        """Returns a response of status 200. Tries again for MAX_WAIT_SECONDS while there is no gateway or no server."""
        deadline = time.monotonic() + self.MAX_WAIT_SECONDS
        while True:
            try:
                self._connect().request("POST", "/v1/completions", json.dumps(body), self._headers)
                response = self._connection.getresponse()
                if response.status == 200:
                    return response
                failure = HttpError(f"status {response.status}: {response.read().decode()}")
                may_retry = response.status == 503
            except (OSError, http.client.HTTPException) as error:
                failure, may_retry = error, True
            self.close()
            if not may_retry or time.monotonic() > deadline:
                raise failure
            time.sleep(0.5)

    def ask(self, question):
        response = self._post({
            "prompt": question.token_ids, "n": question.num_sequences, "max_tokens": question.max_tokens,
            "temperature": question.temperature, "seed": question.seed, "ignore_eos": True, "stream": True,
            "return_token_ids": True})
        for line in response:
            if not line.startswith(b"data: "):
                continue
            if line.strip() == b"data: [DONE]":
                response.read()
                return
            event = json.loads(line[6:])
            if "error" in event:
                self.close()
                raise HttpError(event["error"]["message"])
            for choice in event["choices"]:
                if choice.get("token_ids"):
                    yield choice["index"], choice["token_ids"]
        self.close()
        raise HttpError("the stream ended without [DONE]")


class CommandError(Exception):
    """`quire generate` failed."""


class CommandClient:
    """The C++ client, in the form of `quire generate`. Each answer has its own process."""

    num_resumed = 0  # `quire generate` does not tell

    def __init__(self, server, program):
        self._command = [program, "generate", "--json", "--ignore-eos", f"--server={server.target}"]
        if server.ca_file is not None:
            self._command.append(f"--ssl-ca-certs={server.ca_file}")
        if server.api_key_file is not None:
            self._command.append(f"--api-key-file={server.api_key_file}")

    def dial(self):
        """Does nothing, because each answer has its own connection."""

    def close(self):
        pass

    def ask(self, question):
        process = subprocess.Popen(
            [*self._command, f"--prompt-token-ids={','.join(map(str, question.token_ids))}",
             f"--max-tokens={question.max_tokens}", f"--temperature={question.temperature}",
             f"--seed={question.seed}", f"--n={question.num_sequences}"],
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        with process:
            for line in process.stdout:
                message = json.loads(line)
                if message["token_id"] is not None:
                    yield message["index"], [message["token_id"]]
            reason = process.stderr.read()
        if process.returncode != 0:
            raise CommandError(f"quire generate: exit code {process.returncode}: {reason.strip()}")


@dataclass
class Gaps:
    """The gaps of one stream: from the request to the first tokens, and between messages with tokens."""
    last: float  # time.monotonic() of the latest tokens, or of the request
    all: list = field(default_factory=list)  # (seconds, time of its end) of each gap

    def token(self, now):
        self.all.append((now - self.last, now))
        self.last = now

    def longest_since(self, begin):
        """Returns (seconds, end) of the longest gap that ended after `begin`; (0, begin) if none did."""
        return max([each for each in self.all if each[1] >= begin], default=(0.0, begin))


@dataclass
class Tally:
    """The outcomes of the streams that have ended."""
    num_right: int = 0
    num_different: int = 0
    lost: list = field(default_factory=list)  # the reason of each failed answer
    num_resumed: int = 0
    longest_gap: tuple = (0.0, 0.0)  # seconds, time of its end

    def add(self, other):
        self.num_right += other.num_right
        self.num_different += other.num_different
        self.lost += other.lost
        self.num_resumed += other.num_resumed
        self.longest_gap = max(self.longest_gap, other.longest_gap)

    @property
    def is_clean(self):
        return not self.lost and self.num_different == 0


def answer_of(client, question, on_tokens=lambda: None):
    """Asks a question. Returns the token ids by sequence index. Calls on_tokens() for each message with tokens."""
    tokens = collections.defaultdict(list)
    for index, new in client.ask(question):
        tokens[index] += new
        on_tokens()
    return dict(tokens)


class Load:
    """Clients that ask questions one after another, each client in its own thread.

    clients: PythonClient, CommandClient or HttpClient objects. expected: the undisturbed answers, in the order of the questions.
    """

    def __init__(self, clients, questions, expected):
        self._clients = clients
        self._questions = questions
        self._expected = expected
        self._lock = threading.Lock()
        self._ended = []  # (Gaps, outcome) of each stream; outcome: "right", "different" or the reason of a failure
        self._last_token = [-math.inf] * len(clients)  # time of each client's latest tokens
        self._is_over = threading.Event()
        self._threads = [threading.Thread(target=self._run, args=(i,), daemon=True)
                         for i in range(len(clients))]

    def start(self):
        for thread in self._threads:
            thread.start()

    def _run(self, number):
        generator = random.Random(1000 + number)
        client = self._clients[number]
        while not self._is_over.is_set():
            outcome = self._ask_once(number, client, generator.randrange(len(self._questions)))
            if outcome not in ("right", "different"):
                self._is_over.wait(0.2)
            if generator.random() < REDIAL_PROBABILITY:
                client.dial()
        client.close()

    def _ask_once(self, number, client, question):
        gaps = Gaps(time.monotonic())

        def note_tokens():
            gaps.token(time.monotonic())
            self._last_token[number] = gaps.last

        try:
            tokens = answer_of(client, self._questions[question], note_tokens)
            outcome = "right" if tokens == self._expected[question] else "different"
        except Exception as error:  # noqa: BLE001  (any failure is a lost answer)
            code = getattr(error, "code", None)
            outcome = f"{type(error).__name__} {code() if callable(code) else ''} {error}"
        with self._lock:
            self._ended.append((gaps, outcome))
        return outcome

    def wait_until_flowing(self, seconds=60):
        """Waits until every client has had tokens. Raises TimeoutError after `seconds`."""
        deadline = time.monotonic() + seconds
        while not self.has_flowed_since(0.0):
            if time.monotonic() > deadline:
                raise TimeoutError(f"not every client has received tokens after {seconds} s: {self.tally(0.0)}")
            time.sleep(0.1)

    def has_flowed_since(self, begin):
        """Returns whether every client has had tokens after `begin`."""
        return all(self._last_token[i] >= begin for i in range(len(self._clients)))

    def stop(self, seconds=400):
        """Asks no more questions, and waits for the running answers. An answer that runs on after `seconds` is lost."""
        self._is_over.set()
        deadline = time.monotonic() + seconds
        for thread in self._threads:
            thread.join(max(0.0, deadline - time.monotonic()))
        hanging = sum(thread.is_alive() for thread in self._threads)
        with self._lock:
            self._ended += [(Gaps(0.0), "never ended")] * hanging

    def tally(self, since):
        """Returns the Tally of all streams that have ended. Gaps count if they ended after `since`."""
        with self._lock:
            tally = Tally()
            for gaps, outcome in self._ended:
                tally.num_right += outcome == "right"
                tally.num_different += outcome == "different"
                if outcome not in ("right", "different"):
                    tally.lost.append(outcome)
                tally.longest_gap = max(tally.longest_gap, gaps.longest_since(since))
            tally.num_resumed = sum(client.num_resumed for client in self._clients)
            return tally
