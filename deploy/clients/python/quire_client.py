"""Streams one answer from Quire, whatever happens to the server meanwhile.

When a stream breaks, generate() asks the same server or another one for the rest. The caller sees one
stream, with the tokens, text and log-probabilities of an undisturbed run. `api` has the messages of
proto/v1/generation.proto.

Thread safety: all functions may be called from any thread.
"""
import pathlib
import random
import time

import grpc
from google.protobuf import message as protobuf_message

try:  # quire_proto comes first: if it is missing, google.rpc must not be loaded beside proto.google.rpc
    from quire_proto.v1 import generation_pb2 as api
    from quire_proto.v1 import generation_pb2_grpc as api_grpc
    from google.rpc import error_details_pb2, status_pb2
except ModuleNotFoundError:  # protoc made the stubs in a folder on PYTHONPATH
    from proto.google.rpc import error_details_pb2, status_pb2
    from proto.v1 import generation_pb2 as api
    from proto.v1 import generation_pb2_grpc as api_grpc

# Upper bound on the time that a request stays unanswered since its last message. 180 s cover the replacement
# of a dead node: Kubernetes calls the node unreachable after 40 to 50 s, evicts its pods 15 s later, a
# scheduler starts within seconds, and a rank loads its model in the rest of the time.
MAX_UNANSWERED_S = 180.0
# At most this part of an attempt's duration counts as unanswered. Keepalive ends an attempt at a
# dead server sooner, so a longer attempt has waited in a live server's queue.
LONGEST_UNANSWERED_ATTEMPT_S = 10.0
# The waits between attempts double from the first to the longest, and each wait is shortened by up to half at
# random. So each client makes its next attempt within MAX_WAIT_S of a server's restart, and the attempts of
# all clients are spread over half of MAX_WAIT_S.
FIRST_WAIT_S = 0.1
MAX_WAIT_S = 1.5
LONGEST_RETRY_DELAY_S = 24 * 3600.0
# Bounds the sum of the waits after refusals by full servers (RESOURCE_EXHAUSTED). The sum starts
# again from 0 with each message.
MAX_WAIT_FOR_A_PLACE_S = 1800.0
# Added to a request's timeout to make the deadline of the gRPC call. A live server itself ends late requests
# and says why; the deadline is for a server that can no longer do so.
DEADLINE_GRACE_S = 1.0
UNANSWERED_WITHOUT_DETAILS = (grpc.StatusCode.CANCELLED, grpc.StatusCode.INTERNAL,
                              grpc.StatusCode.UNKNOWN)

CHANNEL_OPTIONS = [
    # Reconnect soon. The minimum backoff is not a pause but the time limit of one attempt.
    ("grpc.initial_reconnect_backoff_ms", 200),
    ("grpc.min_reconnect_backoff_ms", 2000),
    ("grpc.max_reconnect_backoff_ms", 1000),
    # Keepalive pings show within 7 s that a server died without closing its connections. From gRPC 1.60 on the
    # ping timeout must be set too, because its default is 60 s. 0 removes the limit on pings without data: a
    # client that only reads a stream sends no data.
    ("grpc.keepalive_time_ms", 4000),
    ("grpc.keepalive_timeout_ms", 3000),
    ("grpc.http2.ping_timeout_ms", 3000),
    ("grpc.http2.max_pings_without_data", 0),
    # gRPC holds a connection to each address of a host name. So no request waits for an address that does not
    # answer, or that closes connections, as a standby scheduler does. gRPC dials such an address once a
    # second, and looks up the name every 5 s.
    ("grpc.lb_policy_name", "round_robin"),
    ("grpc.dns_min_time_between_resolutions_ms", 5000),
    # Only generate() retries: gRPC's own retries have no pause if a server ends each connection.
    ("grpc.enable_retries", 0),
]


def dial(address, ssl_ca_certs=None, ssl_certfile=None, ssl_keyfile=None):
    """Returns a channel for generate(). ssl_ca_certs names the file of the authorities that may sign the server's
    certificate, and turns TLS on. ssl_certfile and ssl_keyfile are the client's own certificate and key, if the server
    asks for a certificate. All files are PEM."""
    if ssl_ca_certs is None:
        return grpc.insecure_channel(address, options=CHANNEL_OPTIONS)
    credentials = grpc.ssl_channel_credentials(*(path and pathlib.Path(path).read_bytes()
                                                 for path in (ssl_ca_certs, ssl_keyfile, ssl_certfile)))
    return grpc.secure_channel(address, credentials, options=CHANNEL_OPTIONS)


