"""Pods on the nodes where a step needs them, by cordons."""
import contextlib


@contextlib.contextmanager
def only(cluster, node):
    """New pods come to this node alone."""
    others = [each for each in cluster.node_names() if each != node]
    for each in others:
        cluster.kubectl("cordon", each)
    try:
        yield
    finally:
        for each in others:
            cluster.kubectl("uncordon", each)


def replace(install, pod, node):
    """Deletes a pod. Its successor comes to the node."""
    with only(install.cluster, node):
        install.cluster.delete_pod(pod)
        install.cluster.wait(lambda: all(each.uid != pod.uid for each in install.cluster.pods()), 90,
                             f"{pod.name} ends")
        install.wait_ready(0.0)


def place_ranks(install, nodes):
    """nodes: of each rank, in their order."""
    for number, node in enumerate(nodes):
        pod = install.rank(number)
        if pod.node != node:
            replace(install, pod, node)


def place_schedulers(install, active_node, standby_node):
    """The two schedulers of multi-pod, one after the other: of two that start together either may become active."""
    cluster = install.cluster
    if install.active().node == active_node and [each.node for each in install.standbys()] == [standby_node]:
        return
    cluster.kubectl("scale", "deployment/quire-scheduler", "--replicas=0")
    cluster.wait(lambda: not cluster.pods("server"), 90, "schedulers end")
    for number, node in enumerate([active_node, standby_node]):
        with only(cluster, node):
            cluster.kubectl("scale", "deployment/quire-scheduler", f"--replicas={number + 1}")
            cluster.wait(lambda: len(install.pods("server")) == number + 1, 60, "a scheduler starts")
            install.wait_ready(0.0)
    found = install.active().node, install.standbys()[0].node
    if found != (active_node, standby_node):
        raise RuntimeError(f"schedulers are on {found}, not on {(active_node, standby_node)}")


def place_servers(install, nodes):
    """Servers of the overlays of one pod, one a node."""
    taken = set()
    for pod in install.pods("server"):
        if pod.node in taken:
            node = next(each for each in nodes if each not in taken)
            replace(install, pod, node)
            taken.add(node)
        taken.add(pod.node)


def with_new_pods(scene):
    """A kubelet waits longer before each further start of a container, up to five minutes."""
    cluster = scene.cluster
    old = {pod.uid: pod for pod in cluster.pods() if pod.num_restarts > 0}
    for pod in old.values():
        cluster.delete_pod(pod, "--grace-period=1")
    cluster.wait(lambda: all(pod.uid not in old for pod in cluster.pods()), 90, "old pods end")
    scene.install.wait_ready(0.0)
