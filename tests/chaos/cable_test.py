#!/usr/bin/python3
"""The cable hands packets to their destination, late by the delay, and drops packets between parted hosts."""
import os
import socket
import unittest

from cable import DELAY_NS, Cable

A, B, C = "10.77.0.1", "10.77.0.2", "10.77.0.3"


def packet(source, destination, data=b""):
    """Returns a packet with the fields of an IPv4 header that the cable reads."""
    return b"\x45" + bytes(11) + socket.inet_aton(source) + socket.inet_aton(destination) + data


class CableTest(unittest.TestCase):
    """Devices are pairs of sockets that keep messages whole: the cable's end and the host's."""

    def setUp(self):
        self.cable_ends, self.hosts = {}, {}
        for address in (A, B, C):
            ends = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
            for end in ends:
                end.setblocking(False)
                self.addCleanup(end.close)
            self.cable_ends[address], self.hosts[address] = ends
        self.cable = Cable({address: end.fileno() for address, end in self.cable_ends.items()})

    def send(self, data, source, now=0):
        self.hosts[source].send(data)
        self.cable.take(self.cable_ends[source].fileno(), now)

    def received(self, address):
        packets = []
        while True:
            try:
                packets.append(self.hosts[address].recv(1 << 16))
            except BlockingIOError:
                return packets

    def test_a_packet_comes_after_the_delay_to_its_destination_alone(self):
        sent = packet(A, B, b"hello")
        self.send(sent, A, now=100)
        self.cable.pass_on(100 + DELAY_NS - 1)
        self.assertEqual(self.received(B), [])
        self.assertEqual(self.cable.seconds_to_next(100), DELAY_NS / 1e9)
        self.cable.pass_on(100 + DELAY_NS)
        self.assertEqual(self.received(B), [sent])
        self.assertEqual(self.received(A) + self.received(C), [])
        self.assertIsNone(self.cable.seconds_to_next(100))

    def test_packets_keep_their_order(self):
        sent = [packet(A, B, bytes([k])) for k in range(5)]
        for k, one in enumerate(sent):
            self.send(one, A, now=k)
        self.cable.pass_on(DELAY_NS + 2)
        self.assertEqual(self.received(B), sent[:3])
        self.cable.pass_on(DELAY_NS + 4)
        self.assertEqual(self.received(B), sent[3:])

    def test_hosts_that_are_parted_reach_all_others(self):
        self.cable.obey(f"part {A} {B}\n")
        for source, destination in ((A, B), (B, A), (A, C), (C, B)):
            self.send(packet(source, destination), source)
        self.cable.pass_on(DELAY_NS)
        self.assertEqual(self.received(A), [])
        self.assertEqual(self.received(B), [packet(C, B)])
        self.assertEqual(self.received(C), [packet(A, C)])
        self.assertEqual(self.cable.counts["parted"], 2)
        self.cable.obey("join\n")
        self.send(packet(A, B), A)
        self.cable.pass_on(DELAY_NS)
        self.assertEqual(self.received(B), [packet(A, B)])

    def test_a_device_that_takes_nothing_loses_its_packets_alone(self):
        os.close(self.cable_ends[B].detach())
        self.send(packet(A, B), A)
        self.send(packet(A, C), A)
        self.cable.pass_on(DELAY_NS)
        self.assertEqual(self.received(C), [packet(A, C)])
        self.assertEqual((self.cable.counts["lost"], self.cable.counts["passed"]), (1, 1))

    def test_what_is_for_no_host_goes_nowhere(self):
        no_ipv4 = b"\x60" + packet(A, B)[1:]
        for data in (b"", b"\x45", no_ipv4, packet(A, "10.77.0.9")):
            self.send(data, A)
        self.cable.pass_on(DELAY_NS)
        self.assertEqual(self.cable.counts["to nobody"], 4)
        self.assertEqual(self.cable.counts["passed"], 0)


if __name__ == "__main__":
    unittest.main()
