"""What only a shell on the machines can do to a cluster: commands that the caller of the suite gives."""
import shlex
import subprocess

COMMANDS = {
    "kill_node": "COMMAND {node}: the node loses its power",
    "start_node": "COMMAND {node}: its power comes back",
    "cut_node": "COMMAND {node}: nothing passes between the node and the others",
    "mend_node": "COMMAND {node}: it does again",
    "cut": "COMMAND {from_ip} {to_ip}: nothing passes from one address to the other, on any node",
    "mend": "COMMAND {from_ip} {to_ip}: it does again",
    "stop_api": "COMMAND: the API server is gone",
    "start_api": "COMMAND: it is there again",
    "node_shell": "COMMAND {node}: a root shell on the node that reads a script from standard input",
}

# The processes of a container by its id, which the runtimes put into the names of control groups.
FIND = """
for process in /proc/[0-9]*; do
  if grep -qs {container} $process/cgroup && [ "$(cat $process/comm)" = {program} ]; then
    echo "${{process#/proc/}}"
  fi
done
"""
COMM_BYTES = 15  # the kernel keeps no more of a program's name


class Machine:
    """commands: by their names above; one that is not given is None."""

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
        """Both ways. `other` may be a range of addresses."""
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
        """Process ids of a program in the pod's container, as its node numbers them."""
        script = FIND.format(container=pod.container_id, program=program[:COMM_BYTES])
        return [int(line) for line in self._run("node_shell", script, node=pod.node).split()]

    def signal(self, pod, pids, name):
        """name: KILL, STOP or CONT. A process that has ended meanwhile is no error."""
        self._run("node_shell", f"kill -{name} {' '.join(map(str, pids))} || true\n", node=pod.node)

    def living(self, pod, pids):
        script = "".join(f"[ ! -d /proc/{pid} ] || echo {pid}\n" for pid in pids)
        return [int(line) for line in self._run("node_shell", script, node=pod.node).split()]
