#!/usr/bin/python3
"""The proxy harms bytes as a fault says, in the fault's direction alone."""
import asyncio
import os
import tempfile
import unittest

from fault_proxy import HELD, TO_WORKER, Proxy

TURNS = 200  # of the event loop: plenty for bytes that may pass


class FaultProxyTest(unittest.IsolatedAsyncioTestCase):
    """A worker that echoes, a scheduler that dials, the proxy in between."""

    async def asyncSetUp(self):
        folder = tempfile.TemporaryDirectory(prefix="quire-test-")
        self.addCleanup(folder.cleanup)
        self.worker_path = os.path.join(folder.name, "worker.sock")
        self.proxy_path = os.path.join(folder.name, "proxy.sock")
        self.received = b""
        self.proxy = Proxy(os.path.join(folder.name, "work*.sock"), seed=1)
        self.servers = [await asyncio.start_unix_server(self.echo, self.worker_path),
                        await asyncio.start_unix_server(self.proxy.serve, self.proxy_path)]

    async def asyncTearDown(self):
        for server in self.servers:
            server.close()

    async def echo(self, reader, writer):
        try:
            while piece := await reader.read(1 << 16):
                self.received += piece
                writer.write(piece)
        except OSError:
            pass
        writer.close()

    async def dial(self):
        return await asyncio.open_unix_connection(self.proxy_path)

    async def turns(self):
        for _ in range(TURNS):
            await asyncio.sleep(0)

    async def begin(self, fault):
        """Starts a fault without end; the task to be cancelled."""
        task = asyncio.create_task(self.proxy.inject(fault, 3600))
        await asyncio.sleep(0)
        return task

    def end(self, task):
        task.cancel()
        self.proxy.lift()

    async def test_without_a_fault_bytes_and_ends_pass(self):
        reader, writer = await self.dial()
        writer.write(b"hello")
        self.assertEqual(await reader.readexactly(5), b"hello")
        writer.write_eof()
        self.assertEqual(await reader.read(), b"")
        writer.close()

    async def test_cuts_hold_their_directions_and_lose_nothing(self):
        for fault, directions in HELD.items():
            with self.subTest(fault):
                self.received = b""
                reader, writer = await self.dial()
                writer.write(b"1")
                await reader.readexactly(1)
                cut = await self.begin(fault)
                writer.write(b"23")
                writer.write_eof()
                answer = asyncio.create_task(reader.read())
                await self.turns()
                received, is_answered = self.received, answer.done()
                self.end(cut)
                self.assertEqual(received, b"1" if TO_WORKER in directions else b"123")
                self.assertFalse(is_answered)
                self.assertEqual(await answer, b"23")
                self.assertEqual(self.received, b"123")
                writer.close()
        self.assertGreater(self.proxy.counts["held"], 0)

    async def test_a_new_connection_stays_unanswered_while_the_way_is_cut(self):
        cut = await self.begin("cut")
        reader, writer = await self.dial()
        writer.write(b"hello")
        answer = asyncio.create_task(reader.readexactly(5))
        await self.turns()
        is_answered = answer.done()
        self.end(cut)
        self.assertFalse(is_answered)
        self.assertEqual(await answer, b"hello")
        writer.close()

    async def test_reset_breaks_what_is_open(self):
        reader, writer = await self.dial()
        writer.write(b"1")
        await reader.readexactly(1)
        await self.proxy.inject("reset", 0)
        reset = await self.begin("reset")
        try:
            self.assertEqual(await reader.read(), b"")
        except ConnectionError:
            pass
        self.end(reset)
        self.assertGreater(self.proxy.counts["reset"], 0)
        writer.close()

    async def test_garbage_changes_bytes_and_ends_when_it_is_told(self):
        reader, writer = await self.dial()
        garbage = await self.begin("garbage")
        sent = b""
        while self.proxy.counts["spoiled"] == 0:
            sent += b"quire" * 20
            writer.write(b"quire" * 20)
            await self.turns()
        self.end(garbage)
        await self.turns()
        self.assertNotEqual(await reader.read(1 << 20), sent)
        spoiled = self.proxy.counts["spoiled"]
        for _ in range(50):
            writer.write(b"x")
            await self.turns()
        self.assertEqual(self.proxy.counts["spoiled"], spoiled)
        writer.close()

    async def test_delay_keeps_the_order(self):
        reader, writer = await self.dial()
        delay = await self.begin("delay")
        for k in range(3):
            writer.write(b"%d" % k)
            await self.turns()
        self.assertEqual(await reader.readexactly(3), b"012")
        self.assertGreater(self.proxy.counts["delayed"], 0)
        self.end(delay)
        writer.close()

    async def test_without_a_worker_the_connection_ends_when_the_way_is_open(self):
        self.servers[0].close()
        os.unlink(self.worker_path)
        cut = await self.begin("cut")
        reader, writer = await self.dial()
        end = asyncio.create_task(reader.read())
        await self.turns()
        is_ended = end.done()
        self.end(cut)
        try:
            self.assertEqual(await end, b"")
        except ConnectionError:
            pass
        self.assertFalse(is_ended)
        writer.close()


if __name__ == "__main__":
    unittest.main()
