"""Hosts that are network namespaces of this machine, joined by cable.py.

The caller itself moves to the first host, and so do the programs that it starts plainly; `command`
starts one on another host. Whatever happens, close() ends all that runs on the hosts and removes
them. Only SIGKILL prevents that: the next network that is made removes what it finds left behind.
"""
import contextlib
import ctypes
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, HERE)

from cable import DEVICE  # noqa: E402

PREFIX = "quire-chaos-"
CLONE_NEWNET = 0x40000000
NUM_ROUND_TRIPS = 50
DISCARD_PORT = 9


class NotPossible(Exception):
    """This machine, or this user, cannot make hosts."""


class HostNetwork:
    """Hosts by number, the caller's is 0. `with HostNetwork(4) as network:`"""

    def __init__(self, num_hosts):
        _check_machine()
        _remove_leftovers()
        self._prefix = f"{PREFIX}{os.getpid()}-"
        self._hosts = [f"{self._prefix}{k}" for k in range(num_hosts)]
        self._cable = None
        self._own = os.open("/proc/self/ns/net", os.O_RDONLY)
        try:
            # The cable's own host is a place where its devices are before they are moved.
            for name in (f"{self._prefix}cable", *self._hosts):
                _make_namespace(name)
            self._cable = self._start_cable()
            with open(f"/run/netns/{self._hosts[0]}", "rb") as file:
                _enter(file.fileno())
        except BaseException:
            self.close()
            raise

    def _start_cable(self):
        hosts = [f"{name}={self.address(k)}" for k, name in enumerate(self._hosts)]
        cable = subprocess.Popen(
            ["ip", "netns", "exec", f"{self._prefix}cable", sys.executable, "-B",
             os.path.join(HERE, "cable.py"), *hosts],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, start_new_session=True)
        if not cable.stdout.readline():
            raise NotPossible("the devices of the hosts cannot be made")
        return cable

    @staticmethod
    def address(host):
        return f"10.77.0.{host + 1}"

    def command(self, host, arguments):
        """What starts a program on this host; the process is the program itself."""
        return ["ip", "netns", "exec", self._hosts[host], *arguments]

    def round_trips(self, host):
        """Milliseconds from the first host to this one and back, sorted: until a connection to a
        port where nobody listens is refused."""
        times = []
        for _ in range(NUM_ROUND_TRIPS):
            start = time.monotonic()
            with socket.socket() as caller:
                if caller.connect_ex((self.address(host), DISCARD_PORT)) == 0:
                    raise AssertionError("somebody listens where nobody should")
            times.append(1e3 * (time.monotonic() - start))
        return sorted(times)

    def counts(self):
        return self._tell("counts")

    def cut(self, host, seconds):
        """Pulls the cable of this host, and plugs it in again."""
        self._set(host, "down")
        try:
            time.sleep(seconds)
        finally:
            self._set(host, "up")

    def part(self, one, other, seconds):
        """Packets between these two are dropped, and no others."""
        self._tell(f"part {self.address(one)} {self.address(other)}")
        try:
            time.sleep(seconds)
        finally:
            self._tell("join")

    def _set(self, host, state):
        _ip("-n", self._hosts[host], "link", "set", DEVICE, state)

    def _tell(self, command):
        self._cable.stdin.write(command + "\n")
        self._cable.stdin.flush()
        return json.loads(self._cable.stdout.readline())

    def close(self):
        _enter(self._own)
        os.close(self._own)
        if self._cable is not None:
            self._cable.kill()
            self._cable.wait()
            self._cable.stdin.close()
            self._cable.stdout.close()
        for name in _namespaces(self._prefix):
            _remove_namespace(name)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()


def _check_machine():
    if os.geteuid() != 0:
        raise NotPossible("needs root, to make network namespaces")
    if not os.path.exists("/dev/net/tun"):
        raise NotPossible("needs /dev/net/tun, for the cables between hosts")
    if shutil.which("ip") is None:
        raise NotPossible("needs the command ip, of the package iproute2")


def _ip(*arguments):
    return subprocess.run(["ip", *arguments], check=True, capture_output=True, text=True).stdout


def _make_namespace(name):
    try:
        _ip("netns", "add", name)
        _ip("-n", name, "link", "set", "lo", "up")
    except subprocess.CalledProcessError as error:
        raise NotPossible(f"needs network namespaces: {error.stderr.strip()}") from error


def _namespaces(prefix):
    return [name for name in (line.split()[0] for line in _ip("netns", "list").splitlines() if line)
            if name.startswith(prefix)]


def _remove_namespace(name):
    for pid in _ip("netns", "pids", name).split():
        with contextlib.suppress(ProcessLookupError):
            os.kill(int(pid), signal.SIGKILL)
    _ip("netns", "delete", name)


def _remove_leftovers():
    """Of runs that were killed: a name tells whose it was."""
    for name in _namespaces(PREFIX):
        if not os.path.exists(f"/proc/{name[len(PREFIX):].split('-')[0]}"):
            _remove_namespace(name)


def _enter(namespace):
    """Moves this thread, and what it starts from now on. REQUIRES: no other threads yet."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.setns(namespace, CLONE_NEWNET) != 0:
        raise NotPossible(f"cannot enter a network namespace: {os.strerror(ctypes.get_errno())}")
