#!/usr/bin/env python3
"""generate_example.py ADDRESS[,ADDRESS...] PROMPT: one sampled answer on standard output.

Kill the server while it streams and start it again: the answer goes on.
"""
import sys

import grpc
import quire_client
from proto.v1 import generation_pb2 as api


def main():
    if len(sys.argv) != 3:
        sys.exit("usage: generate_example.py ADDRESS[,ADDRESS...] PROMPT")
    channels = [grpc.insecure_channel(address, options=quire_client.CHANNEL_OPTIONS)
                for address in sys.argv[1].split(",")]
    request = api.GenerateRequest(text=sys.argv[2].encode(), sampling={"temperature": 0.8},
                                  stopping={"max_tokens": 200})
    for message in quire_client.generate(channels, request):
        sys.stdout.buffer.write(message.chunk.text + message.finished.text)
        sys.stdout.buffer.flush()
    print()


if __name__ == "__main__":
    main()
