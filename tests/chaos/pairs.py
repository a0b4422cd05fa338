#!/usr/bin/python3
"""Starts schedulers together, again and again: exactly one is to serve within two seconds, and each of the others
is to say that it stands by.

    tests/chaos/pairs.py --starts 1000
    tests/chaos/pairs.py --starts 100 --schedulers 4 --tensor-parallel-sizes 2

Workers are started anew for each start: they know of no scheduler. The schedulers start within 10 ms.
Prints a line for each size, and ends with 1 when a start went otherwise.
"""
import argparse
import os
import pathlib
import re
import sys
import tempfile
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "integration"))

from quire_server import BIN, MODEL, Process  # noqa: E402

ROLE = re.compile(r"^quire_scheduler: (ready|stands by) ", re.M)
SECONDS_TO_SERVE = 2.0
SECONDS_TO_STAY = 0.5
# Shells that wait for one file are off within milliseconds of each other.
AT_ONCE = 'while [ ! -e "$0" ]; do sleep 0.002; done; exec "$@"'
SECONDS_TO_WAIT = 0.1


def start_workers(folder, num_ranks):
    addresses = [f"unix:{folder}/{rank}" for rank in range(num_ranks)]
    workers = [Process([os.path.join(BIN, "quire_worker"), "--model", MODEL, "--listen", address, "--threads=1",
                        f"--rank={rank}", f"--tensor-parallel-size={num_ranks}", f"--ranks-on-host={num_ranks}"])
               for rank, address in enumerate(addresses)]
    for worker in workers:
        worker.wait_for("^quire_worker: ready ")
    return addresses, workers


def judge(schedulers):
    """Returns an empty text if one scheduler is ready and all others stand by. With one rank the older scheduler may
    be ready until the newer one has asked, so each scheduler's last line counts."""
    roles = [(ROLE.findall(each.text()) or [""])[-1] for each in schedulers]
    num_ready = roles.count("ready")
    num_standbys = roles.count("stands by")
    if num_ready == 1 and num_standbys == len(schedulers) - 1:
        return ""
    return f"{num_ready} ready, {num_standbys} stand by"


def start_together(num_ranks, num_schedulers):
    """Returns the seconds until one scheduler is ready and all others stand by, and the fault in words."""
    with tempfile.TemporaryDirectory(prefix="quire-pairs-") as folder:
        processes = []
        try:
            addresses, processes = start_workers(folder, num_ranks)
            go = os.path.join(folder, "go")
            schedulers = [Process(["/bin/sh", "-c", AT_ONCE, go, os.path.join(BIN, "quire_scheduler"), "--model",
                                   MODEL, "--workers", ",".join(addresses), "--port=0", "--http-port=0"])
                          for _ in range(num_schedulers)]
            processes = [*processes, *schedulers]
            time.sleep(SECONDS_TO_WAIT)
            begin = time.monotonic()
            pathlib.Path(go).touch()
            while (wrong := judge(schedulers)) and time.monotonic() - begin < SECONDS_TO_SERVE:
                time.sleep(0.01)
            seconds = time.monotonic() - begin
            time.sleep(SECONDS_TO_STAY)
            wrong = wrong or judge(schedulers)
            return seconds, wrong and wrong + "\n" + "\n---\n".join(each.text() for each in schedulers)
        finally:
            for process in processes:
                process.kill()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--starts", type=int, default=100, help="for each size")
    parser.add_argument("--schedulers", type=int, default=2)
    parser.add_argument("--tensor-parallel-sizes", default="1,2,4")
    options = parser.parse_args()
    num_wrong = 0
    for num_ranks in map(int, options.tensor_parallel_sizes.split(",")):
        results = [start_together(num_ranks, options.schedulers) for _ in range(options.starts)]
        for _, wrong in results:
            if wrong:
                num_wrong += 1
                print(wrong, flush=True)
        seconds = sorted(each[0] for each in results)
        print(f"{num_ranks} ranks, {options.schedulers} schedulers: {options.starts} starts, "
              f"{sum(not each[1] for each in results)} right; in place after {seconds[len(seconds) // 2]:.2f} s at the "
              f"median, {seconds[-1]:.2f} s at most", flush=True)
    return 1 if num_wrong else 0


if __name__ == "__main__":
    sys.exit(main())
