#!/usr/bin/python3
"""Faults under load, with the ranks of a model on several hosts: see README.md. Needs root and
/dev/net/tun. Exit code 0: nothing was lost, and the faults did bite; 77: no hosts can be made."""
import argparse
import functools
import signal
import sys

import run  # first: it says where the programs are
from cable import DELAY_NS
from fault_script import host_fault_kinds
from host_network import HostNetwork, NotPossible
from hosts_model import HOSTS_OF_RANKS, HostsModel

EXIT_NOT_POSSIBLE = 77

SHORT = run.Form(2, 2, 4, 0, 0, 0, 0.3, 16, 40, 80)
USUAL = run.Form(28, 10, 28, 0, 0, 0, 8, 64, 240, 160)


def check_network(network, num_hosts):
    """The cables are as slow as they should be, and not much slower."""
    for host in range(1, num_hosts):
        times = network.round_trips(host)
        median = times[len(times) // 2]
        print(f"round trip to host {host}: {median:.2f} ms, at most {times[-1]:.2f} ms",
              file=sys.stderr)
        if median < 2 * DELAY_NS / 1e6:
            raise AssertionError("packets do not come late")


def run_on_hosts(args, form):
    num_hosts = 1 + max(HOSTS_OF_RANKS[args.tensor_parallel_size])
    kinds = host_fault_kinds(form.kills, form.stops, form.cuts, args.long_parts)
    with HostNetwork(num_hosts) as network:
        check_network(network, num_hosts)
        return run.run_in_folder(args, form, kinds=kinds,
                                 make_model=functools.partial(HostsModel, network))[0]


def parse_args():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.set_defaults(http=False)
    parser.add_argument("--short", action="store_true", help="a few faults of each kind")
    for field in ("kills", "stops", "cuts"):
        parser.add_argument("--" + field, type=int)
    parser.add_argument("--long-parts", type=int, default=0)
    parser.add_argument("--minutes", type=float)
    parser.add_argument("--tensor-parallel-size", "-tp", type=int, default=4,
                        choices=sorted(HOSTS_OF_RANKS))
    parser.add_argument("--kv-backend", default="paged")
    parser.add_argument("--streams", type=int, default=32)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--folder", help="where logs of failed rounds stay; default: the system's")
    return parser.parse_args()


def main():
    args = parse_args()
    form = SHORT if args.short else USUAL
    given = {name: value for name, value in vars(args).items()
             if name in run.Form._fields and value is not None}
    # SIGTERM acts like Ctrl-C, so that hosts and processes are removed.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        sys.exit(0 if run_on_hosts(args, form._replace(**given)) else 1)
    except NotPossible as reason:
        print(f"hosts.py: {reason}", file=sys.stderr)
        sys.exit(EXIT_NOT_POSSIBLE)


if __name__ == "__main__":
    main()
