"""`quire serve`, a fault proxy between its scheduler and each worker, and the faults themselves.

The supervisor under test is the real one: it must replace each process that dies or stops. The
product needs no hook, because serve starts the programs beside its own file. So a copy of serve
stands beside a script that starts the real scheduler with the proxies' addresses as --workers. The
workers' sockets lie in a folder below XDG_RUNTIME_DIR.
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

import standstill  # noqa: E402
from fault_proxy import ProxyControl  # noqa: E402
from fault_script import LINK_FAULTS, SCHEDULER_FAULTS  # noqa: E402
from quire_server import BIN, MODEL, Process  # noqa: E402

POLL_SECONDS = 0.2
REPLACED_SECONDS = 60
# The other ranks are stopped for so long before a kill, so that the victim waits in an exchange.
EXCHANGE_SECONDS = 0.3
COUNTERS = {"num_recompute_preemptions": 'quire_preemptions_total{mode="recompute"}',
            "num_swap_preemptions": 'quire_preemptions_total{mode="swap"}',
            "num_prefix_hit_tokens": 'quire_prefix_cache_tokens_total{result="hit"}',
            "num_failed_swap_ins": "quire_kv_swap_in_failures_total",
            "stale_replies": "quire_stale_replies_total",
            "steps": "quire_steps_total",
            "turns": "quire_loop_turn_seconds_count"}
LOG_LINES = {"epochs begun": "worker group ready", "epochs lost": "worker group lost",
             "programs ended": "a program of the server ended",
             "programs killed": "a program of the server is killed"}
WEIGHTS_BYTES = os.path.getsize(os.path.join(MODEL, "model.safetensors"))
LOADED_SECONDS = 5  # a worker of this age has read its weights


# State is a letter; started is in seconds since the machine's start.
Stat = collections.namedtuple("Stat", "name state parent started")


class ServedModel:
    """A server to be harmed. `with ServedModel(folder, flags) as server:` stops everything."""

    def __init__(self, folder, *flags, seed=0, num_ranks=1, has_proxies=True):
        """has_proxies: if False, no fault of links can be injected."""
        self._set_up(num_ranks)
        runtime = os.path.join(folder, "run")
        os.makedirs(runtime)
        try:
            quire = os.path.join(BIN, "quire")
            if has_proxies:
                listens = [self._start_proxy(folder, runtime, rank, seed)
                           for rank in range(num_ranks)]
                quire = _make_programs(folder, ",".join(f"unix:{listen}" for listen in listens))
            self._serve = Process(["/usr/bin/env", f"XDG_RUNTIME_DIR={runtime}",
                                   quire, "serve", "--model", MODEL, "--port=0", "--http-port=0",
                                   f"--tensor-parallel-size={num_ranks}", *flags])
            ready = self._serve.wait_for(r"^quire: ready grpc=(\S+) http=(\S+)")
            self.address, self.http_address = ready.groups()
            self._counters = Counters(self.http_address)
        except BaseException:
            self.close()
            raise

    def _set_up(self, num_ranks):
        self._num_ranks = num_ranks
        self._survivors = {}
        self._of_survivors = dict.fromkeys(("survivors", "lost survivors", "weights read again"), 0)
        self._proxies, self._controls = [], []
        self._serve = self._counters = None

    def _start_proxy(self, folder, runtime, rank, seed):
        """Starts the proxy of a rank. Returns the path where it listens."""
        listen, control = (os.path.join(folder, f"{name}{rank}.sock")
                           for name in ("proxy", "control"))
        proxy = subprocess.Popen(
            [sys.executable, "-B", os.path.join(HERE, "fault_proxy.py"), "--listen", listen,
             "--control", control, "--worker", os.path.join(runtime, f"quire-*/worker{rank}.sock"),
             f"--seed={seed + rank}"], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        self._proxies.append(proxy)
        proxy.stdout.readline()
        self._controls.append(ProxyControl(control))
        return listen

    def pid_of(self, program, rank=None, seconds=REPLACED_SECONDS):
        """Returns the pid of serve's child of this name and rank, as soon as there is one."""
        deadline = time.monotonic() + seconds
        while True:
            for pid in children(self._serve.popen.pid, program):
                if rank is None or f"--rank={rank}" in _arguments(pid):
                    return pid
            if time.monotonic() > deadline or self._serve.popen.poll() is not None:
                raise AssertionError(f"serve has no {program}:\n" + self._serve.text()[-5000:])
            time.sleep(0.01)

    def inject(self, fault):
        """Injects the fault. Returns its kind, when it began, and from when its gap counts (see checker.py)."""
        self._count_lost_survivors()
        survivors = {pid: (_age_seconds(pid), _bytes_read(pid))
                     for pid in self._survivors_of(fault)}
        record = {"kind": fault.kind, "rank": fault.rank, "begin": time.monotonic()}
        if fault.kind in LINK_FAULTS:
            record["proxy"], record["counts"] = self._harm_link(fault)
            record["from"] = time.monotonic()
        else:
            self._harm_process(fault, record)
        self._survivors = survivors
        return record

    def _survivors_of(self, fault):
        """Returns workers that the fault may not end. The supervisor may replace a paused rank."""
        if fault.kind in LINK_FAULTS or fault.kind in SCHEDULER_FAULTS:
            return []
        return self._others(fault.rank)

    def _others(self, rank):
        return [self.pid_of("quire_worker", other) for other in range(self._num_ranks)
                if other != rank]

    def _harm_link(self, fault):
        """Blocks until the fault is over. Returns name and counts of the proxy."""
        counts = self._controls[fault.rank].inject(fault.kind, fault.seconds)
        return f"rank {fault.rank}", counts

    def _harm_process(self, fault, record):
        if fault.kind in SCHEDULER_FAULTS:
            pid, others = self.pid_of("quire_scheduler"), []
        else:
            pid, others = self.pid_of("quire_worker", fault.rank), self._others(fault.rank)
        if fault.kind == "kill-in-exchange":
            for other in others:
                os.kill(other, signal.SIGSTOP)
            time.sleep(EXCHANGE_SECONDS)
        record["begin"] = record["from"] = time.monotonic()
        is_kill = fault.kind in ("kill", "kill-in-exchange", "scheduler-kill")
        os.kill(pid, signal.SIGKILL if is_kill else signal.SIGSTOP)
        if fault.kind == "kill-in-exchange":
            for other in others:
                os.kill(other, signal.SIGCONT)
        if fault.kind == "pause":
            time.sleep(fault.seconds)
            if is_alive(pid):
                os.kill(pid, signal.SIGCONT)
        else:
            self.wait_until_replaced(pid)

    def _count_lost_survivors(self):
        """Counts ranks that another rank's fault ended, or made to read their weights again. Called
        before the next fault and by counts()."""
        for pid, (age, bytes_read) in self._survivors.items():
            if not is_alive(pid):
                self._of_survivors["lost survivors"] += 1
            elif age > LOADED_SECONDS:
                self._of_survivors["survivors"] += 1
                # Half of a rank's weights: a rank that lives on reads much less.
                many = WEIGHTS_BYTES // self._num_ranks // 2
                self._of_survivors["weights read again"] += _bytes_read(pid) - bytes_read >= many
        self._survivors = {}

    def wait_until_replaced(self, pid):
        deadline = time.monotonic() + REPLACED_SECONDS
        while is_alive(pid):
            if time.monotonic() > deadline:
                raise AssertionError(f"what was stopped lives on for {REPLACED_SECONDS} s")
            time.sleep(0.01)

    def wait_for_steps(self, num_steps):
        """Waits until num_steps more steps are answered."""
        deadline = time.monotonic() + REPLACED_SECONDS
        self._counters.read_anew(deadline)
        goal = self._counters.totals().get("steps", 0) + num_steps
        while self._counters.totals().get("steps", 0) < goal:
            if time.monotonic() > deadline:
                raise AssertionError("no step is answered:\n" + self._serve.text()[-5000:])
            time.sleep(0.05)

    def counts(self):
        """Returns counts from metrics and log lines, summed over all schedulers."""
        self._count_lost_survivors()
        text = self._serve.text()
        counts = {name: len(re.findall(line, text)) for name, line in LOG_LINES.items()}
        return {**counts, **self._of_survivors, **self._counters.totals()}

    def epochs(self):
        """Returns when each epoch began, in monotonic time."""
        offset = time.time() - time.monotonic()
        stamps = re.findall(rf"^(\S+) INFO {LOG_LINES['epochs begun']}", self._serve.text(), re.M)
        return [datetime.datetime.fromisoformat(stamp).timestamp() - offset for stamp in stamps]

    def slow_turns(self):
        """Returns the slow turns of all schedulers' loops."""
        return standstill.slow_turns(self._serve.text())

    def log(self):
        return self._serve.text()

    def page(self, path):
        """Returns a page of the HTTP port."""
        with urllib.request.urlopen(f"http://{self.http_address}{path}", timeout=5) as page:
            return page.read().decode()

    def stop(self):
        """Sends SIGTERM. Returns the exit code."""
        self._serve.popen.terminate()
        return self._serve.popen.wait(timeout=60)

    def close(self):
        if self._counters is not None:
            self._counters.close()
        for control in self._controls:
            control.close()
        if self._serve is not None:
            self._serve.kill()
        for proxy in self._proxies:
            proxy.stdin.close()
            proxy.stdout.close()
            proxy.kill()
            proxy.wait()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()


