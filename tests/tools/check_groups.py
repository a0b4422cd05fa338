"""Checks that pods come through the loss of a node. Checks groups whose ranks have a pod each, too: a
Deployment and a Service for each rank, and schedulers of which one works and the others stand by. Part of
check_manifests.py.
"""
import pathlib
import re

from kustomize_subset import containers_of, pod_of
from manifest_overlay import flags_of, ports_of

# Taints of a node that is lost. The API server gives every pod a toleration of 300 s for each of them.
LOST_NODE = ("node.kubernetes.io/unreachable", "node.kubernetes.io/not-ready")
# Bounds the time until the pod of a lost node is replaced. A server must be back within a minute, and the
# rest of that minute is for its start.
MAX_TOLERATION_SECONDS = 30
HOSTNAME = "kubernetes.io/hostname"
# progressDeadlineSeconds with this value is no deadline for Kubernetes.
NO_DEADLINE = 2147483647
FALSE_WORDS = ("false", "f", "no", "n", "0")  # as abseil's flags read them
LABEL_FIELD = re.compile(r"metadata\.labels\['(.+)'\]")


def check_nodes(overlay):
    for each in overlay.workloads():
        if each["kind"] == "StatefulSet":
            overlay.fault(each, "must be a Deployment: a StatefulSet keeps its pods on a dead node")
        for taint in LOST_NODE:
            seconds = _toleration_seconds(pod_of(each)["spec"], taint)
            if seconds > MAX_TOLERATION_SECONDS:
                overlay.fault(each, f"tolerations: a pod stays {seconds} s on a node that is "
                                    f"{taint.partition('/')[2]}: {MAX_TOLERATION_SECONDS} s at most")
    workers = [each for each, _ in overlay.workloads_of("quire_worker")]
    for each in overlay.workloads():
        if each not in workers:
            _check_spread(overlay, each)


def _toleration_seconds(spec, taint):
    """Returns how long a pod stays on a node with the taint. A toleration without a key is for all taints."""
    seconds = [each.get("tolerationSeconds", float("inf")) for each in spec.get("tolerations", [])
               if each.get("key", taint) == taint and each.get("effect", "NoExecute") == "NoExecute"]
    return min(seconds, default=300)


def _check_spread(overlay, workload):
    spread = [each for each in pod_of(workload)["spec"].get("topologySpreadConstraints", [])
              if each["topologyKey"] == HOSTNAME and workload in overlay.selected(each["labelSelector"])]
    if not spread:
        overlay.fault(workload, "topologySpreadConstraints: one node may get all of its pods")
    for each in spread:
        if each["whenUnsatisfiable"] != "ScheduleAnyway":
            overlay.fault(workload, "topologySpreadConstraints: without ScheduleAnyway a lost pod may find "
                                    "no node")


def check_ranks(overlay):
    """The scheduler's --workers, Deployments, Services and --tensor-parallel-size have the same ranks."""
    for scheduler, container in overlay.workloads_of("quire_scheduler"):
        names = (flags_of(container).get("workers") or "").split(",")
        for name in sorted({each for each in names if names.count(each) > 1}):
            overlay.fault(scheduler, f"--workers: {name} stands twice")
        named = [_worker_behind(overlay, scheduler, name) for name in names]
        for rank, worker in enumerate(named):
            if worker is not None and rank_of(worker) != str(rank):
                overlay.fault(worker, f"has the rank {rank_of(worker)}, --workers has it as rank {rank}")
        for worker, its_container in overlay.workloads_of("quire_worker"):
            if worker not in named:
                overlay.fault(worker, "--workers of the scheduler does not name it")
            size = flags_of(its_container).get("tensor-parallel-size")
            if size != str(len(names)):
                overlay.fault(worker, f"--tensor-parallel-size: {size}, --workers has {len(names)} ranks")
    workers = overlay.workloads_of("quire_worker")
    for worker, container in workers:
        first, first_container = workers[0]
        for what, of in (("image", lambda _, its: its["image"]), ("model volume", model_volume_of)):
            own, other = of(worker, container), of(first, first_container)
            if own != other:
                overlay.fault(worker, f"{what}: {own}, {first['metadata']['name']} has {other}: ranks with "
                                      "different programs or models refuse each other")


def model_volume_of(workload, container):
    """Returns the source of the volume that has the path of --model, or None."""
    path = pathlib.PurePath(flags_of(container).get("model") or "")
    for mount in container.get("volumeMounts", []):
        if path.is_relative_to(mount["mountPath"]):
            return next(({key: value for key, value in volume.items() if key != "name"}
                         for volume in pod_of(workload)["spec"].get("volumes", [])
                         if volume["name"] == mount["name"]), None)
    return None


