"""Faults of nodes: a node loses its power or its network, and comes back."""
import time

import placement
from step import check, multi_pod, servers, step

POWER = ("kill_node", "start_node")
SCHEDULERS = "quire-schedulers"
NOTICED_SECONDS = 120  # upper bound; the control plane calls a silent node unreachable after 40 to 50 s
FLOW_SECONDS = 60  # upper bound from then until all streams have tokens again
CUT_OFF_SECONDS = 120


def nodes(scene):
    """Returns (the victim node, the other node)."""
    return scene.options.victim_node, scene.node_of_load()


def with_active_scheduler(scene):
    victim, other = nodes(scene)
    placement.place_ranks(scene.install, [other, other])
    placement.place_schedulers(scene.install, victim, other)


def with_rank(scene):
    victim, other = nodes(scene)
    placement.place_ranks(scene.install, [other, victim])
    placement.place_schedulers(scene.install, other, victim)


def with_scheduler_and_rank(scene):
    victim, other = nodes(scene)
    placement.place_ranks(scene.install, [victim, other])
    placement.place_schedulers(scene.install, victim, other)


def with_server(scene):
    placement.place_servers(scene.install, nodes(scene))


def wait_unreachable(scene, silent_since):
    """Waits until the control plane calls the victim node unreachable, and notes the delay. Returns the time then."""
    node = scene.options.victim_node
    scene.cluster.wait(lambda: not scene.cluster.is_node_ready(node), NOTICED_SECONDS, f"{node} is unreachable")
    at = time.monotonic()
    scene.notes.append(f"unreachable after {at - silent_since:.0f} s")
    return at


def wait_for_node(scene):
    """Waits until the victim node is back, and the pods that ran there before are gone."""
    node = scene.options.victim_node
    scene.cluster.wait(lambda: scene.cluster.is_node_ready(node), 180, f"{node} is ready")
    scene.wait_ended(180)


def wait_flowing(scene, unreachable):
    """Checks that every client has tokens again within FLOW_SECONDS after the node was called unreachable."""
    scene.cluster.wait(lambda: scene.load.has_flowed_since(unreachable), 180, "tokens flow again")
    seconds = time.monotonic() - unreachable
    scene.notes.append(f"tokens {seconds:.0f} s later")
    check(seconds <= FLOW_SECONDS,
          f"tokens flow {seconds:.0f} s after the node was called unreachable (limit {FLOW_SECONDS} s)")


def kill_node(scene):
    """The victim node loses its power. Kubernetes replaces its pods on the other node before the victim comes back."""
    node = scene.options.victim_node
    scene.disturb()
    scene.machine.kill_node(node)
    silent_since = time.monotonic()
    try:
        unreachable = wait_unreachable(scene, silent_since)
        wait_flowing(scene, unreachable)
        scene.wait_ready()
    finally:
        scene.machine.start_node(node)
    wait_for_node(scene)


@step(servers, needs=POWER, prepare=with_server)
def kill_node_of_server(scene):
    kill_node(scene)


@step(multi_pod, needs=POWER, prepare=with_active_scheduler, longest_gap_s=20, service=SCHEDULERS)
def kill_node_of_scheduler(scene):
    """The standby takes over before Kubernetes notices the dead node."""
    kill_node(scene)


@step(multi_pod, needs=POWER, prepare=with_rank)
def kill_node_of_rank(scene):
    kill_node(scene)


@step(multi_pod, needs=POWER, prepare=with_scheduler_and_rank)
def kill_node_of_scheduler_and_rank(scene):
    kill_node(scene)


def cut_node_off(scene):
    """The victim node loses its network, and comes back with its old pods still running and already replaced."""
    node = scene.options.victim_node
    scene.disturb()
    scene.machine.cut_node(node)
    silent_since = time.monotonic()
    try:
        unreachable = wait_unreachable(scene, silent_since)
        wait_flowing(scene, unreachable)
        time.sleep(max(0.0, silent_since + CUT_OFF_SECONDS - time.monotonic()))
        scene.wait_ready()
    finally:
        scene.machine.mend_node(node)
    wait_for_node(scene)


@step(servers, needs=("cut_node", "mend_node"), prepare=with_server)
def cut_node_of_server_off(scene):
    cut_node_off(scene)


@step(multi_pod, needs=("cut_node", "mend_node"), prepare=with_scheduler_and_rank)
def cut_node_of_scheduler_and_rank_off(scene):
    cut_node_off(scene)
