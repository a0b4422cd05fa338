"""Faults of processes: killed, stopped, out of memory, a full volume."""
import time

from cluster import ClusterError
from placement import with_new_pods
from step import check, multi_pod, servers, step

LONGEST_GAP_OF_A_PROCESS_S = 10
LONGEST_GAP_OF_A_STOPPED_RANK_S = 20  # `quire supervise` kills a silent process after 10 s
REPLACED_SECONDS = 120  # upper bound; slowest is a stopped process, which `quire supervise` kills after 10 s
SCHEDULERS = "quire-schedulers"
SHELL = ("node_shell",)

# Starts 80 processes that together exceed the container's memory limit. Each is smaller than Quire's
# process, so the kernel kills Quire's.
EAT_MEMORY = """
i=0
while [ $i -lt 80 ]; do
  sh -c 'x=$(head -c 4194304 /dev/zero | tr "\\0" x); sleep 15' 2> /dev/null &
  i=$((i + 1))
done
wait
"""


def signal_and_wait(scene, pod, program, name):
    """Sends a signal to a program of a pod. Waits until the processes that got it have ended, and all is ready."""
    pids = scene.machine.processes(pod, program)
    check(pids, f"{pod.name} has no process {program}")
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
    """SIGSTOP for worker and scheduler. Not for `quire serve`, whose stop no probe would notice."""
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
    """The scheduler is stopped during a takeover. When it goes on, it becomes a standby without a restart."""
    pod = scene.install.active()
    pids = scene.machine.processes(pod, "quire_scheduler")
    scene.disturb()
    scene.machine.signal(pod, pids, "STOP")
    time.sleep(6)  # longer than a takeover takes, shorter than `quire supervise` waits before it kills the process
    scene.machine.signal(pod, pids, "CONT")
    scene.wait_ready()
    check(scene.install.active().uid != pod.uid, "the stopped scheduler is the active one again")
    check("another scheduler has the workers" in scene.cluster.log(pod, since=scene.begin),
          f"{pod.name}: its log does not say that another scheduler has the workers")
    check(scene.machine.living(pod, pids), f"{pod.name}: its scheduler was restarted")


@step(multi_pod, needs=SHELL, prepare=with_new_pods, longest_gap_s=LONGEST_GAP_OF_A_PROCESS_S)
def kill_standby(scene):
    """The killed standby starts again as a standby, and takes no worker from the active scheduler."""
    active = scene.install.active()
    signal_and_wait(scene, scene.install.standbys()[0], "quire_scheduler", "KILL")
    check(scene.install.active().uid == active.uid, "the restarted scheduler is the active one")


@step(multi_pod, needs=SHELL, prepare=with_new_pods, longest_gap_s=LONGEST_GAP_OF_A_PROCESS_S, service=SCHEDULERS)
def kill_active_scheduler_ten_times(scene):
    """Each time as soon as a scheduler serves all clients again. Kubelets that restarted the schedulers would wait
    longer each time, so that both would be away from the third death of each on."""
    def is_served_since(time_s):
        return (sum(pod.is_ready for pod in scene.install.pods("server")) == 1
                and scene.load.has_flowed_since(time_s))

    for _ in range(10):
        pod = scene.install.active()
        scene.disturb()
        scene.machine.signal(pod, scene.machine.processes(pod, "quire_scheduler"), "KILL")
        later = time.monotonic() + 1  # tokens that were on their way do not count
        scene.cluster.wait(lambda since=later: is_served_since(since), REPLACED_SECONDS,
                           "a scheduler serves all clients")
    scene.wait_ready()


@step(multi_pod, needs=SHELL, prepare=with_new_pods, longest_gap_s=LONGEST_GAP_OF_A_PROCESS_S)
def kill_each_rank(scene):
    for pod in scene.install.pods("worker"):
        signal_and_wait(scene, pod, "quire_worker", "KILL")


@step(multi_pod, needs=SHELL, prepare=with_new_pods, longest_gap_s=LONGEST_GAP_OF_A_STOPPED_RANK_S)
def stop_each_rank(scene):
    for pod in scene.install.pods("worker"):
        signal_and_wait(scene, pod, "quire_worker", "STOP")


@step(multi_pod, needs=SHELL, prepare=with_new_pods, longest_gap_s=LONGEST_GAP_OF_A_PROCESS_S)
def kill_everything(scene):
    """Kills both schedulers and both ranks at once."""
    pods = scene.install.pods("server") + scene.install.pods("worker")
    found = [(pod, scene.machine.processes(pod, program)) for pod in pods
             for program in [f"quire_{'worker' if pod.component == 'worker' else 'scheduler'}"]]
    scene.disturb()
    for pod, pids in found:
        scene.machine.signal(pod, pids, "KILL")
    scene.wait_ready()


def exceed_memory(scene, pod, program):
    """Fills the container's memory until the kernel kills its largest process, which must be `program`."""
    pids = scene.machine.processes(pod, program)
    scene.disturb()
    try:
        scene.cluster.kubectl("exec", pod.name, "--", "sh", "-c", EAT_MEMORY, seconds=60)
    except ClusterError:
        pass  # `kubectl exec` fails if the container ends
    check(not scene.machine.living(pod, pids), f"{program} of {pod.name} still lives")
    scene.wait_ready()


@step(servers, needs=SHELL, prepare=with_new_pods)
def memory_limit_exceeded(scene):
    exceed_memory(scene, scene.install.active(), "quire_worker")


@step(multi_pod, needs=SHELL, prepare=with_new_pods)
def memory_limits_exceeded(scene):
    exceed_memory(scene, scene.install.rank(1), "quire_worker")
    exceed_memory(scene, scene.install.active(), "quire_scheduler")


@step(servers)
def full_tmp(scene):
    """A file exceeds the limit of the volume tmp. The kubelet evicts the pod, and an event says why. The pod's status
    does not say why, because `quire serve` ends with exit code 0."""
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
