"""Actions of operators: rollouts, deletions, drains, new certificates, other numbers of replicas."""
import socket
import ssl
import time
import urllib.request
from concurrent import futures

import placement
from cluster import ClusterError
from overlays import container_of
from step import anywhere, check, multi_pod, secured, step

CERTIFICATE_SECONDS = 150  # a kubelet brings a changed Secret to a pod within 60 to 90 s
WORKER_PORT = 50052
GATEWAY_PORT = 8000
STANDBY_METRIC = "quire_scheduler_standby"


@step(anywhere)
def rolling_restart(scene):
    scene.disturb()
    for workload in scene.install.workloads(scene.install.objects):
        scene.cluster.kubectl("rollout", "restart", f"{workload['kind']}/{workload['metadata']['name']}")
    scene.wait_ready()
    scene.wait_ended()


@step(anywhere)
def new_image(scene):
    """All workloads change to the second image at once, and then back."""
    def edit(workload):
        container_of(workload)["image"] = scene.options.second_image

    scene.disturb()
    scene.install.change(edit)
    scene.wait_ready()
    # Reads the spec, because a pod's status may show either name if its node has one image under two names.
    images = {each.data["spec"]["containers"][0]["image"] for each in scene.cluster.pods() if not each.is_terminating}
    check(images == {scene.options.second_image}, f"pods run the images {images}")
    scene.wait_ended()
    scene.disturb()
    scene.install.restore()
    scene.wait_ready()
    scene.wait_ended()


def delete_each(scene, *args):
    for pod in scene.cluster.pods():
        scene.disturb()
        scene.cluster.delete_pod(pod, *args)
        scene.cluster.wait(lambda uid=pod.uid: all(each.uid != uid for each in scene.cluster.pods()), 90,
                           f"{pod.name} ends")
        scene.wait_ready()


@step(anywhere)
def delete_each_pod(scene):
    delete_each(scene)


@step(anywhere)
def force_delete_each_pod(scene):
    delete_each(scene, "--grace-period=0", "--force")


def spread(scene):
    """Places a part of the pods on the victim node, so that a drain evicts something, and the rest on another node."""
    here, there = scene.options.victim_node, scene.node_of_load()
    if scene.install.variant.is_multi_pod:
        placement.place_ranks(scene.install, [there, here])
        placement.place_schedulers(scene.install, here, there)
    else:
        placement.place_servers(scene.install, [here, there])


def drain(scene, node, *args):
    """Checks that no server, or rank, is evicted while another one does not serve."""
    component = "worker" if scene.install.variant.is_multi_pod else "server"
    num = fewest = len(scene.install.pods(component))
    with futures.ThreadPoolExecutor(1) as executor:
        drained = executor.submit(scene.cluster.kubectl, "drain", node, "--ignore-daemonsets", "--delete-emptydir-data",
                                  "--timeout=240s", *args, seconds=260)
        while not drained.done():
            fewest = min(fewest, sum(pod.is_serving for pod in scene.cluster.pods(component)))
            time.sleep(0.5)
    drained.result()
    check(fewest >= num - 1, f"only {fewest} of {num} pods of the component {component} served during the drain")


@step(anywhere, prepare=spread)
def drain_node(scene):
    """`kubectl drain` evicts the pods of the victim node, as the disruption budgets allow."""
    node = scene.options.victim_node
    scene.disturb()
    try:
        drain(scene, node)
        scene.wait_ready()
        left = [pod.name for pod in scene.cluster.pods() if pod.node == node]
        check(not left, f"pods are still on the drained node: {left}")
    finally:
        scene.cluster.kubectl("uncordon", node)


@step(anywhere, prepare=spread)
def drain_every_node(scene):
    """Drains one node after the other, so all pods move. Gateways stay: the suite keeps them off the victim node."""
    for node in scene.cluster.node_names():
        scene.disturb()
        try:
            drain(scene, node, f"--pod-selector={SELECTOR}")
            scene.wait_ready()
        finally:
            scene.cluster.kubectl("uncordon", node)
    scene.wait_ended()


SELECTOR = "app.kubernetes.io/name=quire,app.kubernetes.io/component!=gateway"


def certificate_hash(host, port):
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    with socket.create_connection((host, port), timeout=5) as plain:
        with context.wrap_socket(plain) as connection:
            return hash(connection.getpeercert(binary_form=True))


@step(secured)
def renew_certificates(scene):
    """New connections, to ranks and gateways too, get the new certificates without a restart of any pod. Old
    connections go on."""
    starts = {pod.uid: pod.num_restarts for pod in scene.cluster.pods()}
    host, _, port = scene.install.server().target.rpartition(":")
    ports = [(host, int(port))] + [(pod.ip, WORKER_PORT) for pod in scene.install.pods("worker")]
    ports += [(pod.ip, GATEWAY_PORT) for pod in scene.install.pods("gateway")]
    old = [certificate_hash(*each) for each in ports]
    scene.disturb()
    scene.install.renew_certificates()

    def is_served():
        try:
            return all(certificate_hash(*each) != before for each, before in zip(ports, old))
        except OSError as error:
            raise ClusterError(str(error)) from error

    seconds = scene.cluster.wait(is_served, CERTIFICATE_SECONDS, "servers and ranks use their new certificates")
    scene.notes.append(f"new certificate after {seconds:.0f} s")
    time.sleep(30)  # within this time the kubelets bring the Secret to the other pods too
    scene.wait_ready()
    found = {pod.uid: pod.num_restarts for pod in scene.cluster.pods()}
    check(found == starts, "pods were restarted")
    # The scheduler and a replaced rank make new connections, which use the new certificates only.
    if scene.install.variant.is_multi_pod:
        scene.disturb()
        scene.cluster.delete_pod(scene.install.rank(0))
        scene.wait_ready()


def metric(pod, name):
    with urllib.request.urlopen(f"http://{pod.ip}:8000/metrics", timeout=5) as answer:
        for line in answer.read().decode().splitlines():
            if line.split("{")[0].split(" ")[0] == name:
                return float(line.rpartition(" ")[2])
    return None


@step(multi_pod)
def five_schedulers(scene):
    """`kubectl scale` makes five schedulers. One serves, the others stand by and say so, and one of them takes over."""
    scene.disturb()
    scene.cluster.kubectl("scale", "deployment/quire-scheduler", "--replicas=5")
    scene.wait_ready()
    for pod in scene.install.standbys():
        check(metric(pod, STANDBY_METRIC) == 1, f"{pod.name}: {STANDBY_METRIC} is not 1")
        check("stands by" in scene.cluster.log(pod), f"{pod.name}: its log does not say that it stands by")
    check(metric(scene.install.active(), STANDBY_METRIC) == 0, f"{STANDBY_METRIC} of the active scheduler is not 0")
    scene.disturb()
    scene.cluster.delete_pod(scene.install.active(), "--grace-period=0", "--force")
    scene.wait_ready()
    restarts = sum(pod.num_restarts for pod in scene.install.pods("server"))
    scene.notes.append(f"{restarts} restarts")
    scene.disturb()
    scene.cluster.kubectl("scale", "deployment/quire-scheduler", "--replicas=2")
    scene.wait_ready()
