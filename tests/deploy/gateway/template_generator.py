"""Makes random templates whose statements and expressions fit together, so that most of them render."""
import random

# Variables by type. The names are few, so that scopes collide; each name keeps its type.
NAMES = {"int": ["i", "j", "k"], "str": ["s", "t", "u"], "list": ["l", "m"], "dict": ["d", "e"]}
VARIABLES = {"i": 3, "s": "Abc d", "l": [3, 1, 2, 2], "d": {"a": 1, "b": "x", "c": [1, {"z": None}]}, "flag": True,
             "words": ["b", "A", "ä", ""], "rows": [{"n": "x", "v": 2}, {"n": "y", "v": None}, {"n": "x"}], "none": None,
             "float": 2.5, "nested": {"a": {"b": [True, 1.0, "'q\""]}}}
TEXTS = ["", "a", "Ab c", " x ", "ß", "\\n", "é\\t", "1", "-7", "2.5", "a,b,,c", "<b>&", "it\\'s", "日本", "{}", "%s"]


class Generator:
    def __init__(self, seed):
        self.random = random.Random(seed)
        self.loops = 0  # for statements around, within a macro
        self.macros = []

    def pick(self, *options):
        return self.random.choice(options)

    def chance(self, probability):
        return self.random.random() < probability

    # Expressions.
    def any(self, depth):
        return self.expression(self.pick("int", "int", "str", "str", "list", "dict", "bool", "odd"), depth)

    def expression(self, kind, depth):
        return getattr(self, "make_" + kind)(depth - 1)

    def name(self, kind):
        return self.random.choice(NAMES[kind])

    def make_int(self, depth):
        if depth <= 0 or self.chance(0.3):
            return self.pick(str(self.random.randint(-3, 9)), f"({self.name('int')} or 0)", f"({self.name('int')}|default(2))", self.name("int"))
        a, b = (lambda: self.expression("int", depth)), self.random
        return self.pick(
            lambda: f"({a()} {self.pick('+', '-', '*')} {a()})", lambda: f"({a()} {self.pick('//', '%')} {b.randint(1, 5) * b.choice([1, -1])})",
            lambda: f"({a()} / {b.choice([2, -4, 0.5])})", lambda: f"({a()} ** {b.randint(0, 3)})", lambda: f"-{a()}",
            lambda: f"{self.expression('list', depth)}|length", lambda: f"{self.expression('str', depth)}|length",
            lambda: f"{self.expression('str', depth)}|int({self.pick('', '5')})", lambda: f"{a()}|abs", lambda: f"{self.expression('str', depth)}.{self.pick('count', 'find')}({self.expression('str', depth)})",
            lambda: f"({a()} if {self.expression('bool', depth)} else {a()})", lambda: f"[{a()}, {a()}]|{self.pick('sum', 'max', 'min', 'first', 'last')}",
            lambda: f"{self.expression('str', depth)}|float", lambda: self.of_loop("index", "index0", "revindex", "length", "first", "last", "depth"))()

    def of_loop(self, *attributes):
        return f"loop.{self.pick(*attributes)}" if self.loops > 0 or self.chance(0.03) else "5"

    def make_str(self, depth):
        if depth <= 0 or self.chance(0.3):
            return self.pick(f"'{self.random.choice(TEXTS)}'", f"'{self.random.choice(TEXTS)}'", f"({self.name('str')} or 'e')", self.name("str"))
        a = lambda: self.expression("str", depth)
        return self.pick(
            lambda: f"({a()} ~ {self.any(depth)})", lambda: f"({a()}|string + {a()}|string)", lambda: f"({a()} * {self.random.randint(-1, 3)})",
            lambda: f"{a()}|{self.pick('upper', 'lower', 'title', 'capitalize', 'trim', 'reverse', 'string', 'safe', 'first', 'last')}",
            lambda: f"({a()}|string).{self.pick('upper', 'lower', 'title', 'capitalize', 'strip', 'lstrip', 'rstrip')}()",
            lambda: f"({a()}|string).{self.pick('strip', 'lstrip', 'rstrip', 'removeprefix', 'removesuffix')}({a()}|string)",
            lambda: f"({a()}|string)[{self.slice()}]", lambda: f"{a()}|replace({a()}, {a()})", lambda: f"({a()}|string).replace('a', {a()}|string)",
            lambda: f"{self.any(depth)}|tojson({self.pick('', 'indent=2', 'ensure_ascii=True', 'sort_keys=True')})",
            lambda: f"{self.expression('list', depth)}|join({self.pick('', chr(39) + '-' + chr(39))})", lambda: f"'{self.pick('%s|%s', '%r %5s', '%-4s%s')}' % ({self.any(depth)}, {a()})",
            lambda: f"'{self.pick('{} {}', '{1}{0}', '{:>5}{}')}'.format({a()}|string, {self.any(depth)})", lambda: f"{self.any(depth)}|string",
            lambda: f"({a()} if {self.expression('bool', depth)} else {a()})", lambda: f"({a()}|string)|indent({self.random.randint(0, 3)}{self.pick('', ', true')})",
            lambda: f"'-'.join({self.expression('list', depth)}|map('string'))", lambda: f"'{self.pick('%d', '%05.2f', '%x', '%+d', '% d')}' % {self.random.randint(-9, 99)}",
            lambda: self.call(depth), lambda: f"n.{self.pick('p', 'q')}")()

    def slice(self):
        part = lambda: self.pick("", str(self.random.randint(-4, 4)))
        return f"{part()}:{part()}{self.pick('', ':-1', ':2', ':-2')}"

    def call(self, depth):
        arguments = [self.any(depth) for _ in range(self.random.randint(0, 2))]
        arguments += [f"{self.pick('i', 's', 'p')}={self.any(depth)}"] * self.chance(0.3)
        return f"{self.random.choice(self.macros or ['f'])}({', '.join(arguments)})"

    def make_list(self, depth):
        if depth <= 0 or self.chance(0.2):
            return self.pick(self.name("list"), "words", "rows", "[]", "range(3)", f"[{self.make_int(0)}, {self.make_str(0)}]")
        a = lambda: self.expression("list", depth)
        return self.pick(
            lambda: f"[{', '.join(self.any(depth) for _ in range(self.random.randint(0, 3)))}]", lambda: f"({a()}|list + {a()}|list)",
            lambda: f"({a()}|list)[{self.slice()}]", lambda: f"{a()}|{self.pick('list', 'reverse', 'reverse|list', 'unique|list', 'unique')}",
            lambda: f"(words|sort{self.pick('', '(reverse=true)', '(case_sensitive=true)')})", lambda: f"({self.any(depth)}, {self.any(depth)})",
            lambda: f"({self.expression('str', depth)}|string).{self.pick('split', 'rsplit')}({self.pick('', chr(39) + ',' + chr(39), chr(39) + ' ' + chr(39) + ', 1', 'none, 1')})",
            lambda: f"rows|{self.pick('selectattr', 'rejectattr')}('v'{self.pick('', ', ' + chr(39) + 'defined' + chr(39), ', ' + chr(39) + 'equalto' + chr(39) + ', 2')})|list",
            lambda: f"{a()}|{self.pick('select', 'reject')}({self.pick('', chr(39) + 'string' + chr(39), chr(39) + 'number' + chr(39), chr(39) + 'in' + chr(39) + ', [1, ' + chr(39) + 'b' + chr(39) + ']')})|list",
            lambda: f"rows|map(attribute='{self.pick('n', 'v', 'zz')}'{self.pick('', ', default=7')})|{self.pick('list', 'list', 'unique|list')}", lambda: f"words|map('{self.pick('upper', 'length', 'trim')}')|list",
            lambda: f"{self.expression('dict', depth)}|{self.pick('dictsort', 'items|list', 'list')}", lambda: f"{self.expression('dict', depth)}.{self.pick('keys', 'values', 'items')}()",
            lambda: f"({self.expression('str', depth)}|string).splitlines()", lambda: f"{a()}|batch({self.random.randint(1, 3)}{self.pick('', ', 0')})|list")()

    def make_dict(self, depth):
        if depth <= 0 or self.chance(0.4):
            return self.pick("d", "d", "nested", "{}", self.name("dict"))
        pairs = [f"{self.pick(self.make_str(0), self.make_int(0))}: {self.any(depth)}" for _ in range(self.random.randint(0, 3))]
        return self.pick("{" + ", ".join(pairs) + "}", f"dict({self.pick('', 'd, ')}a={self.any(depth)})")

    def make_bool(self, depth):
        if depth <= 0:
            return self.pick("true", "false", "flag", "none", self.name("int"), self.name("str"))
        a = lambda kind: self.expression(kind, depth)
        return self.pick(
            lambda: f"({a('int')} {self.pick('<', '<=', '>', '>=', '==', '!=')} {a('int')})", lambda: f"({self.any(depth)} {self.pick('==', '!=')} {self.any(depth)})",
            lambda: f"({self.any(depth)} {self.pick('in', 'not in')} {a('list')})", lambda: f"({a('str')} in {a('str')})", lambda: f"({a('bool')} {self.pick('and', 'or')} {self.any(depth)})",
            lambda: f"not {a('bool')}", lambda: f"({self.any(depth)} is {self.pick('', 'not ')}{self.pick('defined', 'undefined', 'none', 'string', 'number', 'mapping', 'iterable', 'sequence', 'boolean', 'true', 'false', 'integer', 'float', 'callable')})",
            lambda: f"({a('int')} is {self.pick('odd', 'even', 'divisibleby 2', 'gt 1', 'in [1, 2]', 'eq 3')})", lambda: f"({a('str')}|string).{self.pick('startswith', 'endswith')}({a('str')}|string)",
            lambda: f"({a('int')} < {a('int')} <= {a('int')})", lambda: f"({a('str')}|string).{self.pick('isdigit', 'isalpha', 'isupper', 'islower', 'isspace', 'isalnum')}()", lambda: self.of_loop(f"changed({self.any(depth)})"))()

    def make_odd(self, depth):
        """What has no fixed type: attributes, subscripts, undefined names, conditions without else."""
        return self.pick(
            lambda: f"d.{self.pick('a', 'b', 'c', 'zz', 'items', 'pop')}", lambda: f"d['{self.pick('a', 'c', 'zz')}']", lambda: f"{self.name('list')}[{self.random.randint(-3, 3)}]",
            lambda: f"d.get({self.expression('str', depth)}{self.pick('', ', 4')})", lambda: "missing", lambda: f"n.{self.pick('p', 'q', 'r')}", lambda: f"({self.any(depth)} if {self.expression('bool', depth)})",
            lambda: f"{self.any(depth)}|default({self.any(depth)}{self.pick('', ', true')})", lambda: "nested.a.b[2]", lambda: self.of_loop("previtem", "nextitem", f"cycle({self.any(depth)}, 2)"),
            lambda: f"rows[{self.random.randint(0, 3)}].{self.pick('n', 'v')}", lambda: "float", lambda: f"{self.name('str')}[{self.random.randint(-3, 3)}]", lambda: f"{self.random.choice(self.macros or ['f'])}", lambda: "(caller() if caller is defined)", lambda: "varargs", lambda: "kwargs")()

    # Statements.
    def tag(self, text):
        return "{%" + self.pick("", "", "", "-", "+") + f" {text} " + self.pick("", "", "", "-") + "%}"

    def space(self):
        return self.pick("", "", " ", "\n", "\n  ", "x", " y\n", "{# c #}", "{#- c -#}\n")

    def output(self, depth):
        return "{{" + self.pick("", "", "-") + f" {self.any(depth)} " + self.pick("", "", "-") + "}}"

    def body(self, depth):
        return "".join(self.space() + self.statement(depth - 1) for _ in range(self.random.randint(1, 4))) + self.space()

    def target(self):
        kind = self.pick("int", "str", "list", "dict")
        return self.name(kind), kind

    def statement(self, depth):
        if depth <= 0 or self.chance(0.25):
            return self.output(2) if self.chance(0.6) else self.set(2)
        return self.pick(self.set, self.set, self.namespace, self.if_, self.if_, self.for_, self.for_, self.for_, self.macro, self.call_block, self.set_block, self.with_,
                         self.filter_block, self.generation, self.leave, self.raw)(depth)

    def set(self, depth):
        if self.chance(0.15):
            return self.tag(f"set {self.name('int')}, {self.name('str')} = {self.expression('int', 2)}, {self.expression('str', 2)}")
        name, kind = self.target()
        return self.tag(f"set {name} = {self.expression(kind, min(depth, 3))}")

    def namespace(self, depth):
        if self.chance(0.4):
            return self.tag(f"set n = namespace({self.pick('', 'd, ')}p={self.any(2)}, q={self.any(2)})")
        return self.tag(f"set n.{self.pick('p', 'q')} = {self.any(min(depth, 3))}")

    def if_(self, depth):
        text = self.tag(f"if {self.expression('bool', 2)}") + self.body(depth)
        for _ in range(self.random.choice([0, 0, 1, 2])):
            text += self.tag(f"elif {self.expression('bool', 2)}") + self.body(depth)
        if self.chance(0.5):
            text += self.tag("else") + self.body(depth)
        return text + self.tag("endif")

    def for_(self, depth):
        head = self.pick(
            lambda: f"for {self.target()[0]} in {self.expression('list', 2)}", lambda: f"for {self.name('int')} in {self.pick('range(3)', 'l', '[1, 2]')}",
            lambda: f"for {self.name('str')}, {self.name('int')} in {self.pick('d.items()', 'd|dictsort', '[(1, 2), (3, 4)]', 'd|items')}")()
        if self.chance(0.25):
            head += f" if {self.expression('bool', 2)}"
        self.loops += 1
        text = self.tag(head) + self.body(depth)
        self.loops -= 1
        if self.chance(0.3):
            text += self.tag("else") + self.body(depth)
        return text + self.tag("endfor")

    def leave(self, depth):
        if self.loops == 0:
            return self.set(depth)
        return self.tag(f"if {self.expression('bool', 2)}") + self.output(1) + self.tag(self.pick("break", "continue")) + self.tag("endif")

    def own_body(self, depth):
        loops, self.loops = self.loops, 0
        text = self.body(depth)
        self.loops = loops
        return text

    def macro(self, depth):
        name = self.pick("f", "g", "h")
        parameters = self.random.sample(["i", "s", "l", "p", "caller"], self.random.randint(0, 3))
        num_defaults = self.random.randint(0, len(parameters))
        signature = [p if i < len(parameters) - num_defaults else f"{p}={self.any(2)}" for i, p in enumerate(parameters)]
        text = self.tag(f"macro {name}({', '.join(signature)})") + self.own_body(depth) + self.tag("endmacro")
        self.macros.append(name)
        return text

    def call_block(self, depth):
        signature = self.pick("", "", "(i)", "(s, l=[])")
        return self.tag(f"call{signature} {self.call(2)}") + self.own_body(depth) + self.tag("endcall")

    def generation(self, depth):
        return self.tag("generation") + self.own_body(depth) + self.tag("endgeneration")

    def set_block(self, depth):
        return self.tag(f"set {self.name('str')}{self.pick('', ' | trim', ' | upper | replace(' + chr(39) + 'A' + chr(39) + ', s)')}") + self.body(depth) + self.tag("endset")

    def with_(self, depth):
        head = ", ".join(f"{name} = {self.expression(kind, 2)}" for name, kind in [self.target() for _ in range(self.random.randint(0, 2))])
        return self.tag(f"with {head}") + self.body(depth) + self.tag("endwith")

    def filter_block(self, depth):
        return self.tag(f"filter {self.pick('upper', 'trim', 'replace(' + chr(39) + 'a' + chr(39) + ', s)', 'lower|title')}") + self.body(depth) + self.tag("endfilter")

    def raw(self, depth):
        return self.tag("raw").replace("+%}", "%}") + self.output(1) + self.space() + self.tag("endraw")

    def template(self):
        start = ""
        if self.chance(0.9):
            start += "{% set n = namespace(p=1, q='x') %}"
        if self.chance(0.9):
            start += "{% macro f(i, s='y') %}{{ i }}{{ s }}{{ caller() if caller is defined }}{{ varargs }}{{ kwargs|length }}{% endmacro %}"
        return start + self.body(self.random.randint(1, 4))