class Counters:
    """Polls counters, which begin at 0 with each scheduler, and adds them up."""

    def __init__(self, http_address):
        self._http_address = http_address
        self._sums, self._last = collections.Counter(), collections.Counter()
        self._lock = threading.Lock()
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self):
        while not self._over.wait(POLL_SECONDS):
            self._try_to_read()

    def read_anew(self, deadline):
        """Reads the counters now, or as soon as a scheduler answers."""
        while not self._try_to_read() and time.monotonic() < deadline:
            time.sleep(0.02)

    def _try_to_read(self):
        with self._lock:
            try:
                self._read()
                return True
            except OSError:
                return False  # the scheduler is away

    def _read(self):
        url = f"http://{self._http_address}/metrics/native"
        with urllib.request.urlopen(url, timeout=5) as page:
            lines = dict(re.findall(r"^(quire_\S+) (\d+)$", page.read().decode(), re.M))
        values = {name: int(lines[metric]) for name, metric in COUNTERS.items()}
        for name, value in values.items():
            if value < self._last[name]:  # another scheduler
                self._sums[name] += self._last[name]
            self._last[name] = value

    def totals(self):
        return dict(self._sums + self._last)

    def close(self):
        self._over.set()
        self._thread.join()


def _make_programs(folder, worker_addresses):
    """Makes a copy of quire whose scheduler dials these addresses as its workers'. Returns its path."""
    programs = os.path.join(folder, "bin")
    os.mkdir(programs)
    for name in ("quire_worker", "quire_gateway"):
        os.symlink(os.path.join(BIN, name), os.path.join(programs, name))
    script = os.path.join(programs, "quire_scheduler")
    with open(script, "w", encoding="ascii") as file:
        file.write(f'#!/bin/sh\nexec "{BIN}/quire_scheduler" "$@" --workers={worker_addresses}\n')
    os.chmod(script, 0o755)
    return shutil.copy(os.path.join(BIN, "quire"), programs)


