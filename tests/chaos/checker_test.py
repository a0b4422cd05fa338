#!/usr/bin/python3
"""The checker finds every kind of loss in a doctored log, and nothing in a good one."""
import copy
import json
import os
import tempfile
import unittest

from checker import BROKEN, Verdict, differences, longest_silence, measure_gaps, quantile, read_oracle


def lines_of_call(call, cuts=(2, 5)):
    """A good call of request 7: two sequences, the first in pieces of the given lengths."""
    tokens, text = [11, 12, 13, 14, 15, 16], "abcdef"
    logprobs = [[(-0.5 - k).hex(), [k, (-0.25 * k).hex()]] for k in range(6)]
    lines = [{"call": call, "request": 7}]
    for start, end in zip((0, *cuts), (*cuts, 6)):
        lines.append({"call": call, "chunk": [0, start, tokens[start:end], logprobs[start:end],
                                              text[start:end]]})
    lines[1]["started"] = 30
    lines[-1]["finished"] = [0, 2, 6, "", "!", 0.0.hex()]
    lines.append({"call": call, "chunk": [1, 0, [21], [[(-1.0).hex()]], "x"],
                  "finished": [1, 1, 1, "x", "", 0.0.hex()]})
    lines.append({"call": call, "end": "OK"})
    return [{"t": float(k), **line} for k, line in enumerate(lines)]


class CheckerTest(unittest.TestCase):

    def setUp(self):
        folder = tempfile.TemporaryDirectory(prefix="quire-test-")
        self.addCleanup(folder.cleanup)
        self.folder = folder.name
        self.oracle = read_oracle(self.written(lines_of_call("oracle.7", cuts=(1, 2))))

    def written(self, lines, tail=""):
        path = os.path.join(self.folder, "log")
        with open(path, "w", encoding="ascii") as file:
            file.writelines(json.dumps(line) + "\n" for line in lines)
            file.write(tail)
        return path

    def losses(self, lines, tail=""):
        verdict = Verdict()
        verdict.check(self.written(lines, tail), self.oracle)
        return verdict.losses

    def doctored(self, change):
        lines = copy.deepcopy(lines_of_call("0.0.0"))
        change(lines)
        return self.losses(lines)

    def test_a_good_log_has_no_loss_however_its_messages_are_cut(self):
        for cuts in ((2, 5), (1, 2), (3, 4)):
            self.assertFalse(self.losses(lines_of_call("0.0.0", cuts)))

    def test_two_calls_whose_lines_alternate_are_told_apart(self):
        pairs = zip(lines_of_call("0.0.0"), lines_of_call("0.1.0", (3, 4)))

        self.assertFalse(self.losses([line for pair in pairs for line in pair]))

    def test_a_lost_token_is_found(self):
        def lose_message(lines):
            del lines[2]

        def lose_last_token(lines):
            for column in (2, 3):
                lines[3]["chunk"][column].pop()

        def lose_all_of_a_sequence(lines):
            del lines[4]

        for change in (lose_message, lose_last_token, lose_all_of_a_sequence):
            self.assertGreater(self.doctored(change)["lost"], 0, change.__name__)

    def test_a_doubled_token_is_found(self):
        def repeat_message(lines):
            lines.insert(3, copy.deepcopy(lines[2]))

        def go_on_after_the_end(lines):
            lines.insert(4, {"t": 3.5, "call": "0.0.0", "chunk": [0, 6, [17], [["0x0p0"]], ""]})

        def say_nothing_after_the_end(lines):
            lines.insert(4, {"t": 3.5, "call": "0.0.0", "chunk": [0, 6, [], [], ""]})

        def start_twice(lines):
            lines[2]["started"] = 30

        for change in (repeat_message, go_on_after_the_end, say_nothing_after_the_end,
                       start_twice):
            self.assertGreater(self.doctored(change)["doubled"], 0, change.__name__)

    def test_an_altered_token_bit_text_or_end_is_found(self):
        def alter_token(lines):
            lines[2]["chunk"][2][1] += 1

        def alter_logprob_bit(lines):
            value = float.fromhex(lines[2]["chunk"][3][0][0])
            lines[2]["chunk"][3][0][0] = (value * (1 + 2 ** -23)).hex()

        def alter_other_token_of_logprobs(lines):
            lines[2]["chunk"][3][0][1][0] += 1

        def alter_text(lines):
            lines[2]["chunk"][4] = "xyz"

        def alter_last_text(lines):
            lines[3]["finished"][4] = "?"

        def alter_reason(lines):
            lines[3]["finished"][1] = 1

        def alter_score(lines):
            lines[4]["finished"][5] = "0x1p0"

        def alter_prompt_length(lines):
            lines[1]["started"] = 31

        for change in (alter_token, alter_logprob_bit, alter_other_token_of_logprobs, alter_text,
                       alter_last_text, alter_reason, alter_score, alter_prompt_length):
            self.assertEqual(dict(self.doctored(change)), {"altered": 1}, change.__name__)

    def test_a_missing_end_is_found(self):
        def lose_end_of_call(lines):
            del lines[5]

        def lose_end_of_sequence(lines):
            del lines[3]["finished"]

        for change in (lose_end_of_call, lose_end_of_sequence):
            self.assertGreater(self.doctored(change)["no end"], 0, change.__name__)

    def test_two_ends_are_found(self):
        def end_call_twice(lines):
            lines.append(copy.deepcopy(lines[5]))

        def end_sequence_twice(lines):
            lines[4]["finished"] = copy.deepcopy(lines[3]["finished"])

        for change in (end_call_twice, end_sequence_twice):
            self.assertGreater(self.doctored(change)["two ends"], 0, change.__name__)

    def test_an_error_is_a_loss(self):
        def fail(lines):
            lines[5] = {"t": 5.0, "call": "0.0.0", "end": "UNAVAILABLE", "reason": "NO_WORKERS"}

        self.assertEqual(self.doctored(fail)["error"], 1)

    def test_a_broken_attempt_may_lack_its_rest_and_nothing_else(self):
        def break_it(lines):
            lines[5]["end"] = BROKEN
            del lines[3:5]

        def break_and_alter_it(lines):
            break_it(lines)
            lines[2]["chunk"][2][0] += 1

        def break_and_repeat_it(lines):
            break_it(lines)
            lines.insert(3, copy.deepcopy(lines[2]))

        self.assertFalse(self.doctored(break_it))
        self.assertEqual(dict(self.doctored(break_and_alter_it)), {"altered": 1})
        self.assertGreater(self.doctored(break_and_repeat_it)["doubled"], 0)

    def test_answers_of_two_doors_are_compared(self):
        def of_http(lines):
            for line in lines:
                for one in line.get("chunk", (None,) * 4)[3] or []:
                    one[0] = float.fromhex(one[0])
            return read_oracle(self.written(lines))

        self.assertEqual(list(differences(of_http(lines_of_call("a")), self.oracle)), [])
        lines = lines_of_call("a")
        lines[1]["chunk"][4] = "xy"
        self.assertIn("request 7: text", next(differences(of_http(lines), self.oracle)))

    def test_a_line_cut_short_by_the_end_of_a_client_is_no_line(self):
        lines = lines_of_call("0.0.0")

        losses = self.losses(lines[:-1], tail=json.dumps(lines[-1])[:-5])

        self.assertEqual(dict(losses), {"no end": 1})

    def test_an_oracle_that_failed_is_refused(self):
        lines = lines_of_call("oracle.7")
        lines[-1]["end"] = "INTERNAL"

        with self.assertRaisesRegex(ValueError, "undisturbed run failed"):
            read_oracle(self.written(lines))


