#!/usr/bin/python3
"""intruders.py [NUMBER]: so many strangers (1,000), of four kinds, at each gRPC port of a server with mTLS: how many were refused.

Needs QUIRE_BIN, QUIRE_PYTHON_STUBS and QUIRE_SOURCE, as the integration tests do. A stranger asks for the health of the
port, over a connection of its own. Fails when one of them gets an answer, or an honest client among them gets none.
"""
import collections
import concurrent.futures
import os
import sys
import tempfile
import time

sys.path.insert(0, os.path.join(os.environ["QUIRE_SOURCE"], "tests/integration"))

from certificates import Authority  # noqa: E402
from quire_server import Server  # noqa: E402
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
    """Name to what makes a channel to an address. All of them believe the server's certificate."""
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
    """Prints a row for each kind. Whether nobody came through but the honest ones."""
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
    return 0 if is_good else 1


if __name__ == "__main__":
    sys.exit(main())
