"""Turns in which a server's scheduling loop stood still, by the log of its scheduler.

The loop warns of each turn over 100 ms (scheduler/loop/turn_watch.h). A machine with too few processors makes
turns long too, so the time in which the loop's thread waited for a processor is taken off.
"""
import re

MAX_STANDSTILL_MS = 100
SLOW_TURN = re.compile(r"^\S+ WARNING the scheduling loop was slow (.*)$", re.M)


def slow_turns(log):
    """The turns over 100 ms: the fields of their lines, by name."""
    return [dict(field.split("=", 1) for field in line.split()) for line in SLOW_TURN.findall(log)]


def standstill_ms(turn):
    wait_ms = turn["cpu_wait_ms"]
    return int(turn["turn_ms"]) - (0 if wait_ms == "unknown" else int(wait_ms))


def text_of(turn):
    return " ".join(f"{name}={value}" for name, value in turn.items())


def faults_of(turns):
    """In words; empty: it never stood still for too long."""
    return [f"the scheduling loop stood still for {standstill_ms(turn)} ms: {text_of(turn)}" for turn in turns
            if standstill_ms(turn) > MAX_STANDSTILL_MS]


def longest_of(turns):
    """In words."""
    if not turns:
        return f"no turn over {MAX_STANDSTILL_MS} ms"
    longest = max(turns, key=standstill_ms)
    return (f"{len(turns)} turns over {MAX_STANDSTILL_MS} ms, the longest standstill "
            f"{standstill_ms(longest)} ms: {text_of(longest)}")
