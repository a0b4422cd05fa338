"""`quire serve` with a fault proxy between its scheduler and its worker, and the faults themselves.

The supervisor under test is the real one: what dies or stops here, it must bring back. No hook in
the product is needed: serve starts the programs beside its own, so a copy of it stands beside a
script that starts the real scheduler with the proxy for a worker; and the worker's socket lies in a
folder below XDG_RUNTIME_DIR.
"""
import collections
import datetime
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
import urllib.request

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, "../integration"))

from fault_proxy import FAULTS as PROXY_FAULTS, ProxyControl  # noqa: E402
from quire_server import BIN, MODEL, Process, get_load, grpc  # noqa: E402

POLL_SECONDS = 0.2
REPLACED_SECONDS = 30
COUNTERS = ("num_recompute_preemptions", "num_swap_preemptions", "num_prefix_hit_tokens",
            "num_failed_swap_ins")
LOG_LINES = {"epochs begun": "worker group ready", "epochs lost": "worker group lost",
             "programs ended": "a program of the server ended",
             "programs killed": "a program of the server is killed"}


class ServedModel:
    """A server to be harmed. `with ServedModel(folder, flags) as server:` stops everything."""

    def __init__(self, folder, *flags, seed=0):
        self._proxy = self._serve = self._counters = self.control = None
        listen, control = (os.path.join(folder, name) for name in ("proxy.sock", "control.sock"))
        runtime = os.path.join(folder, "run")
        os.makedirs(runtime)
        try:
            quire = _make_programs(folder, f"unix:{listen}")
            self._proxy = subprocess.Popen(
                [sys.executable, "-B", os.path.join(HERE, "fault_proxy.py"), "--listen", listen,
                 "--control", control, "--worker", os.path.join(runtime, "quire-*/worker*.sock"),
                 f"--seed={seed}"], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
            self._proxy.stdout.readline()
            self.control = ProxyControl(control)
            self._serve = Process(["/usr/bin/env", f"XDG_RUNTIME_DIR={runtime}",
                                   quire, "serve", "--model", MODEL, "--port=0", "--http-port=0",
                                   *flags])
            ready = self._serve.wait_for(r"^quire: ready grpc=(\S+) http=(\S+)")
            self.address, self._http_address = ready.groups()
            self._counters = _Counters(self.address, self._http_address)
        except BaseException:
            self.close()
            raise

    def pid_of(self, program, seconds=REPLACED_SECONDS):
        """The child of serve of this name, as soon as there is one."""
        deadline = time.monotonic() + seconds
        while True:
            for pid in _children(self._serve.popen.pid, program):
                return pid
            if time.monotonic() > deadline or self._serve.popen.poll() is not None:
                raise AssertionError(f"serve has no {program}:\n" + self._serve.text()[-5000:])
            time.sleep(0.01)

    def inject(self, fault):
        """Does it. Its kind, when it began, and from when its gap counts (see checker.py)."""
        record = {"kind": fault.kind, "begin": time.monotonic()}
        if fault.kind in PROXY_FAULTS:
            record["proxy"] = self.control.inject(fault.kind, fault.seconds)
            record["from"] = time.monotonic()
            return record
        program = "quire_scheduler" if fault.kind == "scheduler-kill" else "quire_worker"
        pid = self.pid_of(program)
        record["begin"] = record["from"] = time.monotonic()
        is_kill = fault.kind in ("kill", "scheduler-kill")
        os.kill(pid, signal.SIGKILL if is_kill else signal.SIGSTOP)
        if fault.kind == "pause":
            time.sleep(fault.seconds)
            if _is_alive(pid):
                os.kill(pid, signal.SIGCONT)
        elif fault.kind == "stop":
            self._wait_until_replaced(pid)
        return record

    def _wait_until_replaced(self, pid):
        deadline = time.monotonic() + REPLACED_SECONDS
        while _is_alive(pid):
            if time.monotonic() > deadline:
                raise AssertionError(f"a worker that was stopped lives on for {REPLACED_SECONDS} s")
            time.sleep(0.01)

    def wait_for_steps(self, num_steps):
        """Waits until so many steps more were answered: streams flow."""
        deadline = time.monotonic() + REPLACED_SECONDS
        goal = self._counters.totals().get("steps", 0) + num_steps
        while self._counters.totals().get("steps", 0) < goal:
            if time.monotonic() > deadline:
                raise AssertionError("no step is answered:\n" + self._serve.text()[-5000:])
            time.sleep(0.05)

    def counts(self):
        """What happened inside, from metrics and log lines, summed over all schedulers."""
        text = self._serve.text()
        counts = {name: len(re.findall(line, text)) for name, line in LOG_LINES.items()}
        return {**counts, **self._counters.totals()}

    def epochs(self):
        """When each began, in monotonic time."""
        offset = time.time() - time.monotonic()
        stamps = re.findall(rf"^(\S+) INFO {LOG_LINES['epochs begun']}", self._serve.text(), re.M)
        return [datetime.datetime.fromisoformat(stamp).timestamp() - offset for stamp in stamps]

    def log(self):
        return self._serve.text()

    def stop(self):
        """SIGTERM; the exit code."""
        self._serve.popen.terminate()
        return self._serve.popen.wait(timeout=60)

    def close(self):
        if self._counters is not None:
            self._counters.close()
        if self.control is not None:
            self.control.close()
        if self._serve is not None:
            self._serve.kill()
        if self._proxy is not None:
            self._proxy.stdin.close()
            self._proxy.stdout.close()
            self._proxy.kill()
            self._proxy.wait()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()


class _Counters:
    """Counters that begin at 0 with each scheduler: asked for all the while, and added up."""

    def __init__(self, address, http_address):
        self._http_address = http_address
        self._channel = grpc.insecure_channel(address)
        self._sums, self._last = collections.Counter(), collections.Counter()
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self):
        while not self._over.wait(POLL_SECONDS):
            try:
                self._read()
            except (grpc.RpcError, OSError):
                pass  # the scheduler is away

    def _read(self):
        load = get_load(self._channel)
        values = {name: getattr(load, name) for name in COUNTERS}
        url = f"http://{self._http_address}/metrics/native"
        with urllib.request.urlopen(url, timeout=5) as page:
            text = page.read().decode()
        for name, value in re.findall(r"^quire_(stale_replies|steps)_total (\d+)", text, re.M):
            values[name] = int(value)
        for name, value in values.items():
            if value < self._last[name]:  # another scheduler
                self._sums[name] += self._last[name]
            self._last[name] = value

    def totals(self):
        return dict(self._sums + self._last)

    def close(self):
        self._over.set()
        self._thread.join()
        self._channel.close()


