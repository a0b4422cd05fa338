#!/usr/bin/python3
"""The cables between hosts that are network namespaces of one machine: a fault proxy for packets.

Each host has one TUN device, `cable`, with an address. This program holds the other ends of all
devices. It reads the packets that hosts send, and hands each to the device of its destination 1 ms
later, in the order in which they came. One thread sleeps until a packet comes or one is due.

  a device that is down  A packet to it is lost, and it sends none: `ip link set cable down`. No
                         peer is told anything. TCP sends again later, as between real hosts.
  two hosts parted       packets between them are dropped; both reach all others

Commands come as lines on standard input. The answer to each is a line of JSON with counts since the
start. After `ready` the program writes nothing but answers.
  part A B    packets between these two addresses are dropped from now on
  join        packets between all addresses pass again
  counts      changes nothing
It ends when its standard input does.
"""
import argparse
import collections
import fcntl
import json
import os
import select
import socket
import struct
import subprocess
import sys
import time

DEVICE = "cable"
DELAY_NS = 1_000_000
# The largest MTU that a device takes. It keeps packets few, since this program's speed is not under test.
MTU = 65535
# Bounds the packets read from one device in a turn, so that a busy device delays no other one.
BATCH = 64
TUNSETIFF, IFF_TUN, IFF_NO_PI = 0x400454CA, 0x0001, 0x1000
IPV4_HEADER_BYTES = 20

Packet = collections.namedtuple("Packet", "due source destination data")


class Cable:
    """`devices`: IPv4 address of a host, as text, to the descriptor of its device's other end.
    Times are nanoseconds of any monotonic clock."""

    def __init__(self, devices, delay_ns=DELAY_NS):
        self._devices = {socket.inet_aton(address): fd for address, fd in devices.items()}
        self._delay_ns = delay_ns
        self._under_way = collections.deque()  # in order of `due`, since the delay is constant
        self._parted = None
        self.counts = {"passed": 0, "lost": 0, "parted": 0, "to nobody": 0}

    def take(self, fd, now):
        """Reads at most BATCH packets that the host has sent."""
        for _ in range(BATCH):
            try:
                data = os.read(fd, MTU)
            except BlockingIOError:
                return
            if len(data) < IPV4_HEADER_BYTES or data[0] >> 4 != 4:
                self.counts["to nobody"] += 1  # such as IPv6 neighbour discovery
                continue
            self._under_way.append(Packet(now + self._delay_ns, data[12:16], data[16:20], data))

    def pass_on(self, now):
        """Hands over each packet that is due."""
        while self._under_way and self._under_way[0].due <= now:
            packet = self._under_way.popleft()
            self.counts[self._hand_over(packet)] += 1

    def _hand_over(self, packet):
        """Hands one packet to its destination, unless it is cut off. Returns the name of the count to raise."""
        if {packet.source, packet.destination} == self._parted:
            return "parted"
        fd = self._devices.get(packet.destination)
        if fd is None:
            return "to nobody"
        try:
            os.write(fd, packet.data)
        except OSError:  # the device is down, or its queue is full
            return "lost"
        return "passed"

    def seconds_to_next(self, now):
        """Returns None if no packet is under way."""
        if not self._under_way:
            return None
        return max(0, self._under_way[0].due - now) / 1e9

    def part(self, one, other):
        self._parted = {socket.inet_aton(one), socket.inet_aton(other)}

    def join(self):
        self._parted = None

    def obey(self, line):
        """Carries out a command. Returns its answer."""
        name, *arguments = line.split()
        if name != "counts":
            {"part": self.part, "join": self.join}[name](*arguments)
        return json.dumps(self.counts)


def open_device(host, address):
    """Makes a device in the namespace `host`. Returns the descriptor of its other end, which stays here."""
    fd = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
    fcntl.ioctl(fd, TUNSETIFF, struct.pack("16sH22x", DEVICE.encode(), IFF_TUN | IFF_NO_PI))
    for command in (f"link set {DEVICE} netns {host}",
                    f"-n {host} address add {address}/24 dev {DEVICE}",
                    f"-n {host} link set {DEVICE} mtu {MTU} up"):
        subprocess.run(["ip", *command.split()], check=True)
    return fd


def run(cable, fds, control):
    while True:
        timeout = cable.seconds_to_next(time.monotonic_ns())
        readable, _, _ = select.select([control, *fds], [], [], timeout)
        now = time.monotonic_ns()
        for fd in readable:
            if fd != control:
                cable.take(fd, now)
                continue
            lines = os.read(control, 4096).decode()
            if not lines:
                return
            for line in lines.splitlines():
                print(cable.obey(line), flush=True)
        cable.pass_on(time.monotonic_ns())


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("hosts", nargs="+", metavar="NAMESPACE=ADDRESS")
    hosts = [host.split("=") for host in parser.parse_args().hosts]
    devices = {address: open_device(name, address) for name, address in hosts}
    print("cable: ready", flush=True)
    run(Cable(devices), list(devices.values()), sys.stdin.fileno())


if __name__ == "__main__":
    main()
