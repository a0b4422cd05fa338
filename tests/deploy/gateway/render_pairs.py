"""Renders a template by jinja2 and by quire_render_template, and says how the two differ."""
import functools
import json
import subprocess
import warnings

import transformers_environment

warnings.simplefilter("ignore")  # escapes that Python does not know


class Pair:
    def __init__(self, program):
        self.environment = transformers_environment.make_environment()
        self.compile = functools.lru_cache(maxsize=4)(self.environment.from_string)
        self.process = subprocess.Popen([program], stdin=subprocess.PIPE, stdout=subprocess.PIPE)

    def ours(self, template, variables):
        """Returns (text, None) or (None, error)."""
        line = json.dumps({"template": template, "variables": variables}) + "\n"
        self.process.stdin.write(line.encode())
        self.process.stdin.flush()
        answer = json.loads(self.process.stdout.readline())
        return answer.get("text"), answer.get("error")

    def theirs(self, template, variables):
        try:
            text = self.compile(template).render(**variables)
            text.encode()  # a lone surrogate cannot be sent
            return text, None
        except Exception as error:  # pylint: disable=broad-except
            return None, f"{type(error).__name__}: {error}"

    def verdict(self, template, variables):
        """Returns (verdict, ours, theirs): equal, both_refuse, we_refuse, they_refuse or different."""
        ours, theirs = self.ours(template, variables), self.theirs(template, variables)
        if ours[1] is not None and theirs[1] is not None:
            verdict = "both_refuse"
        elif ours[1] is not None:
            verdict = "we_refuse"
        elif theirs[1] is not None:
            verdict = "they_refuse"
        else:
            verdict = "equal" if ours[0] == theirs[0] else "different"
        return verdict, ours, theirs
