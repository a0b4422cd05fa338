"""Steps that harm networks: links between pods, a node's link to the control plane, the API server."""
import time

from cluster import ClusterError
from placement import with_new_pods
from step import anywhere, check, multi_pod, step

EVERYBODY = "0.0.0.0/0"
SCHEDULERS = "quire-schedulers"
CUT = ("cut", "mend")


def cut_for(scene, one, other, seconds, is_cut=lambda: True):
    """is_cut: returns whether the cut shows. It is asked at the end of the cut."""
    scene.disturb()
    scene.machine.cut(one, other)
    try:
        time.sleep(seconds)
        check(is_cut(), f"nothing shows that the link between {one} and {other} was cut")
    finally:
        scene.machine.mend(one, other)
    scene.wait_ready()


def cut_scheduler_from_rank(scene, seconds):
    """Cuts the active scheduler from rank 1. The other scheduler takes over, else the link was not cut."""
    pod = scene.install.active()
    cut_for(scene, pod.ip, scene.install.rank(1).ip, seconds)
    active = scene.install.active().name
    check(active != pod.name, f"{active} stayed the active scheduler for {seconds} s without a link to rank 1")


@step(multi_pod, needs=CUT, prepare=with_new_pods)
def cut_scheduler_from_rank_10_s(scene):
    cut_scheduler_from_rank(scene, 10)


@step(multi_pod, needs=CUT, prepare=with_new_pods)
def cut_scheduler_from_rank_60_s(scene):
    cut_scheduler_from_rank(scene, 60)


def cut_ranks(scene, seconds):
    """Cuts the link between the ranks. Without it no client gets tokens."""
    cut_for(scene, scene.install.rank(0).ip, scene.install.rank(1).ip, seconds,
            lambda: not scene.load.has_flowed_since(scene.begin + 2))


@step(multi_pod, needs=CUT, prepare=with_new_pods)
def cut_ranks_10_s(scene):
    cut_ranks(scene, 10)


@step(multi_pod, needs=CUT, prepare=with_new_pods)
def cut_ranks_60_s(scene):
    cut_ranks(scene, 60)


@step(multi_pod, needs=CUT, prepare=with_new_pods, longest_gap_s=10, service=SCHEDULERS)
def cut_off_active_scheduler(scene):
    """Cuts the active scheduler off from ranks, clients and probes. The other scheduler takes over."""
    pod = scene.install.active()
    cut_for(scene, pod.ip, EVERYBODY, 30, lambda: scene.install.active().uid != pod.uid)


@step(multi_pod, needs=CUT, prepare=with_new_pods, longest_gap_s=10, service=SCHEDULERS)
def cut_active_scheduler_from_ranks(scene):
    """Clients and probes still reach the scheduler. It gives up its streams, and the other scheduler serves."""
    pod = scene.install.active()
    ranks = scene.install.pods("worker")
    scene.disturb()
    for rank in ranks:
        scene.machine.cut(pod.ip, rank.ip)
    try:
        time.sleep(20)
        active = [each.name for each in scene.install.pods("server") if each.is_ready]
        check(len(active) == 1 and pod.name not in active,
              f"ready schedulers: {active}; {pod.name} was cut off from the ranks")
    finally:
        for rank in ranks:
            scene.machine.mend(pod.ip, rank.ip)
    scene.wait_ready()


def answers(scene, path):
    """Returns whether the API server answers."""
    try:
        return scene.cluster.kubectl("get", f"--raw={path}", seconds=5) != ""
    except ClusterError:
        return False


def check_undisturbed(scene):
    """Checks that every client has had tokens of late, and that no stream was interrupted."""
    check(scene.load.has_flowed_since(time.monotonic() - 10), "a client has had no tokens for 10 s")
    num_resumed = scene.load.tally(scene.begin).num_resumed
    check(num_resumed == 0, f"{num_resumed} streams were interrupted")


def cut_node_from_control_plane(scene, seconds):
    """Cuts a node from the control plane. The node's pods and their links stay."""
    node = scene.options.victim_node
    cut_for(scene, scene.cluster.node_address(node), scene.options.control_plane, seconds,
            lambda: not answers(scene, f"/api/v1/nodes/{node}/proxy/healthz"))
    check_undisturbed(scene)
    scene.cluster.wait(lambda: scene.cluster.is_node_ready(node), 120, f"{node} is ready")
    scene.wait_ready()


@step(anywhere, needs=CUT)
def cut_node_from_control_plane_10_s(scene):
    cut_node_from_control_plane(scene, 10)


@step(anywhere, needs=CUT)
def cut_node_from_control_plane_60_s(scene):
    cut_node_from_control_plane(scene, 60)


@step(anywhere, needs=("stop_api", "start_api"))
def api_server_down_60_s(scene):
    """Stops the API server. Tokens do not pass through it, so no client is disturbed."""
    scene.disturb()
    scene.machine.stop_api()
    try:
        time.sleep(60)
        check(not answers(scene, "/readyz"), "the API server was not stopped")
        check_undisturbed(scene)
    finally:
        scene.machine.start_api()
    scene.cluster.wait(lambda: answers(scene, "/readyz"), 120, "the API server answers")
    scene.wait_ready()
