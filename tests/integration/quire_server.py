"""Starts quire_worker and quire_scheduler for a test, and stops them whatever happens.

QUIRE_BIN (the folder of the programs), QUIRE_PYTHON_STUBS (generated code) and QUIRE_SOURCE in the environment
say where things are; CMakeLists.txt sets them. By default they are those of the build that ./deploy/test makes.
QUIRE_TEST_WORKER_FLAGS are more flags of every worker: a test file may run once more with --kv-backend=vmm.
"""
import contextlib
import os
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request

SOURCE = os.environ.setdefault("QUIRE_SOURCE", os.path.abspath(os.path.join(os.path.dirname(__file__), "../..")))
os.environ.setdefault("QUIRE_BIN", os.path.join(SOURCE, "build/cpu-release/bin"))
os.environ.setdefault("QUIRE_PYTHON_STUBS", os.path.join(SOURCE, "build/cpu-release/python"))

sys.path.insert(0, os.environ["QUIRE_PYTHON_STUBS"])

import grpc  # noqa: E402
from google.protobuf import any_pb2  # noqa: E402,F401  (details are Any)
from proto.google.rpc import error_details_pb2, status_pb2  # noqa: E402
from proto.v1 import admin_pb2 as admin_api  # noqa: E402,F401
from proto.v1 import admin_pb2_grpc  # noqa: E402
from proto.v1 import generation_pb2 as api  # noqa: E402
from proto.v1 import generation_pb2_grpc as api_grpc  # noqa: E402
from proto.v1 import types_pb2 as types_api  # noqa: E402,F401

BIN = os.environ["QUIRE_BIN"]
MODEL = os.environ.get("QUIRE_TEST_MODEL", os.path.join(SOURCE, "deploy/model"))
START_SECONDS = 60


class Process:
    """A program whose output lines can be waited for."""

    def __init__(self, arguments):
        self.lines = []
        self._changed = threading.Condition()
        self.popen = subprocess.Popen(arguments, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                                      text=True, errors="replace")
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self):
        for line in self.popen.stdout:
            with self._changed:
                self.lines.append(line.rstrip())
                self._changed.notify_all()
        with self._changed:
            self._changed.notify_all()

    def wait_for(self, pattern, seconds=START_SECONDS, after=0):
        """Returns the match of the first line, past or future, in which the pattern is found. Skips the first `after`
        lines."""
        deadline = time.monotonic() + seconds
        seen = after
        with self._changed:
            while True:
                for line in self.lines[seen:]:
                    if match := re.search(pattern, line):
                        return match
                seen = len(self.lines)
                left = deadline - time.monotonic()
                if left <= 0 or (self.popen.poll() is not None and not self._reader.is_alive()):
                    raise AssertionError(f"no line with {pattern!r} in:\n" + self.text())
                self._changed.wait(min(left, 0.2))

    def text(self):
        return "\n".join(self.lines)

    def kill(self):
        if self.popen.poll() is None:
            self.popen.kill()
        self.popen.wait()
        self._reader.join()
        self.popen.stdout.close()


class Server:
    """A scheduler and its worker. `with Server(...) as server:` stops both."""

    def __init__(self, *scheduler_flags, worker_flags=(), with_worker=True, model=MODEL, prefix=()):
        """prefix: a command that starts both programs, for example prlimit."""
        self._prefix = list(prefix)
        self._folder = tempfile.TemporaryDirectory(prefix="quire-test-")
        self.worker_address = "unix:" + os.path.join(self._folder.name, "worker.sock")
        self._model = model
        self._worker_flags = [*worker_flags, *os.environ.get("QUIRE_TEST_WORKER_FLAGS", "").split()]
        self._scheduler_flags = list(scheduler_flags)
        self.worker = None
        self.scheduler = None
        try:
            if with_worker:
                self.start_worker()
            self.start_scheduler()
            if with_worker:
                self.wait_until_ready()
        except BaseException:
            self.close()
            raise

    def start_scheduler(self, port="0", more_flags=()):
        self.scheduler = Process([*self._prefix, os.path.join(BIN, "quire_scheduler"), "--model", self._model,
                                  "--workers", self.worker_address, f"--port={port}",
                                  "--http-port=0", "--admin-address=unix:" + os.path.join(
                                      self._folder.name, "admin.sock"), *self._scheduler_flags,
                                  *more_flags])
        # The ready line comes once there is a worker, the listens line as soon as the ports listen.
        match = self.scheduler.wait_for(r"^quire_scheduler: listens grpc=(\S+) http=(\S+) admin=(\S+)")
        self.address, self.http_address, self.admin_address = match.groups()

    def kill_scheduler(self):
        """Kills the scheduler and starts another one on the same gRPC port. --standby=false lets the new one start
        without waiting for the end of the old one."""
        self.scheduler.kill()
        self.start_scheduler(port=self.address.rpartition(":")[2], more_flags=["--standby=false"])

    def start_worker(self):
        self.worker = Process([*self._prefix, os.path.join(BIN, "quire_worker"), "--model",
                               self._model, "--listen", self.worker_address, *self._worker_flags])
        self.worker.wait_for(r"^quire_worker: ready ")

    def wait_until_ready(self):
        match = self.scheduler.wait_for(r"^quire_scheduler: ready grpc=(\S+) http=(\S+)")
        assert match.groups() == (self.address, self.http_address)

    def channel(self):
        return grpc.insecure_channel(self.address, options=[("grpc.use_local_subchannel_pool", 1)])

    def terminate(self):
        self.scheduler.popen.send_signal(signal.SIGTERM)

    def close(self):
        for process in (self.scheduler, self.worker):
            if process is not None:
                process.kill()
        self._folder.cleanup()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()


