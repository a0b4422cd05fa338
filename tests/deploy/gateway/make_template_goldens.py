#!/usr/bin/env python3
"""Writes testdata/template_goldens.json: what jinja2, in the environment of transformers, makes of our templates.
Needs jinja2 3.1.6 (pip install jinja2==3.1.6).

Each case has a template (or the name of one in `chats`), the name of its variables, and the text, or null if jinja2 refuses the template.
"""
import json
import pathlib

import jinja2

import conversations
import render_pairs
import template_cases
import template_generator

NUM_RANDOM = 250


def render(environment, template, variables):
    try:
        text = environment.from_string(template).render(**variables)
        text.encode()  # a lone surrogate cannot be sent
        return text
    except Exception:  # pylint: disable=broad-except
        return None


def main():
    if jinja2.__version__ != "3.1.6":
        raise SystemExit(f"jinja2 3.1.6 is needed, not {jinja2.__version__}")
    environment = render_pairs.transformers_environment.make_environment()
    variables = {"small": {}, "random": template_generator.VARIABLES, **dict(conversations.all_variables())}
    chats = [(source, name) for source in template_cases.CHATS for name in variables if "/" in name]
    randoms = [template_generator.Generator(seed).template() for seed in range(NUM_RANDOM)]
    cases = [(source, "small") for source in template_cases.SMALL] + chats + [(source, "random") for source in randoms]
    rows = []
    for source, name in cases:
        text = render(environment, template_cases.CHATS.get(source, source), variables[name])
        if " at 0x" not in (text or ""):  # an address, another one in each run
            rows.append(json.dumps({"template": source, "variables": name, "text": text}, ensure_ascii=False))
    path = pathlib.Path(__file__).parent / "testdata" / "template_goldens.json"
    path.parent.mkdir(exist_ok=True)
    heads = [f'"{key}": ' + json.dumps(value, ensure_ascii=False) for key, value in (("chats", template_cases.CHATS), ("variables", variables))]
    path.write_text("{" + ",\n".join(heads) + ',\n"cases": [\n' + ",\n".join(rows) + "\n]}\n", encoding="utf-8")
    num_refused = sum(row.endswith('null}') for row in rows)
    print(f"{len(rows)} cases, {num_refused} refused")


if __name__ == "__main__":
    main()
