#!/usr/bin/python3
"""A run that lost something, or tested nothing, is told from a good one."""
import copy
import os
import tempfile
import unittest

import report
import standstill

LOG = """2026-11-23T10:00:00.000Z INFO worker group ready epoch=1
2026-11-23T10:00:01.000Z WARNING the scheduling loop was slow turn_ms={} cpu_ms=9 cpu_wait_ms={} \
longest_duty=plan longest_duty_ms=150
2026-11-23T10:00:02.000Z WARNING worker group lost epoch=1"""


def good_round():
    def gap(kind):
        return {"kind": kind, "num_streams": 32, "gap": 1.0, "silence": 1.5, "pauses": [1.5, 2.0]}

    return report.Round(seed=1, kinds={"kill": 2, "cut": 1, "garbage": 1}, minutes=1.0,
                        num_calls=50, num_tokens=5000, losses={}, examples=[],
                        gaps=[gap("kill"), gap("kill"), gap("cut"), gap("garbage")],
                        counts={"epochs begun": 3, "num_prefix_hit_tokens": 9,
                                "num_swap_preemptions": 4, "exit code of serve": 0, "turns": 7},
                        proxy={"held": 5, "spoiled": 2}, replay="identical: all",
                        slow_turns=standstill.slow_turns(LOG.format(150, 50)))


class ReportTest(unittest.TestCase):

    def wrong(self, change, judges_time=False):
        done = copy.deepcopy(good_round())
        change(done)
        return report.faults_of(done, judges_time)

    def test_a_good_round_has_no_fault(self):
        self.assertEqual(self.wrong(lambda done: None, judges_time=True), [])

    def test_each_fault_of_a_round_is_named(self):
        for change, named in (
                (lambda done: done.losses.update({"altered": 1}), "1 x altered"),
                (lambda done: done.gaps[2].update({"num_streams": 0}), "cut: no stream"),
                (lambda done: done.proxy.update({"held": 0}), "nothing in cut"),
                (lambda done: done.proxy.clear(), "nothing in garbage"),
                (lambda done: done.counts.update({"epochs begun": 1}), "too few epochs"),
                (lambda done: done.counts.update({"num_swap_preemptions": 0}), "no pressure"),
                (lambda done: done.counts.pop("num_prefix_hit_tokens"), "no pressure"),
                (lambda done: done.counts.update({"exit code of serve": 1}), "serve ended with 1"),
                (lambda done: done.counts.update({"lost survivors": 1}), "1 ranks ended with"),
                (lambda done: done.counts.update({"weights read again": 2}), "2 ranks that lived"),
                (lambda done: done.counts.pop("turns"), "no turn of the scheduling loop"),
                (lambda done: setattr(done, "slow_turns", standstill.slow_turns(LOG.format(150, 49))),
                 "stood still for 101 ms: turn_ms=150"),
                (lambda done: setattr(done, "slow_turns", standstill.slow_turns(LOG.format(101, "unknown"))),
                 "stood still for 101 ms: turn_ms=101"),
                (lambda done: setattr(done, "replay", "DIFFERENT: x"), "does not replay")):
            self.assertIn(named, "; ".join(self.wrong(change)))

    def test_a_gap_beyond_the_target_counts_only_where_time_is_judged(self):
        def be_slow(done):
            done.gaps[1]["gap"] = 3.5

        self.assertEqual(self.wrong(be_slow), [])
        self.assertIn("kill: gap of 3.50 s", self.wrong(be_slow, judges_time=True)[0])

    def test_rounds_come_back_from_their_file_and_add_up(self):
        with tempfile.TemporaryDirectory(prefix="quire-test-") as folder:
            path = os.path.join(folder, "results")
            self.assertEqual(report.read_rounds(path), [])
            for _ in range(2):
                report.append_round(path, good_round())
            rounds = report.read_rounds(path)

        self.assertEqual(rounds, [good_round()] * 2)
        both = report.merged(rounds)
        self.assertEqual((both.kinds["kill"], both.num_calls, both.proxy["held"]), (4, 100, 10))
        self.assertEqual(report.gap_rows(both)["kill"]["faults"], 4)
        text = report.text_of(both, [])
        self.assertIn("| kill | 4 | 128 | 1.00 / 1.00 / 1.00 |", text)
        self.assertIn("2 turns over 100 ms, the longest standstill 100 ms: turn_ms=150", text)


if __name__ == "__main__":
    unittest.main()
