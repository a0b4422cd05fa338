"""Streams one answer from Quire, whatever happens to the server meanwhile.

When a stream breaks, generate() asks again, at the same server or at another one, for what it does
not have yet. Its caller sees one stream, with the tokens, text and log-probabilities of an
undisturbed run. Needs grpcio and the stubs made from proto/v1 and proto/google/rpc, and nothing else.

Thread safety: functions; call them from any thread.
"""
import pathlib
import random
import time

import grpc
from google.protobuf import message as protobuf_message
from proto.google.rpc import error_details_pb2, status_pb2
from proto.v1 import generation_pb2 as api
from proto.v1 import generation_pb2_grpc as api_grpc

MAX_RETRIES = 12  # in a row that no server answered: 20 to 40 s with these waits
FIRST_WAIT_S = 0.1
MAX_WAIT_S = 5.0
LONGEST_RETRY_DELAY_S = 24 * 3600.0
# Waits at the word of full servers, in all, since the last message.
MAX_WAIT_FOR_A_PLACE_S = 1800.0
# The server ends what is late, and says why; this is for one that no longer can.
DEADLINE_GRACE_S = 1.0
UNANSWERED_WITHOUT_DETAILS = (grpc.StatusCode.CANCELLED, grpc.StatusCode.INTERNAL,
                              grpc.StatusCode.UNKNOWN)

CHANNEL_OPTIONS = [
    # Connect again soon. The "minimum" is how long an attempt may take: a busy server needs time.
    ("grpc.initial_reconnect_backoff_ms", 200),
    ("grpc.min_reconnect_backoff_ms", 5000),
    ("grpc.max_reconnect_backoff_ms", 2000),
    # Notice a server that is gone without a word, though the stream only receives.
    ("grpc.keepalive_time_ms", 15000),
    ("grpc.keepalive_timeout_ms", 5000),
    ("grpc.http2.max_pings_without_data", 0),
    # Attempts are ours: the library's own have no pause where a server ends each connection.
    ("grpc.enable_retries", 0),
]


def dial(address, ssl_ca_certs=None, ssl_certfile=None, ssl_keyfile=None):
    """A channel that generate() takes. With ssl_ca_certs, the file of the authorities that the server's certificate is
    of in PEM, it speaks TLS; the other two are our own certificate, where the server asks for one."""
    if ssl_ca_certs is None:
        return grpc.insecure_channel(address, options=CHANNEL_OPTIONS)
    credentials = grpc.ssl_channel_credentials(*(path and pathlib.Path(path).read_bytes()
                                                 for path in (ssl_ca_certs, ssl_keyfile, ssl_certfile)))
    return grpc.secure_channel(address, credentials, options=CHANNEL_OPTIONS)


class ProtocolError(Exception):
    """A server went on with something else than was begun."""


def generate(channels, request, api_key=None):
    """Yields the messages of one answer, `started` once and first, positions without gap or repeat.

    channels: to replicas, one at least; each failure moves on to the next. Make them with
    dial(). request: an api.GenerateRequest; timeout_ms counts from the first message asked
    for. Closing the generator cancels the request. api_key: where the servers ask for one. Send it over
    TLS alone, unless the server is on this machine.

    Raises grpc.RpcError: the server's refusal at once, or the last failure after MAX_RETRIES;
    TimeoutError; ProtocolError. What a full server refuses for the moment is no refusal once the
    request is resumed: it had been accepted. It is asked again for MAX_WAIT_FOR_A_PLACE_S.
    """
    deadline = time.monotonic() + request.timeout_ms / 1000 if request.HasField("timeout_ms") else None
    progress = _Progress(request.n if request.HasField("n") else 1)
    attempt = api.GenerateRequest()
    attempt.CopyFrom(request)
    metadata = [("authorization", f"Bearer {api_key}")] if api_key else None
    server = 0
    patience = _Patience()
    while True:
        call = api_grpc.GenerationServiceStub(channels[server]).Generate(
            attempt, timeout=_seconds_left(deadline, DEADLINE_GRACE_S), metadata=metadata)
        try:
            for message in call:
                progress.take(message)  # a second `started` is nothing new
                if message.HasField("started") or message.HasField("chunk") or message.HasField("finished"):
                    patience = _Patience()
                yield message
            if not progress.is_complete():
                raise ProtocolError("the stream ended before the answer did")
            return
        except grpc.RpcError as error:
            if progress.is_complete():
                return  # it broke behind its last message
            if not _is_worth_a_retry(error, attempt.HasField("resume")):
                raise
            if patience.is_over(error):
                patience.add_note(error)
                raise
            wait = patience.wait_after(error)
        finally:
            call.cancel()
        server = (server + 1) % len(channels)
        _sleep(wait if deadline is None else max(0, min(wait, _seconds_left(deadline))), channels[server])
        if deadline is not None:
            attempt.timeout_ms = int(1000 * _seconds_left(deadline))
            if attempt.timeout_ms <= 0:
                raise TimeoutError("the deadline passed while no server was there")
        progress.fill(attempt)


def _seconds_left(deadline, grace=0.0):
    return None if deadline is None else deadline - time.monotonic() + grace


