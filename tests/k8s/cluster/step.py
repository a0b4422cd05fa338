"""A step disturbs a running installation under load."""
import time
from dataclasses import dataclass, field
from typing import Any, Callable


@dataclass(frozen=True)
class Step:
    name: str
    run: Callable
    suits: Callable  # suits(variant): whether the step makes sense for a Variant
    needs: tuple = ()  # names of COMMANDS in machine.py, without which the step is left out
    prepare: Callable | None = None  # prepare(scene) is called before the load begins
    longest_gap_s: float | None = None  # a longer gap in a stream fails the step; None: no bound
    service: str | None = None  # the Service that clients dial; None: the overlay's own


STEPS = {}


def step(suits, **options):
    """Decorator that adds a function to STEPS, under the function's name with hyphens for underscores."""
    def add(run):
        name = run.__name__.replace("_", "-")
        STEPS[name] = Step(name=name, run=run, suits=suits, **options)
        return run
    return add


def anywhere(_):
    return True


def servers(variant):
    return not variant.is_multi_pod


def multi_pod(variant):
    return variant.is_multi_pod


def secured(variant):
    return variant.is_secured


class CheckFailed(Exception):
    """The cluster did not behave as the step claims."""


def check(holds, text):
    if not holds:
        raise CheckFailed(text)


@dataclass
class Scene:
    """The objects with which a run of a step works, and the run's results."""
    cluster: Any
    install: Any
    machine: Any
    options: Any
    load: Any = None
    begin: float = field(default_factory=time.monotonic)  # time of the latest disturbance
    first_begin: float | None = None
    ready_seconds: float = 0.0  # longest time from a disturbance until all was ready again
    notes: list = field(default_factory=list)

    def disturb(self):
        """Notes the time. Call before each disturbance: gaps count from the first, ready_seconds from the latest."""
        self.begin = time.monotonic()
        if self.first_begin is None:
            self.first_begin = self.begin

    def wait_ready(self, seconds=300):
        self.ready_seconds = max(self.ready_seconds, self.install.wait_ready(self.begin, seconds))

    def wait_ended(self, seconds=120):
        """Waits until all terminating pods have ended, so that the run includes the streams that they break."""
        self.cluster.wait(lambda: not any(pod.is_terminating for pod in self.cluster.pods()), seconds,
                          "old pods end")
        self.install.wait_ready(self.begin)

    def node_of_load(self):
        """Returns a node that no step kills: the first one other than the victim node."""
        return next(each for each in self.cluster.node_names() if each != self.options.victim_node)
