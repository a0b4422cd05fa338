"""Faults that only a shell on the machines can cause, by commands that the caller of the suite gives."""
import shlex
import subprocess

COMMANDS = {
    "kill_node": "COMMAND {node}: turns the node's power off",
    "start_node": "COMMAND {node}: turns the node's power on",
    "cut_node": "COMMAND {node}: drops all packets between the node and the others",
    "mend_node": "COMMAND {node}: undoes --cut-node",
    "cut": "COMMAND {from_ip} {to_ip}: drops all packets from one address to the other, on every node",
    "mend": "COMMAND {from_ip} {to_ip}: undoes --cut",
    "stop_api": "COMMAND: stops the API server",
    "start_api": "COMMAND: starts the API server",
    "node_shell": "COMMAND {node}: runs a script from standard input as root on the node",
}

# Prints the ids of a container's processes of one program. Container runtimes put the container's id into the names
# of its cgroups.
FIND = """
for process in /proc/[0-9]*; do
  if grep -qs {container} $process/cgroup && [ "$(cat $process/comm)" = {program} ]; then
    echo "${{process#/proc/}}"
  fi
done
"""
COMM_BYTES = 15  # /proc/PID/comm has only so many bytes of a program's name


class Machine:
    """commands: a dict from the names in COMMANDS to command lines; None for a command that was not given."""

    def __init__(self, commands):
        self._commands = commands

    def has(self, *names):
        return all(self._commands.get(name) for name in names)

    def _run(self, name, script=None, **fields):
        command = [part.format(**fields) for part in shlex.split(self._commands[name])]
        done = subprocess.run(command, input=script, text=True, capture_output=True, timeout=300, check=False)
        if done.returncode != 0:
            raise RuntimeError(f"{shlex.join(command)}: exit code {done.returncode}: {done.stderr.strip()}")
        return done.stdout

    def kill_node(self, node):
        self._run("kill_node", node=node)

    def start_node(self, node):
        self._run("start_node", node=node)

    def cut_node(self, node):
        self._run("cut_node", node=node)

    def mend_node(self, node):
        self._run("mend_node", node=node)

    def cut(self, one, other):
        """Cuts both directions between two addresses. `other` may be a range of addresses."""
        self._run("cut", from_ip=one, to_ip=other)
        self._run("cut", from_ip=other, to_ip=one)

    def mend(self, one, other):
        self._run("mend", from_ip=one, to_ip=other)
        self._run("mend", from_ip=other, to_ip=one)

    def stop_api(self):
        self._run("stop_api")

    def start_api(self):
        self._run("start_api")

    def processes(self, pod, program):
        """Returns the process ids of a program in the pod's container, as the node numbers processes."""
        script = FIND.format(container=pod.container_id, program=program[:COMM_BYTES])
        return [int(line) for line in self._run("node_shell", script, node=pod.node).split()]

    def signal(self, pod, pids, name):
        """Sends a signal to processes. name: KILL, STOP or CONT. A process that has already ended is no error."""
        self._run("node_shell", f"kill -{name} {' '.join(map(str, pids))} || true\n", node=pod.node)

    def living(self, pod, pids):
        script = "".join(f"[ ! -d /proc/{pid} ] || echo {pid}\n" for pid in pids)
        return [int(line) for line in self._run("node_shell", script, node=pod.node).split()]