def _sleep(seconds, channel):
    """gRPC connects again in the threads that wait in it, so this one does, in a probe of any outcome. Beside one
    that sleeps, nobody would for up to 5 s, as long as an attempt may take."""
    end = time.monotonic() + seconds
    try:
        channel.unary_unary("/grpc.health.v1.Health/Check")(b"", timeout=seconds, wait_for_ready=True)
    except grpc.RpcError:
        pass
    time.sleep(max(0, end - time.monotonic()))


def _is_worth_a_retry(error, is_resuming):
    """What no server answered: these codes without details, which a server of ours always gives.

    A torn connection ends calls INTERNAL or UNKNOWN, gRPC in a server that closes ends them CANCELLED:
    nobody here has cancelled. A full server refuses a new request. One that goes on was accepted, and
    waits for its place.
    """
    if error.code() in UNANSWERED_WITHOUT_DETAILS:
        return _details(error) is None
    if _is_full(error):
        return is_resuming and _retry_delay(error) is not None
    return error.code() == grpc.StatusCode.UNAVAILABLE


def _is_full(error):
    return error.code() == grpc.StatusCode.RESOURCE_EXHAUSTED


class _Patience:
    """How often and how long was waited since the last message."""

    def __init__(self):
        self._num_waits = 0
        self._num_unanswered = 0  # in a row
        self._waited_for_a_place_s = 0.0

    def is_over(self, error):
        if _is_full(error):
            return self._waited_for_a_place_s >= MAX_WAIT_FOR_A_PLACE_S
        return self._num_unanswered >= MAX_RETRIES

    def add_note(self, error):
        """Why it is over, for a traceback, from Python 3.11 on."""
        if hasattr(error, "add_note"):
            error.add_note(f"given up after waiting for a place for {self._waited_for_a_place_s:.0f} s" if _is_full(error)
                           else f"given up after {self._num_unanswered} retries in a row")

    def wait_after(self, error):
        """Seconds."""
        # Where it has reached MAX_WAIT_S the power grows no more.
        wait = min(MAX_WAIT_S, FIRST_WAIT_S * 2**min(self._num_waits, 20)) * random.uniform(0.5, 1)
        self._num_waits += 1
        if _is_full(error):
            wait = min(max(wait, _retry_delay(error)), MAX_WAIT_FOR_A_PLACE_S - self._waited_for_a_place_s)
            self._num_unanswered = 0  # a full server is there
            self._waited_for_a_place_s += wait
        else:
            self._num_unanswered += 1
        return wait


def _details(error):
    return dict(error.trailing_metadata() or ()).get("grpc-status-details-bin")


def _retry_delay(error):
    """Seconds, of google.rpc.RetryInfo; None without one."""
    info = error_details_pb2.RetryInfo()
    try:
        for detail in status_pb2.Status.FromString(_details(error) or b"").details:
            if detail.Unpack(info):
                delay = info.retry_delay
                return min(max(0, delay.seconds + delay.nanos / 1e9), LONGEST_RETRY_DELAY_S)
    except protobuf_message.DecodeError:
        pass
    return None


class _Progress:
    """What has come of an answer so far, over all its streams."""

    def __init__(self, num_sequences):
        self._num_sequences = num_sequences
        self._request_id = ""
        self._resume = api.Resume()

    def take(self, message):
        """Takes a message in, which keeps what the caller has not seen before."""
        if message.HasField("started"):
            self._take_started(message)
        if message.HasField("chunk"):
            chunk = message.chunk
            sequence = self._sequence(chunk.index)
            if chunk.first_position != len(sequence.token_ids):
                raise ProtocolError("tokens are missing, or came twice")
            sequence.token_ids.extend(chunk.token_ids)
        if message.HasField("finished"):
            sequence = self._sequence(message.finished.index)
            if message.finished.num_output_tokens != len(sequence.token_ids):
                raise ProtocolError("a sequence ended with tokens missing")
            sequence.has_ended = True

    def fill(self, request):
        """Makes it the request to go on with."""
        request.resume.CopyFrom(self._resume)
        if self._request_id:
            request.request_id = self._request_id

    def is_complete(self):
        sequences = self._resume.sequences
        return len(sequences) > 0 and all(sequence.has_ended for sequence in sequences)

    def _take_started(self, message):
        started = message.started
        if not self._resume.sequences:
            self._request_id = started.request_id
            self._resume.seed = started.seed
            self._resume.determinism_fingerprint = started.determinism_fingerprint
            if started.max_tokens > 0:  # a server of before does not tell
                self._resume.max_tokens = started.max_tokens
            for _ in range(self._num_sequences):
                self._resume.sequences.add()
            return
        if (started.seed, started.determinism_fingerprint) != (
                self._resume.seed, self._resume.determinism_fingerprint):
            raise ProtocolError("a server went on with another seed or numerics")
        message.ClearField("started")

    def _sequence(self, index):
        sequences = self._resume.sequences
        if not 0 <= index < len(sequences) or sequences[index].has_ended:
            raise ProtocolError("something came of a sequence that is none, or had ended")
        return sequences[index]