def _worker_behind(overlay, scheduler, name):
    """Returns the workload of the worker to which a name of --workers leads, or None."""
    host, _, port = name.rpartition(":")
    service = next((each for each in overlay.of("Service") if each["metadata"]["name"] == host), None)
    if service is None:
        overlay.fault(scheduler, f"--workers: there is no Service {host!r}")
        return None
    if service["spec"].get("clusterIP") != "None" or not service["spec"].get("publishNotReadyAddresses"):
        overlay.fault(service, "a worker is found by name before it is ready: headless, with "
                               "publishNotReadyAddresses")
    workers = overlay.selected(service["spec"]["selector"])
    if len(workers) != 1:
        overlay.fault(service, f"leads to {len(workers)} workers, not to that of one rank")
        return None
    if port != str(ports_of(workers[0]).get("grpc-worker")):
        overlay.fault(scheduler, f"--workers: {name} has another port than its pod")
    return workers[0]


def rank_of(worker):
    """Returns --rank as the container gets it, from a variable that a label of the pod sets."""
    [container] = containers_of(worker)
    rank = flags_of(container).get("rank") or ""
    labels = pod_of(worker)["metadata"]["labels"]
    for variable in container.get("env", []):
        field = variable.get("valueFrom", {}).get("fieldRef", {}).get("fieldPath", "")
        if label := LABEL_FIELD.fullmatch(field):
            rank = rank.replace(f"$({variable['name']})", labels.get(label[1], ""))
    return rank


def check_rollouts(overlay):
    """A rollout neither starts a second worker of a rank nor waits for a pod that never gets ready."""
    for each in overlay.workloads():
        if each["spec"].get("replicas", 1) < 1:
            overlay.fault(each, "replicas: 0 pods serve no request")
    for worker, _ in overlay.workloads_of("quire_worker"):
        if worker["spec"].get("replicas", 1) != 1:
            overlay.fault(worker, "replicas: a rank has one worker")
        _check_old_goes_first(overlay, worker, 1)
    for scheduler, _ in overlay.workloads_of("quire_scheduler"):
        _check_old_goes_first(overlay, scheduler, scheduler["spec"].get("replicas", 1))


def _check_old_goes_first(overlay, workload, num_pods):
    strategy = workload["spec"].get("strategy", {})
    if strategy.get("type", "RollingUpdate") != "RollingUpdate":
        overlay.fault(workload, "strategy: only RollingUpdate does not wait for pods of a dead node to end")
        return
    rolling = strategy.get("rollingUpdate", {})
    if _share(rolling.get("maxSurge", "25%"), num_pods) != 0:
        overlay.fault(workload, "strategy: maxSurge: the new pod is of no use beside the old one")
    if _share(rolling.get("maxUnavailable", "25%"), num_pods) < num_pods:
        overlay.fault(workload, "strategy: maxUnavailable: the rollout would wait for a pod that is not "
                                "ready while another one works")


def _share(value, whole):
    return whole * int(value[:-1]) / 100 if str(value).endswith("%") else int(value)


def check_standbys(overlay):
    """Checks groups of several schedulers. One of them works; the others are never ready."""
    for each, container in overlay.workloads_of("quire_scheduler"):
        if each["spec"].get("replicas", 1) < 2:
            continue
        flags = flags_of(container)
        if str(flags.get("standby")).lower() in FALSE_WORDS or "no-standby" in flags:
            overlay.fault(each, "--standby: several schedulers would take the workers from each other")
        if each["spec"].get("progressDeadlineSeconds") != NO_DEADLINE:
            overlay.fault(each, f"progressDeadlineSeconds: a standby is never ready, {NO_DEADLINE} is none")
        for budget in overlay.of("PodDisruptionBudget"):
            if each in overlay.selected(budget["spec"]["selector"]):
                overlay.fault(budget, "a standby is never ready: the other scheduler keeps its node")
        _check_services(overlay, each)


def _check_services(overlay, scheduler):
    for each in overlay.services_of(scheduler):
        is_headless = each["spec"].get("clusterIP") == "None"
        publishes = bool(each["spec"].get("publishNotReadyAddresses"))
        if is_headless and not publishes:
            overlay.fault(each, "publishNotReadyAddresses: clients would not find the standby")
        if publishes and not is_headless:
            overlay.fault(each, "publishNotReadyAddresses: it would lead clients to a standby")
