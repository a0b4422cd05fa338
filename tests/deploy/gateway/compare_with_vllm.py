#!/usr/bin/env python3
"""Asks vLLM's own request classes about the bodies of testdata/openai_bodies.txt.

    pip download vllm==0.11.2 --no-deps && unzip vllm-*.whl 'vllm/entrypoints/*' 'vllm/*.py' -d FOLDER
    pip install pydantic openai msgspec
    compare_with_vllm.py --vllm FOLDER [--write]

Each line of the file has the columns: route, our HTTP status, vLLM's, the parameter that our error names, body.
openai_bodies_test checks our columns, this script vLLM's. --write replaces vLLM's column. The script runs
by hand: it loads protocol.py and sampling_params.py alone, with empty modules in place of vLLM's dependencies.
"""
import argparse
import ast
import importlib.abc
import importlib.machinery
import importlib.util
import json
import logging
import pathlib
import sys
import types
import typing

BODIES = pathlib.Path(__file__).resolve().parent / "testdata" / "openai_bodies.txt"
REAL = ("vllm.entrypoints.openai.protocol", "vllm.sampling_params", "vllm.logprobs")
STUBS = ("torch", "fastapi", "openai_harmony", "regex", "vllm", "PIL", "transformers")


class Empty(types.ModuleType):
    """A module that has every name: base classes are empty, everything else is of any type."""

    __path__ = []

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        if name.endswith("Mixin"):
            from pydantic_core import core_schema
            any_schema = classmethod(lambda cls, source, handler: core_schema.any_schema())
            return type(name, (), {"__get_pydantic_core_schema__": any_schema})
        if name == "iinfo":
            return lambda _: types.SimpleNamespace(min=-2**63, max=2**63 - 1)
        if name == "random_uuid":
            return lambda: "0"
        if name == "init_logger":
            return logging.getLogger
        return typing.Any


class Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    def __init__(self, folder):
        self.folder = folder

    def find_spec(self, name, path=None, target=None):
        if name in REAL:
            file = self.folder / (name.replace(".", "/") + ".py")
            return importlib.util.spec_from_file_location(name, file)
        if name.split(".")[0] in STUBS:
            return importlib.machinery.ModuleSpec(name, self, is_package=True)
        return None

    def create_module(self, spec):
        return Empty(spec.name)

    def exec_module(self, module):
        if module.__name__ == "vllm.entrypoints.chat_utils":
            define_message_types(self.folder / "vllm/entrypoints/chat_utils.py", module)


def define_message_types(file, module):
    """Runs the imports of openai's types, the TypedDicts and the unions of types in chat_utils.py, nothing else."""
    tree = ast.parse(file.read_text(encoding="utf-8"))
    for node in tree.body:
        imports = isinstance(node, ast.ImportFrom) and node.module.split(".")[0] in (
            "openai", "typing", "typing_extensions", "collections")
        typed_dict = isinstance(node, ast.ClassDef) and any(getattr(b, "id", "") == "TypedDict" for b in node.bases)
        alias = isinstance(node, ast.AnnAssign) and getattr(node.annotation, "id", "") == "TypeAlias"
        if imports or typed_dict or alias:
            module.__dict__.setdefault("PILImage", typing.Any)
            module.__dict__.setdefault("OpenAIHarmonyMessage", types.SimpleNamespace)
            source = ast.unparse(node).replace("| OpenAIHarmonyMessage", "")
            exec(compile(source, str(file), "exec"), module.__dict__)


def verdict(protocol, adapter, route, body):
    """200, or 400 if vLLM refuses the body before it needs the model."""
    try:
        value = json.loads(body)
        if route == "tokenize":
            adapter.validate_python(value)
        elif route == "detokenize":
            protocol.DetokenizeRequest.model_validate(value)
        else:
            kind = {"completions": protocol.CompletionRequest, "chat": protocol.ChatCompletionRequest}[route]
            request = kind.model_validate(value)
            if getattr(request, "suffix", None) is not None:  # serving_completion.py
                return 400
            # utils.get_max_tokens: the smallest of what is set and what fits.
            asked = getattr(request, "max_completion_tokens", None) or request.max_tokens
            request.to_sampling_params(min(x for x in (asked, 1000) if x is not None), None, {})
        return 200
    except (ValueError, TypeError, AttributeError, AssertionError):  # pydantic's errors are ValueErrors
        return 400


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--vllm", type=pathlib.Path, required=True)
    parser.add_argument("--write", action="store_true")
    arguments = parser.parse_args()
    logging.disable()
    sys.meta_path.insert(0, Finder(arguments.vllm))
    import pydantic
    import vllm.entrypoints.openai.protocol as protocol
    adapter = pydantic.TypeAdapter(protocol.TokenizeRequest)
    assert verdict(protocol, adapter, "completions", '{"prompt":"x"}') == 200, "vLLM's classes do not work"
    lines, changed, agree, total = [], 0, 0, 0
    for line in BODIES.read_text(encoding="utf-8").splitlines():
        if line.startswith("#"):
            lines.append(line)
            continue
        route, ours, theirs, param, body = line.split(" ", 4)
        now = str(verdict(protocol, adapter, route, body))
        total += 1
        agree += now == ours
        if now != theirs:
            changed += 1
            print(f"vLLM answers {now}, not {theirs}: {route} {body}")
        lines.append(f"{route} {ours} {now} {param} {body}")
    if arguments.write:
        BODIES.write_text("\n".join(lines) + "\n", encoding="utf-8")
    print(f"{total} bodies, {agree} with one verdict of both, {changed} lines with another verdict of vLLM")
    return 0 if arguments.write or changed == 0 else 1


if __name__ == "__main__":
    sys.exit(main())
