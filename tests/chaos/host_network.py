"""Hosts that are network namespaces of this machine, joined by cable.py.

The caller itself moves to the first host, as do programs that it starts directly; `command` starts
one on another host. close() ends every process on the hosts and removes the hosts, also after an
exception. A caller that gets SIGKILL leaves its hosts behind; the next network removes them.
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
    """Hosts by number; the caller's host is 0. `with HostNetwork(4) as network:`"""

    def __init__(self, num_hosts):
        _check_machine()
        _remove_leftovers()
        self._prefix = f"{PREFIX}{os.getpid()}-"
        self._hosts = [f"{self._prefix}{k}" for k in range(num_hosts)]
        self._cable = None
        self._own = os.open("/proc/self/ns/net", os.O_RDONLY)
        try:
            # cable.py makes its devices in a host of its own and then moves them to the other hosts.
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
        """Returns the command that runs `arguments` on this host. `ip` becomes the program, by exec."""
        return ["ip", "netns", "exec", self._hosts[host], *arguments]

    def round_trips(self, host):
        """Returns sorted milliseconds from the first host to this one and back. A round trip is a
        connection that a port without a listener refuses."""
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
        """Takes this host's cable down for `seconds`, then up again."""
        self._set(host, "down")
        try:
            time.sleep(seconds)
        finally:
            self._set(host, "up")

    def part(self, one, other, seconds):
        """Drops the packets between these two hosts for `seconds`, and no others."""
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
    """Removes the namespaces of killed runs. A name holds the pid of its run."""
    for name in _namespaces(PREFIX):
        if not os.path.exists(f"/proc/{name[len(PREFIX):].split('-')[0]}"):
            _remove_namespace(name)


def _enter(namespace):
    """Moves this thread into the namespace, with each thread and process that it starts later.
    REQUIRES: no other threads yet."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.setns(namespace, CLONE_NEWNET) != 0:
        raise NotPossible(f"cannot enter a network namespace: {os.strerror(ctypes.get_errno())}")