class ProtocolError(Exception):
    """A server did not continue the answer that was begun."""


def generate(channels, request, api_key=None, *, max_unanswered_s=MAX_UNANSWERED_S, max_unanswered_at_first_s=None):
    """Yields the messages of one answer: `started` comes first and once, and positions have no gap or repeat.

    Closing the generator cancels the request.

    channels: one for each replica, at least one, made with dial(). After each failure the client goes on with the
        next channel.
    request: an api.GenerateRequest. Its timeout_ms counts from the time when the first message is asked for.
    api_key: needed if the servers ask for one. Send a key only over TLS, unless the server is on this machine.
    max_unanswered_s: upper bound on the time that a request stays unanswered since its last message.
    max_unanswered_at_first_s: the same bound until a server answers for the first time, by a message or by a refusal
        such as LOADING. Set a shorter time if a person waits, because an address where no server has answered is
        probably wrong.

    Raises grpc.RpcError, TimeoutError or ProtocolError. An RpcError is the server's refusal, raised at once, or the
    last failure, raised after max_unanswered_s. From Python 3.11 on a note says that the client gave up. If a full
    server refuses a resumed request, which was accepted before, the client retries for MAX_WAIT_FOR_A_PLACE_S.
    """
    deadline = time.monotonic() + request.timeout_ms / 1000 if request.HasField("timeout_ms") else None
    progress = _Progress(request.n if request.HasField("n") else 1)
    attempt = api.GenerateRequest()
    attempt.CopyFrom(request)
    metadata = [("authorization", f"Bearer {api_key}")] if api_key else None
    server = 0
    patience = _Patience(max_unanswered_s, max_unanswered_at_first_s)
    while True:
        begin = time.monotonic()
        call = api_grpc.GenerationServiceStub(channels[server]).Generate(
            attempt, timeout=_seconds_left(deadline, DEADLINE_GRACE_S), metadata=metadata)
        try:
            for message in call:
                progress.take(message)  # take() clears a second `started`
                if any(map(message.HasField, ("started", "prompt_logprobs", "chunk", "finished"))):
                    patience.note_message()
                    begin = None
                yield message
            if not progress.is_complete():
                raise ProtocolError("the stream ended before the answer was complete")
            return
        except grpc.RpcError as error:
            if progress.is_complete():
                return  # the stream broke only after the answer's last message
            if not _is_worth_a_retry(error, attempt.HasField("resume")):
                raise
            wait = patience.wait_after(error, 0.0 if begin is None else time.monotonic() - begin)
            if wait is None:
                patience.add_note(error)
                raise
        finally:
            call.cancel()
        server = (server + 1) % len(channels)
        _sleep(wait if deadline is None else max(0, min(wait, _seconds_left(deadline))), channels[server])
        if deadline is not None:
            attempt.timeout_ms = int(1000 * _seconds_left(deadline))
            if attempt.timeout_ms <= 0:
                raise TimeoutError("the deadline passed before the next attempt")
        progress.fill(attempt)


def _seconds_left(deadline, grace=0.0):
    return None if deadline is None else deadline - time.monotonic() + grace


def _sleep(seconds, channel):
    """Sleeps inside gRPC, because gRPC reconnects only while a thread waits inside it. Otherwise no thread would
    reconnect for up to 5 s, the interval of gRPC's own polls. The outcome of the call that waits does not matter."""
    end = time.monotonic() + seconds
    try:
        channel.unary_unary("/grpc.health.v1.Health/Check")(b"", timeout=seconds, wait_for_ready=True)
    except grpc.RpcError:
        pass
    time.sleep(max(0, end - time.monotonic()))


def _is_worth_a_retry(error, is_resuming):
    """Returns True if the request should be sent again.

    Quire's servers always send details. An error of UNANSWERED_WITHOUT_DETAILS that has none comes from gRPC: INTERNAL
    or UNKNOWN after a torn connection, CANCELLED in a server that shuts down. This client itself never cancels a call
    that it reads. If a full server refuses a new request, the request ends. A resumed request was accepted before, so
    it waits until a server has room.
    """
    if error.code() in UNANSWERED_WITHOUT_DETAILS:
        return _details(error) is None
    if _is_full(error):
        return is_resuming and _retry_delay(error) is not None
    return error.code() == grpc.StatusCode.UNAVAILABLE


def _is_full(error):
    return error.code() == grpc.StatusCode.RESOURCE_EXHAUSTED


