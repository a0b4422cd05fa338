"""A network and a name server of this process's own: names lead where the test says, every address of
127.0.0.0/8 is free, and nothing outside is reached.

    names = own_names.enter()  # runs the script again in namespaces of its own; ends it with 77
    names["quire-worker-0"] = ["127.9.0.1"]  # where they cannot be made
"""
import ctypes
import fcntl
import os
import random
import socket
import struct
import subprocess
import sys
import tempfile
import threading

EXIT_NOT_POSSIBLE = 77
INSIDE = "QUIRE_TEST_HAS_OWN_NAMES"
MS_BIND = 0x1000
SIOCSIFFLAGS = 0x8914
IFF_UP_RUNNING = 0x1 | 0x40
TYPE_A, CLASS_IN, NO_SUCH_NAME = 1, 1, 3
SECONDS_TO_KEEP = 5  # as a cluster's name server says it


def _unshare():
    flags = ["--mount", "--net"]
    return ["unshare", *([] if os.geteuid() == 0 else ["--user", "--map-root-user"]), *flags]


def enter():
    """Returns the Names, inside the namespaces only: this process goes there by running its script again."""
    if os.environ.get(INSIDE) == str(os.getpid()):
        return Names()
    try:
        refused = subprocess.run([*_unshare(), "true"], stdin=subprocess.DEVNULL, text=True,
                                 capture_output=True, check=False)
        reason = refused.stderr.strip() if refused.returncode else None
    except FileNotFoundError as error:
        reason = str(error)
    if reason is not None:
        _give_up(reason)
    os.environ[INSIDE] = str(os.getpid())
    command = [*_unshare(), sys.executable, "-B", *sys.argv]
    return os.execvp(command[0], command)


def _give_up(reason):
    print(f"skipped: namespaces cannot be made here: {reason}")
    sys.exit(EXIT_NOT_POSSIBLE)


class Names:
    """Addresses by name, in a name server of its own. It answers with the newest ones, in any order; a name
    without an address does not exist. Resolvers are set up as in a pod of the namespace "quire"."""

    DOMAIN = ".quire.svc.cluster.local"

    def __init__(self):
        self._addresses = {}
        self._folder = tempfile.TemporaryDirectory(prefix="quire-names-")
        resolver = os.path.join(self._folder.name, "resolv.conf")
        with open(resolver, "w", encoding="utf-8") as file:
            file.write("search quire.svc.cluster.local svc.cluster.local cluster.local\n"
                       "nameserver 127.0.0.1\noptions ndots:5\n")
        try:
            _mount_over("/etc/resolv.conf", resolver)
            _start_loopback()
            self._socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
            self._socket.bind(("127.0.0.1", 53))
        except OSError as error:
            _give_up(error)
        threading.Thread(target=self._answer_all, daemon=True).start()

    def __setitem__(self, name, addresses):
        """A name as pods of the namespace write it."""
        self._addresses[name + self.DOMAIN] = tuple(addresses)

    def _answer_all(self):
        while True:
            question, sender = self._socket.recvfrom(4096)
            self._socket.sendto(self._answer(question), sender)

    def _answer(self, message):
        """RFC 1035: the header, the question as it came, and the addresses if addresses were asked for."""
        name, end = _name_at(message, 12)
        addresses = self._addresses.get(name, ())
        is_address = message[end:end + 4] == struct.pack(">HH", TYPE_A, CLASS_IN)
        found = random.sample(addresses, len(addresses)) if is_address else []
        flags = 0x8580 | (0 if addresses else NO_SUCH_NAME)
        answer = struct.pack(">HHHIH", 0xC00C, TYPE_A, CLASS_IN, SECONDS_TO_KEEP, 4)
        return (message[:2] + struct.pack(">HHHHH", flags, 1, len(found), 0, 0) + message[12:end + 4]
                + b"".join(answer + socket.inet_aton(each) for each in found))


def _name_at(message, place):
    """The name, and where it ends."""
    labels = []
    while length := message[place]:
        labels.append(message[place + 1:place + 1 + length].decode("ascii"))
        place += 1 + length
    return ".".join(labels).lower(), place + 1


def _mount_over(target, source):
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.mount(source.encode(), target.encode(), None, MS_BIND, None) != 0:
        raise OSError(ctypes.get_errno(), f"mount over {target}")


def _start_loopback():
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        request = struct.pack("16sh14x", b"lo", IFF_UP_RUNNING)
        fcntl.ioctl(any_socket, SIOCSIFFLAGS, request)
