"""The faults of a run and their moments, from one seed."""
import dataclasses
import random

PROXY_CUTS = ("cut", "cut-to-worker", "cut-to-scheduler")
PROXY_NOISE = ("delay", "reset", "garbage")
# Cuts between hosts (hosts.py): a rank's host is cut off, two such hosts are parted, or the scheduler's
# host is cut off.
CABLE_CUTS = ("host-cut", "part", "host-cut", "scheduler-cut")
LINK_FAULTS = (*PROXY_CUTS, *PROXY_NOISE, *CABLE_CUTS, "long-part")
SCHEDULER_FAULTS = ("scheduler-kill", "scheduler-stop")
# Weight of a fault in the run's time: the time to recover from it, and some quiet. A fault begins at a
# random moment of its time, so the next fault sometimes begins before recovery.
WEIGHTS = {"kill": 1.0, "kill-in-exchange": 1.4, "pause": 1.2, "stop": 2.5, "scheduler-kill": 1.5,
           "scheduler-stop": 8.0,
           **dict.fromkeys(PROXY_CUTS, 1.3), **dict.fromkeys(PROXY_NOISE, 1.0),
           **dict.fromkeys(CABLE_CUTS, 1.6), "long-part": 3.5}
SHARE_OF_RANDOM_MOMENTS = 0.6


@dataclasses.dataclass(frozen=True)
class Fault:
    kind: str
    at_s: float  # from the start of the run
    seconds: float  # how long it lasts; 0: an instant, or until the process is replaced
    rank: int = 0  # the rank that it meets; faults of the scheduler ignore it


def fault_kinds(kills, stops, cuts, noise, scheduler_kills, scheduler_stops=0, num_ranks=1):
    """Returns kinds, one entry a fault. Every second stop is a pause, which SIGCONT ends. With several
    ranks every second kill meets a rank that waits for the others in an exchange."""
    of_kills = ("kill", "kill-in-exchange") if num_ranks > 1 else ("kill",)
    kinds = [of_kills[i % len(of_kills)] for i in range(kills)]
    kinds += ["scheduler-kill"] * scheduler_kills + ["scheduler-stop"] * scheduler_stops
    kinds += [("stop", "pause")[i % 2] for i in range(stops)]
    kinds += [PROXY_CUTS[i % 3] for i in range(cuts)]
    return kinds + [PROXY_NOISE[i % 3] for i in range(noise)]


def host_fault_kinds(kills, stops, cuts, long_parts):
    """Returns kinds for ranks on several hosts. A long part outlasts the timeout of a step."""
    kinds = fault_kinds(kills, stops, 0, 0, 0, num_ranks=2)
    kinds += [CABLE_CUTS[i % len(CABLE_CUTS)] for i in range(cuts)]
    return kinds + ["long-part"] * long_parts


def make_script(seed, kinds, duration_s, num_ranks=1):
    """Returns faults in order of time. Equal arguments give equal scripts."""
    chance, rank_chance = random.Random(seed), random.Random(f"{seed} ranks")
    kinds = list(kinds)
    chance.shuffle(kinds)
    second = duration_s / sum(WEIGHTS[kind] for kind in kinds)
    faults, start = [], 0.0
    for kind in kinds:
        length = WEIGHTS[kind] * second
        moment = start + chance.uniform(0, SHARE_OF_RANDOM_MOMENTS) * length
        faults.append(Fault(kind, round(moment, 3), round(_seconds(kind, chance), 3),
                            rank_chance.randrange(num_ranks)))
        start += length
    return faults


def _seconds(kind, chance):
    if kind == "pause":
        return chance.choice((0.3, 1.0, 2.0)) * chance.uniform(0.5, 1.5)
    if kind == "long-part":
        return chance.uniform(6, 8)
    if kind in PROXY_CUTS or kind in CABLE_CUTS:
        # From a flap that no peer notices to a cut that outlasts every timeout of the link.
        return chance.choice((0.2, 1.0, 3.0)) * chance.uniform(0.5, 1.5)
    return chance.uniform(0.3, 1.0) if kind in PROXY_NOISE else 0.0
