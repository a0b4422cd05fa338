"""Reads the clients' logs, and nothing else. Counts the clients' losses.

A call is correct if it has one end, OK, and its stream (tokens, positions, bits of log-probabilities,
text, ends of sequences) equals the stream of the same request on an undisturbed server.

Gaps: three figures for each fault.
  silence  the longest time in which no stream at all got anything
  gap      the silence up to the last epoch that began in it, or all of it if no epoch began. It
           leaves out recomputation, since a worker that has begun an epoch computes.
  pause    the longest time in which one stream got nothing. It includes recomputation, and the wait
           for a turn and for blocks. Streams with no message before the fault are left out.
A time counts from the beginning of its fault. It counts from the fault's end if the fault ends
without help and leaves no other way to a worker meanwhile (a cut link). A time that reaches into the
next fault is counted there.
"""
import bisect
import collections
import json
import math

# End of a call whose connection broke or which a full server refused. The client asked again, so that
# this call may lack tokens and ends.
BROKEN = "BROKEN"
KINDS_OF_LOSS = ("lost", "doubled", "altered", "no end", "two ends", "error")


class Answer:
    """The content of one call's stream, and the losses found in it."""

    def __init__(self, request):
        self.request = request
        self.started = None
        self.tokens = collections.defaultdict(list)
        self.logprobs = collections.defaultdict(list)
        self.text = collections.defaultdict(str)
        self.finished = {}
        self.end = None
        self.losses = []  # (kind, what)

    def add(self, line):
        if self.end is not None:
            self.losses.append(("two ends" if "end" in line else "doubled", "after the end"))
            return
        if "started" in line:
            if self.started is not None:
                self.losses.append(("doubled", "started"))
            self.started = line["started"]
        if "chunk" in line:
            self._add_chunk(*line["chunk"])
        if "finished" in line:
            self._add_finished(*line["finished"])
        if "end" in line:
            self.end = line["end"]
            if self.end not in ("OK", BROKEN):
                self.losses.append(("error", f"{line['end']} {line.get('reason', '')}: "
                                             f"{line.get('message', '')}"))

    def _add_chunk(self, index, first_position, token_ids, logprobs, text):
        tokens = self.tokens[index]
        where = f"sequence {index}: position {first_position} after {len(tokens)} tokens"
        if first_position > len(tokens):
            self.losses.append(("lost", where))
        elif first_position < len(tokens) or index in self.finished:
            self.losses.append(("doubled", where))
        tokens.extend(token_ids)
        self.logprobs[index].extend(logprobs)
        self.text[index] += text

    def _add_finished(self, index, reason, num_output_tokens, matched_stop, text, score):
        if index in self.finished:
            self.losses.append(("two ends", f"sequence {index}"))
        self.finished[index] = [reason, num_output_tokens, matched_stop, score]
        self.text[index] += text

    def compare(self, expected):
        """Notes what differs from the undisturbed answer. Once, when no line is left."""
        if self.end is None:
            self.losses.append(("no end", "of the call"))
        if self.started is not None and self.started != expected.started:
            self.losses.append(("altered", f"started: {self.started}, not {expected.started}"))
        for index in sorted(expected.tokens.keys() | self.tokens.keys()):
            self._compare_tokens(index, self.tokens[index], expected.tokens[index])
            for name in ("logprobs", "text"):
                got, want = getattr(self, name)[index], getattr(expected, name)[index]
                if got != want[:len(got)] or (self.end == "OK" and len(got) != len(want)):
                    self.losses.append(("altered", f"sequence {index}: {name}"))
        for index in sorted(expected.finished.keys() | self.finished.keys()):
            got, want = self.finished.get(index), expected.finished.get(index)
            if got is None and self.end != BROKEN:
                self.losses.append(("no end", f"of sequence {index}"))
            elif got is not None and got != want:
                self.losses.append(("altered", f"sequence {index}: finished {got}, not {want}"))

    def _compare_tokens(self, index, got, want):
        where = f"sequence {index}: {len(got)} tokens, not {len(want)}"
        if got[:len(want)] != want[:len(got)]:
            self.losses.append(("altered", f"sequence {index}: tokens"))
        elif len(got) < len(want) and self.end != BROKEN:
            self.losses.append(("lost", where))
        elif len(got) > len(want):
            self.losses.append(("doubled", where))


