#!/usr/bin/python3
"""The client takes whole answers however their bytes are cut, and finds every fault of their framing."""
import asyncio
import unittest

from sse_client import post

HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
CHUNKS = b"9\r\ndata: a\n\n\r\n12\r\ndata: b\n\ndata: c\n\n\r\n"
END = b"0\r\n\r\n"


def answers(pieces):
    """Returns the events and the End of a call that gets these pieces and then the end of the connection."""
    async def serve(reader, writer):
        await reader.readuntil(b"{}")
        for piece in pieces:
            writer.write(piece)
            await writer.drain()
            await asyncio.sleep(0)
        writer.close()

    async def call():
        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        events = []
        end = await asyncio.wait_for(post(f"127.0.0.1:{port}", "/", {}, events.append), 20)
        server.close()
        return events, end

    return asyncio.run(call())


class SseClientTest(unittest.TestCase):

    def test_a_whole_answer_gives_its_events_however_it_is_cut(self):
        answer = HEAD + CHUNKS + END
        for pieces in ([answer], [answer[k:k + 1] for k in range(len(answer))]):
            events, end = answers(pieces)
            self.assertEqual((events, end.status, end.is_whole, end.fault),
                             (["a", "b", "c"], 200, True, ""))

    def test_an_answer_that_is_no_stream_gives_its_body(self):
        events, end = answers([b"HTTP/1.1 429 Full\r\nContent-Length: 4\r\n\r\nfull"])

        self.assertEqual((events, end.status, end.is_whole, end.body), ([], 429, True, b"full"))

    def test_a_fault_of_the_framing_is_found(self):
        for answer in (HEAD + CHUNKS,                                           # no last chunk
                       HEAD + CHUNKS[:-5],                                      # a chunk cut short
                       HEAD + CHUNKS.replace(b"12\r\n", b"13\r\n") + END,       # a wrong size
                       HEAD + b"8\r\ndata: a\n\r\n" + END,                      # an event cut short
                       HEAD + b"7\r\nevil: a\r\n" + END,                        # text that is no event
                       b""):
            _, end = answers([answer])
            self.assertFalse(end.is_whole, answer)
            self.assertTrue(end.fault, answer)


if __name__ == "__main__":
    unittest.main()