def _make_programs(folder, worker_address):
    """A quire whose scheduler takes worker_address for its worker's."""
    programs = os.path.join(folder, "bin")
    os.mkdir(programs)
    os.symlink(os.path.join(BIN, "quire_worker"), os.path.join(programs, "quire_worker"))
    script = os.path.join(programs, "quire_scheduler")
    with open(script, "w", encoding="ascii") as file:
        file.write(f'#!/bin/sh\nexec "{BIN}/quire_scheduler" "$@" --workers={worker_address}\n')
    os.chmod(script, 0o755)
    return shutil.copy(os.path.join(BIN, "quire"), programs)


def _stat(pid):
    """(name, state, parent) of a process, or None."""
    try:
        with open(f"/proc/{pid}/stat", encoding="ascii", errors="replace") as file:
            text = file.read()
    except OSError:
        return None
    name, rest = text[text.index("(") + 1:text.rindex(")")], text[text.rindex(")") + 2:].split()
    return name, rest[0], int(rest[1])


def _is_alive(pid):
    stat = _stat(pid)
    return stat is not None and stat[1] not in "ZX"


def _children(parent, program):
    """The kernel keeps 15 letters of a name."""
    for name in os.listdir("/proc"):
        stat = _stat(name) if name.isdigit() else None
        if stat is not None and (stat[0], stat[2]) == (program[:15], parent) and _is_alive(name):
            yield int(name)