class Answer:
    """The answer to a Generate call: tokens and text per sequence. Messages are checked as they come."""

    def __init__(self):
        self.started = None
        self.tokens = {}
        self.text = {}
        self.finished = {}
        self.logprobs = {}
        self.prompt_logprobs = []
        self.num_messages = 0

    def add(self, message):
        self.num_messages += 1
        assert message.HasField("started") == (self.num_messages == 1), "started comes first, once"
        if message.HasField("started"):
            self.started = message.started
        if message.HasField("prompt_logprobs"):
            prompt = message.prompt_logprobs
            assert prompt.first_position == len(self.prompt_logprobs) + 1, "a gap or a repeat"
            self.prompt_logprobs.extend(prompt.logprobs)
        if message.HasField("chunk"):
            chunk = message.chunk
            tokens = self.tokens.setdefault(chunk.index, [])
            assert chunk.index not in self.finished, "a token after the end"
            assert chunk.first_position == len(tokens), "a gap or a repeat"
            tokens.extend(chunk.token_ids)
            self.text[chunk.index] = self.text.get(chunk.index, b"") + chunk.text
            self.logprobs.setdefault(chunk.index, []).extend(chunk.logprobs)
        if message.HasField("finished"):
            finished = message.finished
            assert finished.index not in self.finished, "two ends"
            self.finished[finished.index] = finished
            self.text[finished.index] = self.text.get(finished.index, b"") + finished.text
            assert finished.num_output_tokens == len(self.tokens.get(finished.index, []))


def generate(channel, request, timeout=60, on_message=lambda: None, metadata=()):
    """Returns the whole answer. Raises grpc.RpcError, with the answer so far as `.answer`."""
    answer = Answer()
    try:
        for message in api_grpc.GenerationServiceStub(channel).Generate(request, timeout=timeout, metadata=metadata):
            answer.add(message)
            on_message()
    except grpc.RpcError as error:
        error.answer = answer
        raise
    return answer


def admin_stub(channel):
    return admin_pb2_grpc.AdminServiceStub(channel)


def server_info(channel):
    return api_grpc.GenerationServiceStub(channel).GetServerInfo(api.GetServerInfoRequest())


def get_load(server):
    with grpc.insecure_channel(server.admin_address) as channel:
        return admin_stub(channel).GetLoad(admin_api.GetLoadRequest())


def metric(server, line):
    """Returns the value of a metric line. REQUIRES: labels are spelled as on the page."""
    text = urllib.request.urlopen(f"http://{server.http_address}/metrics", timeout=10).read().decode()
    match = re.search("^" + re.escape(line) + r" (\S+)$", text, re.M)
    assert match, f"no {line} in:\n{text}"
    return float(match.group(1))


def wait_until_idle(server, seconds=20):
    """Waits until no request is left and every block is free."""
    deadline = time.monotonic() + seconds
    while True:
        load = get_load(server)
        num_requests = (load.num_running_requests + load.num_waiting_requests
                        + load.num_swapped_requests)
        blocks = load.kv_blocks
        if num_requests == 0 and blocks.num_free + blocks.num_cached == blocks.num_blocks:
            return load
        if time.monotonic() > deadline:
            raise AssertionError(f"still busy:\n{load}")
        time.sleep(0.01)


class Failure:
    """Code, reason and details of an error."""

    def __init__(self, error):
        self.code = error.code()
        self.message = error.details()
        trailers = dict(error.trailing_metadata() or ())
        self.request_id = trailers.get("x-request-id", "")
        self.reason = ""
        self.metadata = {}
        self.violations = []
        self.retry_delay = None
        status = status_pb2.Status.FromString(trailers.get("grpc-status-details-bin", b""))
        for detail in status.details:
            info = error_details_pb2.ErrorInfo()
            bad_request = error_details_pb2.BadRequest()
            retry = error_details_pb2.RetryInfo()
            if detail.Unpack(info):
                assert info.domain == "quire"
                self.reason = info.reason
                self.metadata = dict(info.metadata)
            elif detail.Unpack(bad_request):
                self.violations = [v.field for v in bad_request.field_violations]
            elif detail.Unpack(retry):
                self.retry_delay = retry.retry_delay.ToMilliseconds() / 1000

    def __str__(self):
        return f"{self.code} {self.reason}: {self.message}"


@contextlib.contextmanager
def failure_of():
    """`with failure_of() as failures: call()`. Then failures[0] is the call's failure; failures is empty if it
    succeeded."""
    failures = []
    try:
        yield failures
    except grpc.RpcError as error:
        failures.append(Failure(error))
