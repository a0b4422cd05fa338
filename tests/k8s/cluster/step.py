"""A step: something that is done to a running installation, under load."""
import time
from dataclasses import dataclass, field
from typing import Any, Callable


@dataclass(frozen=True)
class Step:
    name: str
    run: Callable
    suits: Callable  # of a Variant
    needs: tuple = ()  # the commands of machine.py
    prepare: Callable | None = None  # before the load begins
    longest_gap_s: float | None = None  # where it is promised
    service: str | None = None  # that clients dial, where it is not the overlay's own


STEPS = {}


def step(suits, **options):
    """Makes a function a step, named as the function with hyphens."""
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
    """Something is not as the step claims."""


def check(holds, text):
    if not holds:
        raise CheckFailed(text)


@dataclass
class Scene:
    """What a step works with, and what it notes."""
    cluster: Any
    install: Any
    machine: Any
    options: Any
    load: Any = None
    begin: float = field(default_factory=time.monotonic)  # of the latest disturbance
    first_begin: float | None = None
    ready_seconds: float = 0.0  # the longest
    notes: list = field(default_factory=list)

    def disturb(self):
        """What follows disturbs."""
        self.begin = time.monotonic()
        if self.first_begin is None:
            self.first_begin = self.begin

    def wait_ready(self, seconds=300):
        self.ready_seconds = max(self.ready_seconds, self.install.wait_ready(self.begin, seconds))

    def wait_ended(self, seconds=120):
        """Old pods have drained: streams that they still had are interrupted by then."""
        self.cluster.wait(lambda: not any(pod.is_terminating for pod in self.cluster.pods()), seconds,
                          "old pods end")
        self.install.wait_ready(self.begin)

    def node_of_load(self):
        """The suite runs beside the control plane: this node is never killed."""
        return next(each for each in self.cluster.node_names() if each != self.options.victim_node)