def read_answers(path):
    """Yields (call, answer, times of its lines): when the call ended, or at the end of the log.

    A line that a client did not write to its end is the last one of its log; it says nothing.
    """
    answers, times = {}, {}
    with open(path, encoding="ascii") as file:
        for text in file:
            if not text.endswith("\n"):
                break
            line = json.loads(text)
            call = line["call"]
            if "request" in line:
                answers[call] = Answer(line["request"])
                times[call] = []
            else:
                answers[call].add(line)
            times[call].append(line["t"])
    for call, answer in answers.items():
        yield call, answer, times[call]


class Verdict:
    """Counts of losses, a few examples, and the times of all messages."""

    def __init__(self):
        self.num_calls = 0
        self.num_broken = 0
        self.num_tokens = 0
        self.losses = collections.Counter()
        self.examples = []
        self.calls = []  # times of each call, its beginning first, its end last

    def check(self, path, oracle):
        """Compares the calls of one log with the oracle: request number to undisturbed answer."""
        for call, answer, times in read_answers(path):
            answer.compare(oracle[answer.request])
            self.num_calls += answer.end != BROKEN
            self.num_broken += answer.end == BROKEN
            self.num_tokens += sum(len(tokens) for tokens in answer.tokens.values())
            self.calls.append(times)
            for kind, what in answer.losses:
                self.losses[kind] += 1
                if len(self.examples) < 20:
                    self.examples.append(f"{kind}: call {call}, request {answer.request}: {what}")


def read_oracle(path):
    """Returns answers by request number. Raises ValueError if the undisturbed run has losses."""
    oracle = {}
    for call, answer, _ in read_answers(path):
        if answer.losses or answer.end != "OK":
            raise ValueError(f"the undisturbed run failed: call {call}: {answer.losses}")
        oracle[answer.request] = answer
    return oracle


def differences(oracle, other):
    """Yields what differs between the two doors' undisturbed answers: oracle is HTTP's, other gRPC's."""
    for number, answer in oracle.items():
        same = other[number]
        texts = {index: text.encode("latin-1").decode(errors="replace")
                 for index, text in same.text.items()}
        scores = {index: [float.fromhex(one[0]) for one in logprobs]
                  for index, logprobs in same.logprobs.items()}
        for name, got, want in (
                ("tokens", answer.tokens, same.tokens), ("text", answer.text, texts),
                ("logprobs", {index: [one[0] for one in logprobs]
                              for index, logprobs in answer.logprobs.items()}, scores)):
            if dict(got) != dict(want):
                yield f"request {number}: {name}: {dict(got)}, not {dict(want)}"


def longest_silence(times, fault, next_begin):
    """Returns (start, end) of the longest gap across the fault in sorted times, or None if none counts."""
    longest = None
    start = max(0, bisect.bisect_right(times, fault["begin"]) - 1)
    for before, after in zip(times[start:], times[start + 1:]):
        if before >= next_begin:
            break
        if fault["begin"] < after <= next_begin:
            # A gap that ends before fault["from"] has length 0, since a way to a worker was open again.
            silence = (min(after, max(before, fault["from"])), after)
            if longest is None or silence[1] - silence[0] > longest[1] - longest[0]:
                longest = silence
    return longest


def _length(silence):
    return None if silence is None else silence[1] - silence[0]


def _less_recomputation(silence, epochs):
    """`epochs`: when each began, sorted."""
    if silence is None:
        return None
    last = bisect.bisect_left(epochs, silence[1]) - 1
    if last >= 0 and epochs[last] > silence[0]:
        return epochs[last] - silence[0]
    return _length(silence)


def measure_gaps(faults, epochs, calls):
    """Per fault, in order of time: gap, silence, pauses of streams, number of streams under way."""
    everything = sorted(t for times in calls for t in times[1:])  # what servers sent
    measured = []
    for i, fault in enumerate(faults):
        next_begin = faults[i + 1]["begin"] if i + 1 < len(faults) else float("inf")
        under_way = [times for times in calls if times[0] < fault["begin"] < times[-1]]
        pauses = [_length(longest_silence(times, fault, next_begin)) for times in under_way
                  if len(times) > 1 and times[1] < fault["begin"]]
        silence = longest_silence(everything, fault, next_begin)
        measured.append({"kind": fault["kind"], "num_streams": len(under_way),
                         "gap": _less_recomputation(silence, epochs), "silence": _length(silence),
                         "pauses": [pause for pause in pauses if pause is not None]})
    return measured


def quantile(values, share):
    """The smallest value that at least this share of the values does not exceed."""
    ordered = sorted(values)
    return ordered[max(0, math.ceil(len(ordered) * share) - 1)] if ordered else None
