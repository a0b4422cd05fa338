#!/usr/bin/python3
"""intruders.py [NUMBER]: so many strangers (1,000), of four kinds, at each port of a server with mTLS: how many were refused.

Needs QUIRE_BIN, QUIRE_PYTHON_STUBS and QUIRE_SOURCE, as the integration tests do. At a gRPC port a stranger asks for its
health, over a connection of its own; at a rank's port, which knows no certificates, it has another secret or none. Fails
when one of them gets an answer, or an honest client among them gets none.
"""
import collections
import concurrent.futures
import contextlib
import os
import socket
import subprocess
import sys
import tempfile
import threading
import time

sys.path.insert(0, os.path.join(os.environ["QUIRE_SOURCE"], "tests/integration"))

from certificates import Authority  # noqa: E402
from quire_server import BIN, MODEL, Process, Server, api, generate  # noqa: E402
from tls_test import HALF_HELLO, listening_ports  # noqa: E402
import grpc  # noqa: E402

HEALTH = "/grpc.health.v1.Health/Check"
NUM_AT_ONCE = 8
HONEST_EVERY = 10


def code_of_call(channel):
    with channel:
        try:
            channel.unary_unary(HEALTH)(b"", timeout=60)
            return "answered"
        except grpc.RpcError as error:
            return error.code().name


def kinds_of_strangers(folder, ours):
    """Returns, by name of a kind, a function from address to channel. Strangers with TLS trust the server."""
    theirs = Authority(folder, "theirs").issue("theirs", believes=ours)
    expired = ours.issue("expired", days=-1)
    return {
        "plain text": lambda address: grpc.insecure_channel(
            address, options=[("grpc.use_local_subchannel_pool", 1)]),
        "no certificate": lambda address: expired.channel(address, with_certificate=False),
        "another authority": theirs.channel,
        "expired": expired.channel,
    }


