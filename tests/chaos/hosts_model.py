"""A scheduler on one host, the ranks of its model on others, and the faults of both.

`quire serve` runs on one host only, so this file restarts the workers. A worker that ended is
restarted at once, as a kubelet does. A stopped worker gets SIGKILL once the scheduler has lost the
group, as after a failed liveness probe, and is then restarted.
"""
import os
import signal
import threading
import time

from quire_server import BIN, MODEL, Process
from served_model import LOG_LINES, REPLACED_SECONDS, Counters, ServedModel, is_alive

PORT = 7100
# Host by rank. With four ranks two share a host. Their link is TCP too, since every rank has a TCP address.
HOSTS_OF_RANKS = {2: (1, 2), 4: (1, 1, 2, 3)}
# Flags of run.py that workers take. The scheduler gets all others.
WORKER_FLAGS = ("--threads=", "--swap-space=", "--num-gpu-blocks-override=", "--kv-backend=")
# Bounds the wait for the loss of a group. A scheduler whose group is lost already logs no second loss
# when another rank stops.
PROBE_SECONDS = 5


class HostsModel(ServedModel):
    """`with HostsModel(network, folder, *flags, num_ranks=4) as server:` stops everything."""

    def __init__(self, network, _folder, *flags, seed=0, num_ranks=4):
        del seed
        self._set_up(num_ranks)
        self._network, self._hosts = network, HOSTS_OF_RANKS[num_ranks]
        self._workers = []
        try:
            listens = [f"{network.address(host)}:{PORT + rank}"
                       for rank, host in enumerate(self._hosts)]
            for rank, listen in enumerate(listens):
                self._workers.append(_Supervised(self._worker(rank, listen, flags)))
            self._serve = Process([
                os.path.join(BIN, "quire_scheduler"), "--model", MODEL, "--port=0", "--http-port=0",
                "--workers=" + ",".join(listens),
                *(flag for flag in flags if not flag.startswith(WORKER_FLAGS))])
            ready = self._serve.wait_for(r"^quire_scheduler: ready grpc=(\S+) http=(\S+)")
            self.address, http_address = ready.groups()
            self._counters = Counters(http_address)
        except BaseException:
            self.close()
            raise

    def _worker(self, rank, listen, flags):
        host = self._hosts[rank]
        return self._network.command(host, [
            os.path.join(BIN, "quire_worker"), "--model", MODEL, f"--listen={listen}",
            "--allow-insecure-bind", f"--tensor-parallel-size={self._num_ranks}", f"--rank={rank}",
            f"--ranks-on-host={self._hosts.count(host)}",
            *(flag for flag in flags if flag.startswith(WORKER_FLAGS))])

    def pid_of(self, program, rank=None, seconds=REPLACED_SECONDS):
        deadline = time.monotonic() + seconds
        while not is_alive(pid := self._workers[rank].process.popen.pid):
            if time.monotonic() > deadline:
                raise AssertionError(f"rank {rank} is not started again:\n" + self.log()[-5000:])
            time.sleep(0.01)
        return pid

    def _survivors_of(self, fault):
        """Returns workers that the fault may not end. A cut or a pause may end none, since only ends and
        stops make this file replace a worker."""
        is_end = fault.kind in ("kill", "kill-in-exchange", "stop")
        return self._others(fault.rank if is_end else None)

    def _harm_link(self, fault):
        host = self._hosts[fault.rank]
        if fault.kind in ("part", "long-part"):
            self._network.part(host, host % max(self._hosts) + 1, fault.seconds)
        else:
            self._network.cut(0 if fault.kind == "scheduler-cut" else host, fault.seconds)
        return "cable", self._network.counts()

    def wait_until_replaced(self, pid):
        deadline = time.monotonic() + PROBE_SECONDS
        num_lost = self._num_lost()
        while is_alive(pid):  # a second SIGKILL does nothing
            if self._num_lost() > num_lost or time.monotonic() > deadline:
                os.kill(pid, signal.SIGKILL)
            time.sleep(0.01)

    def _num_lost(self):
        return self._serve.text().count(LOG_LINES["epochs lost"])

    def counts(self):
        return {**super().counts(), "programs ended": sum(w.num_ends() for w in self._workers)}

    def log(self):
        return "\n".join([self._serve.text(), *(worker.text() for worker in self._workers)])

    def close(self):
        super().close()
        for worker in self._workers:
            worker.close()


class _Supervised:
    """A program that is started again whenever it ends."""

    def __init__(self, arguments):
        self._arguments = arguments
        self._lock, self._is_over = threading.Lock(), False
        self._processes = [Process(arguments)]
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    @property
    def process(self):
        """The running process, or the last one if it has just ended."""
        return self._processes[-1]

    def _run(self):
        while True:
            self.process.popen.wait()
            with self._lock:
                if self._is_over:
                    return
                self._processes.append(Process(self._arguments))

    def num_ends(self):
        return len(self._processes) - 1

    def text(self):
        return "\n".join(process.text() for process in self._processes)

    def close(self):
        with self._lock:
            self._is_over = True
        self.process.kill()
        self._thread.join()
