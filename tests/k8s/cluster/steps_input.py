"""Mistakes of operators: a pod says in its log and status why it does not serve, and the running pods serve on."""
import re
import time

from cluster import temporary_folder
from overlays import NUM_SERVERS, Install, Variant, container_of, flag, pod_spec, program_of, set_flag
from authority import secret
from step import anywhere, check, multi_pod, secured, step

SAYS_SECONDS = 150  # until a pod says what is wrong, after a rollout, a start and a restart back-off
SAYS_ON_SECONDS = 8  # longer than a pod that has just started takes until it is ready
COUNTERPARTS = {"cpu": "multi-pod", "multi-pod": "cpu", "gpu": "tensor-parallel", "tensor-parallel": "gpu"}
SECOND_OVERLAY_SECONDS = 20  # time for which both overlays serve
COPY = "cp /original/*.json /original/*.safetensors /models/ && chmod u+w /models/*"
# Zeroes weights of several layers, so each rank has some. All shapes still fit, and every answer would differ.
CHANGE_WEIGHTS = COPY + " && dd if=/dev/zero of=/models/model.safetensors bs=1000000 seek=3 count=2 conv=notrunc"


def use_model(workload, script):
    """Replaces the workload's model by the one that `script` makes in /models from the model in /original."""
    spec, container = pod_spec(workload), container_of(workload)
    volume = next(each for each in spec["volumes"] if each["name"] == "model")
    spec["volumes"].append({**volume, "name": "original"})
    volume.pop("persistentVolumeClaim")
    volume["emptyDir"] = {}
    spec["initContainers"] = [{
        "name": "model", "image": container["image"], "command": ["sh", "-c", script],
        "securityContext": container["securityContext"], "resources": container["resources"],
        "volumeMounts": [{"name": "model", "mountPath": "/models"},
                         {"name": "original", "mountPath": "/original", "readOnly": True}]}]


def says(scene, expected, component, has_log):
    """Returns whether a pod of the component says what the regular expression matches: its log, and its status. A
    process that ended says it in the pod's status too. A running process makes its pod not ready."""
    for pod in scene.cluster.pods(component):
        if pod.is_terminating:
            continue
        is_in_status = re.search(expected, pod.status_text) is not None
        runs_on = has_log and pod.is_running and pod.num_restarts == 0 and not pod.is_ready
        is_in_log = not has_log or re.search(expected, scene.cluster.log(pod, since=scene.begin)) is not None
        if is_in_log and (is_in_status or runs_on):
            return True
    return False


def bad_rollout(scene, edit, expected, component=None, has_log=True):
    """Changes the workloads so that they cannot work, waits until a pod says why, and changes them back.

    component: of the pod that must say it; None: any. has_log: whether the program can say it before it ends.
    """
    scene.disturb()
    scene.install.change(edit)
    try:
        scene.cluster.wait(lambda: says(scene, expected, component, has_log), SAYS_SECONDS,
                           f"log and status of a pod say {expected!r}", pause=2)
        time.sleep(SAYS_ON_SECONDS)
        # Waits again, because the container may be between two starts at this moment.
        scene.cluster.wait(lambda: says(scene, expected, component, has_log), SAYS_SECONDS,
                           f"a pod says {expected!r} later too", pause=2)
        if not scene.install.variant.is_multi_pod:
            num_serving = sum(pod.is_serving for pod in scene.cluster.pods("server"))
            check(num_serving >= NUM_SERVERS - 1, f"only {num_serving} servers still serve")
    finally:
        scene.install.restore()
    scene.wait_ready()


@step(anywhere)
def empty_model_volume(scene):
    def edit(workload):
        use_model(workload, "true")

    bad_rollout(scene, edit, r"config\.json")


@step(anywhere)
def unreadable_model(scene):
    def edit(workload):
        use_model(workload, f"{COPY} && chmod 0 /models/*")

    bad_rollout(scene, edit, r"[Pp]ermission denied")


@step(anywhere)
def no_model_volume(scene):
    def edit(workload):
        volume = next(each for each in pod_spec(workload)["volumes"] if each["name"] == "model")
        volume["persistentVolumeClaim"]["claimName"] = "quire-no-such-model"

    bad_rollout(scene, edit, "quire-no-such-model", has_log=False)


@step(multi_pod)
def other_model_at_one_rank(scene):
    def edit(workload):
        if workload["metadata"]["name"] == "quire-worker-1":
            use_model(workload, CHANGE_WEIGHTS)

    bad_rollout(scene, edit, r"weights differ from those|differs from rank 0", component="worker")


