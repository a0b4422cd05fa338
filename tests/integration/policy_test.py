#!/usr/bin/python3
"""Scheduling policies, from outside: with one place for all, who is served when."""
import threading
import time
import unittest

from kv_cache_test import prompt_of
from quire_server import Server, api, failure_of, generate, server_info, wait_until_idle


class PolicyTest(unittest.TestCase):

    def order_of(self, policy, requests, *flags):
        """The requests in the order in which they end. They arrive in theirs, behind a long one."""
        ended = []
        with Server(f"--scheduling-policy={policy}", "--max-num-seqs=1", *flags) as server, \
                server.channel() as channel:
            info = server_info(channel)

            # Long enough that the order in which the threads here wake up is that of the server.
            def ask(name, max_tokens=200, **more):
                generate(channel, api.GenerateRequest(
                    token_ids=prompt_of(info, 8), stopping={"max_tokens": max_tokens,
                                                            "ignore_eos": True}, **more))
                ended.append(name)

            threads = []
            for num_waiting, (name, more) in enumerate([("first", {"max_tokens": 1500}), *requests]):
                threads.append(threading.Thread(target=ask, args=(name,), kwargs=more))
                threads[-1].start()
                while True:
                    info_now = server_info(channel)
                    if info_now.num_waiting_requests + info_now.num_running_requests > num_waiting:
                        break
                    time.sleep(0.001)
            for thread in threads:
                thread.join()
            wait_until_idle(server)
        self.assertEqual(len(ended), len(requests) + 1)
        return ended

    def test_the_urgent_are_served_first_and_take_the_place_of_others(self):
        order = self.order_of("priority", [("low", {"priority": 5}), ("late", {}),
                                           ("urgent", {"priority": -5})],
                              "--priority-ageing=3600")
        self.assertEqual(order, ["urgent", "first", "late", "low"])

    def test_without_ageing_priorities_are_nothing(self):
        order = self.order_of("priority", [("low", {"priority": 5}), ("urgent", {"priority": -5})],
                              "--priority-ageing=0")
        self.assertEqual(order, ["first", "low", "urgent"])

    def test_tenants_take_turns(self):
        order = self.order_of("fair", [("a1", {"tenant": "a"}), ("a2", {"tenant": "a"}),
                                       ("a3", {"tenant": "a"}), ("b1", {"tenant": "b"}),
                                       ("b2", {"tenant": "b"})])
        self.assertEqual(order, ["first", "a1", "b1", "a2", "b2", "a3"])

    def test_a_priority_that_nobody_asks_for_is_refused(self):
        with Server() as server, server.channel() as channel:
            with failure_of() as failures:
                generate(channel, api.GenerateRequest(token_ids={"ids": [300]}, priority=1))
            self.assertEqual(failures[0].reason, "PRIORITY")


if __name__ == "__main__":
    unittest.main()
