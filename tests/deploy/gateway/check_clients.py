#!/usr/bin/env python3
"""Runs clients from PyPI, unmodified, against `quire serve`, and compares their answers with each other's.

    python3 -m venv VENV && VENV/bin/pip install openai litellm langchain-openai llm transformers 'lm-eval[hf]' \\
        ./deploy/clients/python
    VENV/bin/python tests/deploy/gateway/check_clients.py --bin build/cpu-release/bin [SESSION...]

Runs by hand. Prints each failed check and the counts; exit 1 if a check failed. The folder clients/ has the sessions:
of the package openai, of other packages, of gRPC beside HTTP, and of tokenizers. lm-eval brings torch.
"""
import argparse
import importlib.metadata
import os
import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))

from clients import openai_package, served  # noqa: E402

PACKAGES = ["openai", "litellm", "langchain-openai", "llm", "transformers", "lm-eval", "torch", "grpcio", "protobuf"]


def version(package):
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return "absent"


def others():
    from clients import other_packages  # pylint: disable=import-outside-toplevel
    return other_packages


def grpc_answers(report, server):
    from clients import grpc_answers as session  # pylint: disable=import-outside-toplevel
    session.same_answers(report, server, num_cases=ARGUMENTS.cases, seed=ARGUMENTS.seed)


def tokenizer(report, server):
    from clients import tokenizer as session  # pylint: disable=import-outside-toplevel
    session.same_tokens(report, server, num_cases=ARGUMENTS.cases, seed=ARGUMENTS.seed)


def evaluation(report, binaries):
    from clients import evaluation as session  # pylint: disable=import-outside-toplevel
    session.same_scores(report, binaries)


# Sessions that share one server.
SHARED = {
    "openai-completions": openai_package.completions,
    "openai-chats": openai_package.chats,
    "openai-raw": openai_package.raw,
    "openai-async": openai_package.asyncs,
    "openai-errors": openai_package.errors,
    "openai-going-away": openai_package.going_away,
    "openai-restarts": openai_package.restarts,
    "litellm": lambda report, server: others().litellm(report, server),
    "langchain": lambda report, server: others().langchain(report, server),
    "llm": lambda report, server: others().llm(report, server),
    "curl": lambda report, server: others().curl(report, server),
    "grpc": grpc_answers,
    "tokenizer": tokenizer,
}
# Sessions that start their own servers.
ALONE = {"openai-refusals": openai_package.refusals, "lm-eval": evaluation}


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bin", type=pathlib.Path, help="folder of the programs; default: QUIRE_BIN",
                        default=os.environ.get("QUIRE_BIN", served.SOURCE / "build/cpu-release/bin"))
    parser.add_argument("--cases", type=int, default=100, help="random cases of the sessions grpc and tokenizer")
    parser.add_argument("--seed", type=int, default=1, help="of the random cases")
    parser.add_argument("sessions", nargs="*", metavar="SESSION",
                        help=f"of {', '.join([*SHARED, *ALONE])}; default: all")
    arguments = parser.parse_args()
    if unknown := set(arguments.sessions) - {*SHARED, *ALONE}:
        parser.error(f"no such session: {', '.join(unknown)}")
    return arguments


def main():
    report = served.Report()
    wanted = ARGUMENTS.sessions or [*SHARED, *ALONE]
    binaries = pathlib.Path(ARGUMENTS.bin).resolve()
    print(", ".join(f"{package} {version(package)}" for package in PACKAGES), flush=True)
    if any(name in SHARED for name in wanted):
        with served.Served(binaries) as server:
            for name, run in SHARED.items():
                if name in wanted:
                    report.session(name, run, server)
    for name, run in ALONE.items():
        if name in wanted:
            report.session(name, run, binaries)
    print(f"{report.num_checks} checks, {len(report.failures)} failed")
    return 1 if report.failures else 0


if __name__ == "__main__":
    ARGUMENTS = parse_arguments()
    sys.exit(main())