def stat_of(pid):
    """Returns the Stat of a process, or None if it is gone."""
    try:
        with open(f"/proc/{pid}/stat", encoding="ascii", errors="replace") as file:
            text = file.read()
    except OSError:
        return None
    name, rest = text[text.index("(") + 1:text.rindex(")")], text[text.rindex(")") + 2:].split()
    return Stat(name, rest[0], int(rest[1]), int(rest[19]) / os.sysconf("SC_CLK_TCK"))


def is_alive(pid):
    stat = stat_of(pid)
    return stat is not None and stat.state not in "ZX"


def _bytes_read(pid):
    """Returns bytes read from files, without bytes from sockets. Returns 0 if the process is gone."""
    try:
        with open(f"/proc/{pid}/io", encoding="ascii") as file:
            return int(re.search(r"^rchar: (\d+)", file.read())[1])
    except OSError:
        return 0


def _age_seconds(pid):
    stat = stat_of(pid)
    return 0 if stat is None else time.clock_gettime(time.CLOCK_BOOTTIME) - stat.started


def _arguments(pid):
    try:
        with open(f"/proc/{pid}/cmdline", encoding="utf-8") as file:
            return file.read().split("\0")
    except OSError:
        return []


def children(parent, program):
    """Yields the pids of the parent's children of this name. The kernel keeps 15 letters of a name."""
    for name in os.listdir("/proc"):
        stat = stat_of(name) if name.isdigit() else None
        of_parent = stat is not None and (stat.name, stat.parent) == (program[:15], parent)
        if of_parent and is_alive(name):
            yield int(name)
