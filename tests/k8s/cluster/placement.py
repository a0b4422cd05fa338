"""Places pods on the nodes where a step needs them, by cordoning the other nodes."""
import contextlib


@contextlib.contextmanager
def only(cluster, node):
    """While the context lasts, Kubernetes places new pods on this node only."""
    others = [each for each in cluster.node_names() if each != node]
    for each in others:
        cluster.kubectl("cordon", each)
    try:
        yield
    finally:
        for each in others:
            cluster.kubectl("uncordon", each)


def replace(install, pod, node):
    """Deletes a pod. Kubernetes places its replacement on the node."""
    with only(install.cluster, node):
        install.cluster.delete_pod(pod)
        install.cluster.wait(lambda: all(each.uid != pod.uid for each in install.cluster.pods()), 90,
                             f"{pod.name} ends")
        install.wait_ready(0.0)


def place_ranks(install, nodes):
    """Moves the ranks to nodes. nodes: one name for each rank, in rank order."""
    for number, node in enumerate(nodes):
        pod = install.rank(number)
        if pod.node != node:
            replace(install, pod, node)


def place_schedulers(install, active_node, standby_node):
    """Places the two schedulers of multi-pod, one after the other. If both started together, either could become
    active."""
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
    """Spreads the servers of an overlay whose server is one pod: at most one server on a node."""
    taken = set()
    for pod in install.pods("server"):
        if pod.node in taken:
            node = next(each for each in nodes if each not in taken)
            replace(install, pod, node)
            taken.add(node)
        taken.add(pod.node)


def with_new_pods(scene):
    """Replaces pods that have restarted. A kubelet waits longer before each further restart of a container, up to five
    minutes, so earlier steps would spoil the times of this one."""
    cluster = scene.cluster
    old = {pod.uid: pod for pod in cluster.pods() if pod.num_restarts > 0}
    for pod in old.values():
        cluster.delete_pod(pod, "--grace-period=1")
    cluster.wait(lambda: all(pod.uid not in old for pod in cluster.pods()), 90, "old pods end")
    scene.install.wait_ready(0.0)
