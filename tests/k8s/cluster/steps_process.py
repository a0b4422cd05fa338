"""What happens to processes: killed, stopped, out of memory, a full volume."""
import time

from cluster import ClusterError
from placement import with_new_pods
from step import check, multi_pod, servers, step

LONGEST_GAP_OF_A_PROCESS_S = 10
REPLACED_SECONDS = 120  # the slowest is a stopped worker: its liveness probe, then its grace
SCHEDULERS = "quire-schedulers"
SHELL = ("node_shell",)

# Many small processes, together more than the limit: the kernel ends the largest of the container, the server's.
EAT_MEMORY = """
i=0
while [ $i -lt 80 ]; do
  sh -c 'x=$(head -c 4194304 /dev/zero | tr "\\0" x); sleep 15' 2> /dev/null &
  i=$((i + 1))
done
wait
"""


def signal_and_wait(scene, pod, program, name):
    """Waits until what had the signal is gone, by whoever looks after it, and all is ready."""
    pids = scene.machine.processes(pod, program)
    check(pids, f"{pod.name}: no process {program}")
    scene.disturb()
    scene.machine.signal(pod, pids, name)
    scene.cluster.wait(lambda: not scene.machine.living(pod, pids), REPLACED_SECONDS,
                       f"{program} of {pod.name} ends after SIG{name}")
    scene.wait_ready()


@step(servers, needs=SHELL, prepare=with_new_pods)
def kill_each_process(scene):
    for program in ("quire_worker", "quire_scheduler", "quire"):
        signal_and_wait(scene, scene.install.active(), program, "KILL")


@step(servers, needs=SHELL, prepare=with_new_pods)
def stop_each_process(scene):
    """`quire serve` itself is not among them: nobody waits for it until its pod is to end."""
    for program in ("quire_worker", "quire_scheduler"):
        signal_and_wait(scene, scene.install.active(), program, "STOP")


@step(multi_pod, needs=SHELL, prepare=with_new_pods, longest_gap_s=LONGEST_GAP_OF_A_PROCESS_S, service=SCHEDULERS)
def kill_active_scheduler(scene):
    signal_and_wait(scene, scene.install.active(), "quire_scheduler", "KILL")


@step(multi_pod, needs=SHELL, prepare=with_new_pods, longest_gap_s=LONGEST_GAP_OF_A_PROCESS_S, service=SCHEDULERS)
def stop_active_scheduler(scene):
    signal_and_wait(scene, scene.install.active(), "quire_scheduler", "STOP")


@step(multi_pod, needs=SHELL, prepare=with_new_pods, longest_gap_s=LONGEST_GAP_OF_A_PROCESS_S)
def kill_active_scheduler_behind_service(scene):
    signal_and_wait(scene, scene.install.active(), "quire_scheduler", "KILL")


@step(multi_pod, needs=SHELL, prepare=with_new_pods, longest_gap_s=LONGEST_GAP_OF_A_PROCESS_S, service=SCHEDULERS)
def stop_active_scheduler_and_go_on(scene):
    """It sleeps through a takeover. Awake again it is a standby, without a restart."""
    pod = scene.install.active()
    pids = scene.machine.processes(pod, "quire_scheduler")
    scene.disturb()
    scene.machine.signal(pod, pids, "STOP")
    time.sleep(12)
    scene.machine.signal(pod, pids, "CONT")
    scene.wait_ready()
    check(scene.install.active().uid != pod.uid, "the scheduler that was stopped is the active one")
    check("another scheduler has the workers" in scene.cluster.log(pod, since=scene.begin),
          f"{pod.name}: its log does not say that another one has the workers")
    restarts = {each.uid: each.num_restarts for each in scene.cluster.pods()}
    check(restarts.get(pod.uid) == pod.num_restarts, f"{pod.name} was started again")


@step(multi_pod, needs=SHELL, prepare=with_new_pods, longest_gap_s=LONGEST_GAP_OF_A_PROCESS_S)
def kill_standby(scene):
    """It starts again and stands by again: it takes nothing from the active one."""
    active = scene.install.active()
    signal_and_wait(scene, scene.install.standbys()[0], "quire_scheduler", "KILL")
    check(scene.install.active().uid == active.uid, "the scheduler that started again is the active one")


@step(multi_pod, needs=SHELL, prepare=with_new_pods)
def kill_each_rank(scene):
    for pod in scene.install.pods("worker"):
        signal_and_wait(scene, pod, "quire_worker", "KILL")


@step(multi_pod, needs=SHELL, prepare=with_new_pods)
def stop_each_rank(scene):
    for pod in scene.install.pods("worker"):
        signal_and_wait(scene, pod, "quire_worker", "STOP")


@step(multi_pod, needs=SHELL, prepare=with_new_pods)
def kill_everything(scene):
    """Both schedulers and both ranks at once."""
    pods = scene.install.pods("server") + scene.install.pods("worker")
    found = [(pod, scene.machine.processes(pod, program)) for pod in pods
             for program in [f"quire_{'worker' if pod.component == 'worker' else 'scheduler'}"]]
    scene.disturb()
    for pod, pids in found:
        scene.machine.signal(pod, pids, "KILL")
    scene.wait_ready()


def exceed_memory(scene, pod, program, is_whole_container):
    """Until the kernel ends the largest process of the container."""
    pids = scene.machine.processes(pod, program)
    scene.disturb()
    try:
        scene.cluster.kubectl("exec", pod.name, "--", "sh", "-c", EAT_MEMORY, seconds=60)
    except ClusterError:
        pass  # it ends with its container
    check(not scene.machine.living(pod, pids), f"{program} of {pod.name} still lives")
    scene.wait_ready()
    if is_whole_container:
        now = next(each for each in scene.cluster.pods() if each.uid == pod.uid)
        check("OOMKilled" in now.status_text, f"{pod.name}: its status does not say OOMKilled")


@step(servers, needs=SHELL, prepare=with_new_pods)
def memory_limit_exceeded(scene):
    exceed_memory(scene, scene.install.active(), "quire_worker", False)


@step(multi_pod, needs=SHELL, prepare=with_new_pods)
def memory_limits_exceeded(scene):
    exceed_memory(scene, scene.install.rank(1), "quire_worker", True)
    exceed_memory(scene, scene.install.active(), "quire_scheduler", True)


@step(servers)
def full_tmp(scene):
    """More than the volume may have: the kubelet evicts the pod, and an event says why. The pod's status does not,
    since `quire serve` ends with 0."""
    pod = scene.install.active()
    scene.disturb()
    scene.cluster.kubectl("exec", pod.name, "--", "sh", "-c", "head -c 90000000 /dev/zero > /tmp/full")

    def reasons():
        return [each["message"] for each in scene.cluster.list("events")
                if each["involvedObject"]["name"] == pod.name and each["reason"] == "Evicted"]

    seconds = scene.cluster.wait(reasons, 120, f"{pod.name} is evicted")
    scene.notes.append(f"evicted after {seconds:.0f} s")
    check('EmptyDir volume "tmp" exceeds the limit' in reasons()[0], f"the event says {reasons()[0]}")
    scene.wait_ready()
    scene.cluster.delete_pod(pod)