class GapTest(unittest.TestCase):

    def test_a_gap_counts_from_the_fault_or_its_end_up_to_the_next_message(self):
        times = [1.0, 2.0, 2.1, 5.0, 5.1, 6.5, 6.6]
        kill = {"begin": 2.5, "from": 2.5}
        cut = {"begin": 2.5, "from": 4.0}

        self.assertEqual(longest_silence(times, kill, float("inf")), (2.5, 5.0))
        self.assertEqual(longest_silence(times, cut, float("inf")), (5.1, 6.5))

    def test_a_gap_that_reaches_into_the_next_fault_is_counted_there(self):
        times = [1.0, 2.0, 9.0, 9.1]
        first, second = {"begin": 3.0, "from": 3.0}, {"begin": 5.0, "from": 5.0}

        self.assertIsNone(longest_silence(times, first, second["begin"]))
        self.assertEqual(longest_silence(times, second, float("inf")), (5.0, 9.0))

    def test_recomputation_is_what_comes_after_the_last_epoch_that_began(self):
        calls = [[0.0, 1.0, 9.0, 9.1]]
        kill = [{"kind": "kill", "begin": 2.0, "from": 2.0}]

        for epochs, gap in (([0.5], 7.0), ([0.5, 4.0], 2.0), ([0.5, 3.0, 6.0, 9.05], 4.0)):
            self.assertAlmostEqual(measure_gaps(kill, epochs, calls)[0]["gap"], gap)

    def test_pauses_are_of_streams_that_had_begun_to_flow(self):
        calls = [[0.0, 1.0, 6.0, 6.1],  # waits 4 s after the fault
                 [0.0, 1.0, 3.0, 6.1],  # 3.1 s
                 [0.0, 6.0],            # no message before it
                 [0.0, 1.0, 1.5]]       # over before it

        gaps = measure_gaps([{"kind": "kill", "begin": 2.0, "from": 2.0}], [], calls)

        self.assertEqual(gaps[0]["num_streams"], 3)
        self.assertEqual(sorted(round(pause, 3) for pause in gaps[0]["pauses"]), [3.1, 4.0])
        self.assertAlmostEqual(gaps[0]["silence"], 3.0)

    def test_quantiles_are_of_the_values(self):
        values = [float(k) for k in range(1, 101)]

        self.assertEqual([quantile(values, share) for share in (0.5, 0.99, 1.0)], [50, 99, 100])
        self.assertIsNone(quantile([], 0.5))


if __name__ == "__main__":
    unittest.main()
