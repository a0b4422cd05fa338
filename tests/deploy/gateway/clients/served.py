"""A running `quire serve`, and the counts of what was checked about it."""
import json
import os
import pathlib
import re
import signal
import socket
import subprocess
import tempfile
import threading
import time
import traceback
import urllib.request

SOURCE = pathlib.Path(__file__).resolve().parents[4]
MODEL = SOURCE / "deploy/model"
STORY = "Once upon a time"
START_SECONDS = 120


class Report:
    """Counts checks. A failed check is printed, and the session goes on."""

    def __init__(self):
        self.num_checks = 0
        self.failures = []
        self._session = ""

    def check(self, claim, holds, detail=""):
        self.num_checks += 1
        if not holds:
            self.failures.append(f"{self._session}: {claim}")
            print(f"  FAILED {claim}: {str(detail)[:1000]}", flush=True)

    def equal(self, claim, got, want):
        self.check(claim, got == want, f"got {got!r}, want {want!r}")

    def raises(self, claim, kind, call):
        """Returns the error of the call if it is exactly of this kind, else None."""
        try:
            got = call()
        except Exception as error:  # pylint: disable=broad-except
            self.check(claim, type(error) is kind, f"{type(error).__name__}: {error}")
            return error if type(error) is kind else None
        self.check(claim, False, f"no error, but {got!r}")
        return None

    def session(self, name, run, *arguments):
        """Runs a function. An exception of it is a failed check."""
        self._session = name
        before, begin = self.num_checks, time.monotonic()
        failed = len(self.failures)
        try:
            run(self, *arguments)
        except Exception:  # pylint: disable=broad-except
            self.check("the session runs to its end", False, traceback.format_exc()[-1000:])
        print(f"{name}: {self.num_checks - before} checks, {len(self.failures) - failed} failed, "
              f"{time.monotonic() - begin:.0f} s", flush=True)


def free_port():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


class Program:
    """A program and the lines that it prints."""

    def __init__(self, arguments):
        self.lines = []
        self._popen = subprocess.Popen(arguments, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    @property
    def pid(self):
        return self._popen.pid

    def _read(self):
        for line in self._popen.stdout:
            self.lines.append(line.rstrip())

    def wait_for(self, pattern):
        deadline = time.monotonic() + START_SECONDS
        while time.monotonic() < deadline and self._reader.is_alive():
            for line in list(self.lines):
                if match := re.search(pattern, line):
                    return match
            time.sleep(0.05)
        raise AssertionError(f"no line with {pattern!r} in:\n" + "\n".join(self.lines))

    def stop(self):
        self._popen.send_signal(signal.SIGTERM)
        try:
            self._popen.wait(60)
        except subprocess.TimeoutExpired:
            self._popen.kill()
            self._popen.wait()


class Served:
    """`quire serve` with the bundled model. `with Served(bin) as server:` stops it."""

    def __init__(self, binaries, *flags):
        self._binaries = pathlib.Path(binaries)
        self.program = Program([str(self._binaries / "quire"), "serve", "--model", str(MODEL), "--port=0",
                                "--http-port=0", *flags])
        try:
            ready = self.program.wait_for(r"^quire: ready grpc=(\S+) http=(\S+)")
        except BaseException:
            self.program.stop()
            raise
        self.grpc, http = ready.groups()
        self.root = "http://" + http
        self.url = self.root + "/v1"
        self.model = "model"

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.program.stop()

    def metric(self, name, **labels):
        """Returns the sum of the metric's series that have the labels."""
        with urllib.request.urlopen(self.root + "/metrics", timeout=30) as page:
            text = page.read().decode()
        total = 0.0
        for series, value in re.findall(r"^%s(\{[^}]*\})? (\S+)$" % re.escape(name), text, re.MULTILINE):
            if all(f'{key}="{label}"' in series for key, label in labels.items()):
                total += float(value)
        return total

    def num_requests(self):
        return self.metric("quire_requests")

    def wait_until_idle(self):
        """Returns True once the scheduler has no request: none waiting, swapped or running."""
        deadline = time.monotonic() + 30
        while self.num_requests() > 0:
            if time.monotonic() > deadline:
                return False
            time.sleep(0.05)
        return True

    def wait_until_running(self):
        deadline = time.monotonic() + 30
        while self.metric("vllm:num_requests_running") == 0:
            assert time.monotonic() < deadline, "no request runs"
            time.sleep(0.01)

    def kill_gateway(self):
        """Kills the gateway; serve starts another one on the same port."""
        for folder in pathlib.Path("/proc").glob("[0-9]*"):
            try:
                parent = (folder / "stat").read_text().rpartition(")")[2].split()[1]
                name = (folder / "comm").read_text().strip()
            except OSError:
                continue
            if int(parent) == self.program.pid and name == "quire_gateway":
                os.kill(int(folder.name), signal.SIGKILL)
                return
        raise AssertionError("serve has no gateway")


def post(url, body):
    """Returns the text of the answer."""
    request = urllib.request.Request(url, json.dumps(body).encode(), {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=300) as response:
        return response.read().decode()


def make_key(binaries, tenant):
    """Returns a new API key and its line for --api-keys-file."""
    made = subprocess.run([str(pathlib.Path(binaries) / "quire"), "key", "--tenant", tenant], capture_output=True,
                          text=True, check=True)
    return made.stdout.strip(), made.stderr.strip().splitlines()[-1]


def write_temporary(text):
    with tempfile.NamedTemporaryFile("w", prefix="quire-clients-", delete=False) as file:
        file.write(text)
    return file.name