def try_port(name, address, strangers, honest, number):
    """Prints a row for each kind. Returns whether all strangers were refused and all honest clients answered."""
    is_good = True
    for kind, dial in strangers.items():
        begin = time.monotonic()
        with concurrent.futures.ThreadPoolExecutor(NUM_AT_ONCE) as threads:
            codes = threads.map(lambda _, dial=dial: code_of_call(dial(address)), range(number))
            friends = threads.map(lambda _: code_of_call(honest.channel(address)), range(number // HONEST_EVERY))
            codes, friends = collections.Counter(codes), collections.Counter(friends)
        refused = codes["UNAVAILABLE"]
        is_good &= refused == number and set(friends) <= {"answered"}
        print(f"| {name} | {kind} | {number} | {refused} | {friends['answered']} of {friends.total()} | "
              f"{time.monotonic() - begin:.0f} s |", flush=True)
        for got in sorted({*codes, *friends} - {"answered", "UNAVAILABLE"} | set(friends) - {"answered"}):
            print(f"  {name}, {kind}: {codes[got]} strangers and {friends[got]} honest clients got {got}", file=sys.stderr)
    return is_good


def heard_from(stranger):
    """Returns all bytes that a rank sends to a stranger before it hangs up."""
    heard = b""
    with contextlib.suppress(ConnectionResetError):
        while more := stranger.recv(4096):
            heard += more
    return heard


def shake_hands(port, *secret):
    """Starts a TLS 1.3 handshake, with the flags `secret`. The process ends when the rank hangs up."""
    return subprocess.Popen(["openssl", "s_client", "-connect", f"127.0.0.1:{port}", "-tls1_3", "-quiet", *secret],
                            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)


def wait_for_connections(port, number):
    """Waits until a port has so many connections, accepted or not. A later one would wait for the next epoch."""
    end = time.monotonic() + 60
    while True:
        with open("/proc/net/tcp", encoding="ascii") as file:
            fields = [line.split() for line in file]
        if sum(field[1].endswith(f":{port:04X}") and field[3] == "01" for field in fields) >= number:
            return
        if time.monotonic() > end:
            raise AssertionError(f"port {port} never had {number} connections")
        time.sleep(0.01)


def try_rank_port(own, honest, number):
    """Sends strangers to a rank that waits for another rank, which was killed under a stream. Prints a row, and
    returns whether strangers were refused and streams went on, like try_port."""
    begin = time.monotonic()

    def start(rank, port="0"):
        worker = Process([os.path.join(BIN, "quire_worker"), "--model", MODEL, f"--listen=127.0.0.1:{port}", f"--rank={rank}",
                          "--tensor-parallel-size=2", "--ranks-on-host=2", "--threads=1", "--kv-cache-memory-bytes=64MiB",
                          "--swap-space=0", *own.flags()])
        return worker, worker.wait_for(r"^quire_worker: ready listen=(\S+)").group(1)

    request = api.GenerateRequest(text=b"Once upon a time", sampling={"temperature": 1, "seed": 7},
                                  stopping={"max_tokens": 300, "ignore_eos": True})
    refused = came = answered = asked = 0
    (lower, first), (higher, second) = start(0), start(1)
    try:
        with (Server(f"--workers={first},{second}", *honest.flags("worker-ssl"), with_worker=False) as server,
              server.channel() as channel):
            server.wait_until_ready()
            port, = listening_ports(higher.popen.pid) - {int(second.rpartition(":")[2])}
            expected = generate(channel, request).tokens
            while came < number:
                killed = threading.Event()

                def kill_once(killed=killed):
                    if not killed.is_set():
                        lower.kill()
                        killed.set()

                words = (b"", b"hello" * 100, HALF_HELLO)
                plain = [socket.create_connection(("127.0.0.1", port), timeout=120) for _ in range(30)]
                for i, stranger in enumerate(plain):
                    with contextlib.suppress(ConnectionError):
                        stranger.sendall(words[i % 3])
                shakers = [shake_hands(port, *(("-psk", "00" * 32) if i % 2 else ())) for i in range(20)]
                came += len(plain) + len(shakers)
                wait_for_connections(port, len(plain) + len(shakers))
                asked += 1
                with concurrent.futures.ThreadPoolExecutor(1) as threads:
                    answer = threads.submit(generate, channel, request, on_message=kill_once)
                    killed.wait(60)
                    lower, _ = start(0, first.rpartition(":")[2])
                    answered += answer.result(timeout=120).tokens == expected
                # A refused stranger gets nothing, or one alert.
                refused += sum(heard[:1] in (b"", b"\x15") and len(heard) <= 7 for heard in map(heard_from, plain))
                refused += sum(shaker.communicate(timeout=120)[0] == b"" and shaker.returncode != 0 for shaker in shakers)
                for stranger in plain:
                    stranger.close()
            is_good = higher.popen.poll() is None
    finally:
        lower.kill()
        higher.kill()
    print(f"| rank | no secret, another one | {came} | {refused} | {answered} of {asked} | {time.monotonic() - begin:.0f} s |")
    return is_good and refused == came and answered == asked


def main():
    number = int(sys.argv[1]) if len(sys.argv) > 1 else 1000
    with tempfile.TemporaryDirectory(prefix="quire-intruders-") as folder:
        ours = Authority(folder, "ours")
        own, honest = ours.issue("server"), ours.issue("client")
        strangers = kinds_of_strangers(folder, ours)
        print("| port | strangers | came | refused | honest clients answered | in |\n|---|---|---|---|---|---|")
        with Server(*own.flags(), *honest.flags("worker-ssl"), worker_flags=own.flags()) as server:
            ports = {"clients": server.address, "admin": server.admin_address, "worker": server.worker_address}
            is_good = all([try_port(name, address, strangers, honest, number // len(strangers)) for name, address in ports.items()])
            is_good &= server.scheduler.popen.poll() is None and server.worker.popen.poll() is None
        is_good &= try_rank_port(own, honest, number)
    return 0 if is_good else 1


if __name__ == "__main__":
    sys.exit(main())
