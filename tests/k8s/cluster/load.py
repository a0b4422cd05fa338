"""Load whose every answer is compared: streams of the resuming clients, the tokens of an undisturbed run,
and how long each stream stood still."""
import collections
import json
import math
import pathlib
import random
import subprocess
import threading
import time
from dataclasses import dataclass, field

import grpc
import quire_client
from proto.v1 import generation_pb2 as api

NUM_QUESTIONS = 24
VOCABULARY = range(5, 4000)  # token ids that every model has
REDIAL_PROBABILITY = 0.3  # after an answer: some connections are old, some are new


@dataclass(frozen=True)
class Question:
    token_ids: tuple
    max_tokens: int
    temperature: float
    seed: int
    num_sequences: int


def make_question(number, max_tokens):
    """Short and long prompts, greedy and sampled, one sequence or two. The same number is the same question."""
    generator = random.Random(number)
    length = generator.choice([5, 40, 200])
    num_sequences = 2 if number % 5 == 1 else 1  # several have to be sampled
    return Question(token_ids=tuple(generator.choice(VOCABULARY) for _ in range(length)),
                    max_tokens=max_tokens,
                    temperature=0.0 if number % 3 == 0 and num_sequences == 1 else 0.9,
                    seed=number,
                    num_sequences=num_sequences)


class CountResumed(grpc.UnaryStreamClientInterceptor):
    """How many calls went on with an answer that was begun before."""

    def __init__(self):
        self.count = 0

    def intercept_unary_stream(self, continuation, client_call_details, request):
        self.count += request.HasField("resume")
        return continuation(client_call_details, request)


@dataclass(frozen=True)
class Server:
    """Where clients find it, and what they have to bring."""
    target: str
    ca_file: str | None = None
    api_key_file: str | None = None


class PythonClient:
    """deploy/clients/python. One thread uses it; dial() gives it new connections."""

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
        # Else all clients of this process would share one connection, and one server.
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
        """Yields (sequence, tokens) as they come."""
        request = api.GenerateRequest(
            token_ids={"ids": question.token_ids}, n=question.num_sequences,
            sampling={"temperature": question.temperature, "seed": question.seed},
            stopping={"max_tokens": question.max_tokens, "ignore_eos": True})
        channel = grpc.intercept_channel(self._channel, self._resumed)
        for message in quire_client.generate([channel], request, self._key):
            if message.HasField("chunk"):
                yield message.chunk.index, list(message.chunk.token_ids)


class CommandError(Exception):
    """`quire generate` failed."""


class CommandClient:
    """The C++ client, as `quire generate` uses it: a process an answer."""

    num_resumed = 0  # it does not tell

    def __init__(self, server, program):
        self._command = [program, "generate", "--json", "--ignore-eos", f"--server={server.target}"]
        if server.ca_file is not None:
            self._command.append(f"--ssl-ca-certs={server.ca_file}")
        if server.api_key_file is not None:
            self._command.append(f"--api-key-file={server.api_key_file}")

    def dial(self):
        """Each answer has a connection of its own."""

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
    """How long a stream stood still: from its request to its first tokens, and between tokens."""
    last: float
    all: list = field(default_factory=list)  # (seconds, when it ended)

    def token(self, now):
        self.all.append((now - self.last, now))
        self.last = now

    def longest_since(self, begin):
        """(seconds, end) of the longest that ended after `begin`; (0, begin) without any."""
        return max([each for each in self.all if each[1] >= begin], default=(0.0, begin))


@dataclass
class Tally:
    """What became of the streams that ended."""
    num_right: int = 0
    num_different: int = 0
    lost: list = field(default_factory=list)  # a reason each
    num_resumed: int = 0
    longest_gap: tuple = (0.0, 0.0)  # seconds, when it ended

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
    """The tokens of each sequence."""
    tokens = collections.defaultdict(list)
    for index, new in client.ask(question):
        tokens[index] += new
        on_tokens()
    return dict(tokens)


class Load:
    """Clients that ask again and again, a thread each.

    clients: what has ask(), dial(), close() and num_resumed. expected: the answers to the questions.
    """

    def __init__(self, clients, questions, expected):
        self._clients = clients
        self._questions = questions
        self._expected = expected
        self._lock = threading.Lock()
        self._ended = []  # (Gaps, "right", "different" or why it was lost)
        self._last_token = [-math.inf] * len(clients)  # when each had its latest
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
        """Every client has had tokens."""
        deadline = time.monotonic() + seconds
        while not self.has_flowed_since(0.0):
            if time.monotonic() > deadline:
                raise TimeoutError(f"tokens do not flow after {seconds} s: {self.tally(0.0)}")
            time.sleep(0.1)

    def has_flowed_since(self, begin):
        """Whether every client has had tokens after `begin`."""
        return all(self._last_token[i] >= begin for i in range(len(self._clients)))

    def stop(self, seconds=400):
        """Asks nothing more and waits for the answers that are under way. One that never ends is lost."""
        self._is_over.set()
        deadline = time.monotonic() + seconds
        for thread in self._threads:
            thread.join(max(0.0, deadline - time.monotonic()))
        hanging = sum(thread.is_alive() for thread in self._threads)
        with self._lock:
            self._ended += [(Gaps(0.0), "never ended")] * hanging

    def tally(self, since):
        """Of all that ended. Gaps count if they ended after `since`."""
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