class _Patience:
    """How long a request has been unanswered, and has waited for full servers, since its last message."""

    def __init__(self, max_unanswered_s, max_unanswered_at_first_s):
        self._max_unanswered_s = max_unanswered_s
        self._limit_s = max_unanswered_s if max_unanswered_at_first_s is None else max_unanswered_at_first_s
        self._start_anew()

    def note_message(self):
        self._limit_s = self._max_unanswered_s
        self._start_anew()

    def wait_after(self, error, lasted_s):
        """Returns the seconds until the next attempt; None to give up. lasted_s: duration of the attempt."""
        if _details(error) is not None:  # Quire's servers always send details
            self._limit_s = self._max_unanswered_s
        if _is_full(error):
            return self._wait_for_a_place(_retry_delay(error))
        self._unanswered_s += min(lasted_s, LONGEST_UNANSWERED_ATTEMPT_S)
        left = self._limit_s - self._unanswered_s
        if left <= 0:
            return None
        wait = self._next_wait()
        # For the last wait, sets the total to the limit itself, because a sum of waits has rounding errors.
        self._unanswered_s = self._unanswered_s + wait if wait < left else self._limit_s
        return min(wait, left)

    def add_note(self, error):
        """From Python 3.11 on, adds to the error a note that says why the client gave up."""
        if hasattr(error, "add_note"):
            error.add_note(f"(given up after waiting for full servers for {self._waited_for_a_place_s:.0f} s)"
                           if _is_full(error) else f"(given up after {self._unanswered_s:.0f} s without an answer)")

    def _wait_for_a_place(self, asked_s):
        left = MAX_WAIT_FOR_A_PLACE_S - self._waited_for_a_place_s
        if left <= 0:
            return None
        self._unanswered_s = 0.0  # a full server is alive, so the count starts again
        wait = max(self._next_wait(), asked_s)
        self._waited_for_a_place_s = self._waited_for_a_place_s + wait if wait < left else MAX_WAIT_FOR_A_PLACE_S
        return min(wait, left)

    def _next_wait(self):
        # The exponent is bounded: at 20 the wait has long reached MAX_WAIT_S.
        wait = min(MAX_WAIT_S, FIRST_WAIT_S * 2**min(self._num_waits, 20)) * random.uniform(0.5, 1)
        self._num_waits += 1
        return wait

    def _start_anew(self):
        self._num_waits = 0
        self._unanswered_s = 0.0
        self._waited_for_a_place_s = 0.0


def _details(error):
    return dict(error.trailing_metadata() or ()).get("grpc-status-details-bin")


def _retry_delay(error):
    """Returns the seconds of the error's google.rpc.RetryInfo; None if the error has none."""
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
    """The part of an answer that has arrived so far, over all streams of the request."""

    def __init__(self, num_sequences):
        self._num_sequences = num_sequences
        self._request_id = ""
        self._resume = api.Resume()

    def take(self, message):
        """Adds a message to the answer. Clears a second `started` in it, because the caller has seen the first one."""
        if message.HasField("started"):
            self._take_started(message)
        if message.HasField("prompt_logprobs"):
            prompt = message.prompt_logprobs
            if prompt.first_position != self._resume.num_prompt_logprobs + 1:
                raise ProtocolError("log-probabilities of the prompt skip or repeat tokens")
            self._resume.num_prompt_logprobs += len(prompt.logprobs)
        if message.HasField("chunk"):
            chunk = message.chunk
            sequence = self._sequence(chunk.index)
            if chunk.first_position != len(sequence.token_ids):
                raise ProtocolError("a chunk skips or repeats tokens")
            sequence.token_ids.extend(chunk.token_ids)
        if message.HasField("finished"):
            sequence = self._sequence(message.finished.index)
            if message.finished.num_output_tokens != len(sequence.token_ids):
                raise ProtocolError("a sequence finished, but some of its tokens are missing")
            sequence.has_ended = True

    def fill(self, request):
        """Writes the part of the answer that has arrived into the request, so that the next attempt resumes there."""
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
            if started.max_tokens > 0:  # older servers do not send max_tokens
                self._resume.max_tokens = started.max_tokens
            for _ in range(self._num_sequences):
                self._resume.sequences.add()
            return
        if (started.seed, started.determinism_fingerprint) != (
                self._resume.seed, self._resume.determinism_fingerprint):
            raise ProtocolError("a server resumed the stream with another seed or determinism fingerprint")
        message.ClearField("started")

    def _sequence(self, index):
        sequences = self._resume.sequences
        if not 0 <= index < len(sequences) or sequences[index].has_ended:
            raise ProtocolError("a message names a sequence that is unknown or has finished")
        return sequences[index]