@step(multi_pod)
def too_many_ranks(scene):
    """The two workers start with --tensor-parallel-size=4."""
    def edit(workload):
        if program_of(workload) == "quire_worker":
            set_flag(container_of(workload), "tensor-parallel-size", "4")

    bad_rollout(scene, edit, r"tensor.parallel.size", component="worker")


@step(multi_pod)
def too_few_ranks(scene):
    """The scheduler has the address of only one of the two ranks."""
    def edit(workload):
        container = container_of(workload)
        if program_of(workload) == "quire_scheduler":
            set_flag(container, "workers", flag(container, "workers").split(",", maxsplit=1)[0])

    bad_rollout(scene, edit, r"tensor.parallel.size", component="worker")


@step(multi_pod)
def rank_twice(scene):
    def edit(workload):
        container = container_of(workload)
        if program_of(workload) == "quire_scheduler":
            first = flag(container, "workers").split(",", maxsplit=1)[0]
            set_flag(container, "workers", f"{first},{first}")

    bad_rollout(scene, edit, r"workers.*twice")


@step(secured)
def secret_without_key(scene):
    """A TLS Secret that lacks tls.key, mounted in place of the good one."""
    name = scene.install.clients_secret
    good = scene.cluster.get("secret", name)["data"]
    bad = secret("quire-tls-without-key", {})
    bad["data"] = {key: good[key] for key in ("tls.crt", "ca.crt")}
    scene.cluster.apply([bad])

    def edit(workload):
        for volume in pod_spec(workload)["volumes"]:
            if volume.get("secret", {}).get("secretName") == name:
                volume["secret"]["secretName"] = "quire-tls-without-key"

    bad_rollout(scene, edit, r"tls\.key")


@step(anywhere)
def memory_limit_too_small(scene):
    """The memory limit is less than weights and KV cache need."""
    def edit(workload):
        if program_of(workload) in ("serve", "quire_worker"):
            container_of(workload)["resources"]["limits"]["memory"] = "48Mi"
            container_of(workload)["resources"]["requests"]["memory"] = "48Mi"

    bad_rollout(scene, edit, r"OOMKilled|exceeds? the memory|do not fit in memory", has_log=False)


def endpoints(scene, service):
    """Returns the names of the pods to which a Service leads."""
    slices = [each for each in scene.cluster.list("endpointslices")
              if each["metadata"]["labels"].get("kubernetes.io/service-name") == service]
    return {endpoint["targetRef"]["name"] for each in slices for endpoint in each.get("endpoints") or []
            if endpoint["conditions"].get("ready")}


def starts_of(pods):
    """Returns the number of restarts by pod, which stays the same if no pod is replaced or restarted."""
    return {pod.uid: pod.num_restarts for pod in pods if not pod.is_terminating}


def check_apart(scene, installs):
    """Checks that the Service and the disruption budgets of each overlay select only pods of that overlay."""
    for each in installs:
        own = {pod.name for pod in each.own_pods()}
        found = endpoints(scene, each.variant.name)
        check(found, f"{each.variant.name}: its Service leads to no pod")
        check(found <= own, f"{each.variant.name}: its Service leads to {sorted(found)}, its pods are {sorted(own)}")
    budgets = {each["metadata"]["name"]: each["status"] for each in scene.cluster.list("poddisruptionbudgets")}
    for each in installs:
        for budget in [found for found in each.objects if found["kind"] == "PodDisruptionBudget"]:
            name, labels = budget["metadata"]["name"], budget["spec"]["selector"]["matchLabels"]
            num_own = sum(labels.items() <= pod.labels.items() and not pod.is_terminating for pod in each.own_pods())
            num_counted = budgets[name].get("expectedPods")
            check(num_counted == num_own, f"the budget {name} counts {num_counted} pods, the overlay has {num_own}")


@step(anywhere)
def second_overlay_in_the_namespace(scene):
    """Another overlay is applied beside the first, and deleted again as by `kubectl delete -k`. Both serve, each by its
    own Service. The first overlay's pods run on."""
    first = scene.install
    with temporary_folder() as folder:
        second = Install(scene.cluster, Variant(COUNTERPARTS[first.variant.overlay]), scene.options, folder)
        second.objects = second.build()
    before = starts_of(first.own_pods())
    scene.disturb()
    scene.cluster.apply(second.objects)
    try:
        scene.wait_ready()
        check_apart(scene, [first, second])
        time.sleep(SECOND_OVERLAY_SECONDS)
        check_apart(scene, [first, second])
    finally:
        scene.cluster.delete(second.objects)
    scene.cluster.wait(lambda: not second.own_pods(), SAYS_SECONDS, "the second overlay's pods end")
    scene.wait_ready()
    check_apart(scene, [first])
    check(starts_of(first.own_pods()) == before, "pods of the first overlay were replaced or restarted")
