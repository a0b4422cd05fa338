"""Templates of our own: whole chat templates, and small ones for each rule of scope, white space and values."""

CHATML = """{%- if messages and messages[0].role == 'system' %}{% set system = messages[0].content %}{% set rest = messages[1:] %}
{%- else %}{% set system = 'Default.' %}{% set rest = messages %}{% endif %}
<|im_start|>system
{{ system }}{% if tools %}

# Tools
{%- for tool in tools %}
{{ tool | tojson }}
{%- endfor %}{% endif %}<|im_end|>
{% for message in rest %}
    {%- if message.role == 'assistant' and message.tool_calls %}
<|im_start|>assistant{% for call in message.tool_calls %}
{%- set function = call.function if call.function is defined else call %}

<tool_call>{"name": "{{ function.name }}", "arguments": {{ function.arguments if function.arguments is string else function.arguments | tojson }}}</tool_call>{% endfor %}<|im_end|>
    {%- elif message.role == 'tool' %}
        {%- if loop.first or loop.previtem.role != 'tool' %}
<|im_start|>user{% endif %}

<tool_response>{{ message.content }}</tool_response>
        {%- if loop.last or loop.nextitem.role != 'tool' %}<|im_end|>{% endif %}
    {%- else %}
<|im_start|>{{ message['role'] }}
{{ message.content }}<|im_end|>{% endif %}

{% endfor %}
{%- if add_generation_prompt %}<|im_start|>assistant
{% endif %}"""

ALTERNATING = """{{ bos_token }}{% set ns = namespace(index=0, system='') %}
{%- for message in messages %}
    {%- if message['role'] == 'system' %}{% set ns.system = ns.system ~ message['content'] | trim ~ '\\n' %}{% continue %}{% endif %}
    {%- if (message['role'] == 'user') != (ns.index % 2 == 0) %}{{ raise_exception('Roles must alternate, got ' ~ message.role) }}{% endif %}
    {%- set ns.index = ns.index + 1 %}
    {%- if message['role'] == 'user' %}{{ '[INST] ' + (ns.system if ns.index == 1 else '') + (message['content'] | string) | trim + ' [/INST]' }}
    {%- else %}{% generation %}{{ ' ' + (message['content'] or '') | trim ~ eos_token }}{% endgeneration %}{% endif %}
{%- endfor %}"""

SCHEMA = """{%- macro type_of(spec, depth=0) -%}
    {%- if spec.anyOf is defined -%}{% for each in spec.anyOf %}{{ type_of(each, depth + 1) }}{% if not loop.last %} | {% endif %}{% endfor %}
    {%- elif spec.enum -%}{{ spec.enum | map('tojson') | join(' | ') }}
    {%- elif spec.type == 'array' -%}{{ type_of(spec['items'], depth=depth + 1) }}[]
    {%- elif spec.type is string and spec.type in ('integer', 'number') -%}number
    {%- elif spec.type is iterable and spec.type is not string -%}{{ spec.type | join(' | ') }}
    {%- elif spec.type == 'object' and spec.properties -%}
{
        {%- for name, value in spec.properties | dictsort %}
{{ '  ' * (depth + 1) }}{{ name }}{{ '' if name in (spec.required or []) else '?' }}: {{ type_of(value, depth + 1) }},
            {%- if value.default is defined %} // default: {{ value.default | tojson }}{% endif %}
        {%- endfor %}
{{ '  ' * depth }}}
    {%- else -%}{{ spec.type | default('any') }}{% endif -%}
{%- endmacro -%}
{% for tool in tools or [] %}{% set f = tool.function %}
{% if f.description %}{{ f.description | indent(3, first=true) }}
{% endif %}
type {{ f.name | upper }} = {{ type_of(f.parameters) }};
{% else %}
none
{% endfor %}"""

REASONING = """{%- set ns = namespace(last=-1) %}
{%- for message in messages[::-1] %}{% if ns.last < 0 and message.role == 'user' %}{% set ns.last = messages | length - 1 - loop.index0 %}{% endif %}{% endfor %}
{%- for message in messages %}
{%- set content = message.content if message.content is string else '' %}{% set reasoning = '' %}
{%- if message.reasoning_content is string %}{% set reasoning = message.reasoning_content %}
{%- elif '</think>' in content %}{% set reasoning = content.split('</think>')[0].rstrip('\\n').split('<think>')[-1].lstrip('\\n') %}
{%- set content = content.split('</think>')[-1].lstrip('\\n') %}{% endif %}
{{ loop.index0 }}/{{ ns.last }} {{ message.role }}{% if reasoning and loop.index0 > ns.last %} <think>{{ reasoning.strip() }}</think>{% endif %} {{ content.strip() }}
{% endfor %}{{ strftime_now('%d %b %Y, %H:%M') }}"""

CHATS = {"chatml": CHATML, "alternating": ALTERNATING, "schema": SCHEMA, "reasoning": REASONING}

SMALL = [
    # A name is of the frame that assigns it.
    "{% set x = 1 %}{% for i in [1, 2] %}{% set x = x + i %}{{ x }} {% endfor %}{{ x }}",
    "{% for i in [1, 2] %}{{ x }}{% set x = i %}{{ x }};{% endfor %}{{ x }}",
    "{% if true %}{% set x = 1 %}{% endif %}{{ x }}", "{% if false %}{% set x = 1 %}{% endif %}{{ x is defined }}",
    "{% set x = 0 %}{% for i in [1] %}{% if false %}{% set x = 9 %}{% endif %}{{ x }}{% endfor %}",
    "{% for i in [1] %}{% if i > 5 %}{% set flag = 1 %}{% endif %}[{{ flag }}]{% endfor %}",
    "{% set a = 1 %}{% macro m() %}{{ a }}{% set a = 2 %}{{ a }}{% endmacro %}{{ m() }}{{ a }}",
    "{% macro m() %}{{ later }}{% endmacro %}{{ m() }}{% set later = 5 %}{{ m() }}", "{% macro m() %}{{ loop }}{% endmacro %}{% for i in [1] %}{{ m() }}|{% endfor %}",
    "{% for i in [1, 2] %}{% macro m() %}{{ i }}{{ loop.index }}{% endmacro %}{{ m() }}{% endfor %}{{ m is defined }}",
    "{% for a in [1] %}{% for b in [2] %}{% set c = a %}{{ loop.index }}{% endfor %}{{ c }}{{ b }}{{ loop.last }}{% endfor %}{{ a }}",
    "{% set a %}x{% set b = 1 %}{{ b }}{% endset %}{{ a }}{{ b }}", "{% with a = 1, b = a %}{{ a }}{{ b }}{% endwith %}{{ a }}",
    "{% set a = 'o' %}{% filter upper %}{{ a }}{% set a = 'i' %}{{ a }}{% endfilter %}{{ a }}", "{% set ns = namespace(n=0) %}{% for i in range(4) %}{% set ns.n = ns.n + i %}{% endfor %}{{ ns.n }}{{ ns }}",
    "{% set a, b = 1, (2, 3) %}{{ a }}{{ b }}{% for (x, y), z in [((1, 2), 3)] %}{{ x }}{{ y }}{{ z }}{% endfor %}",
    "{% macro m(a, b=a, c=d, d=4) %}{{ a }},{{ b }},{{ c }},{{ d }}{{ kwargs }}{{ varargs }}{% endmacro %}{{ m() }};{{ m(1) }};{{ m(1, 2, 3, 4, 5, z=6) }}",
    "{% macro m(n) %}{{ n }}{% if n > 0 %}{{ m(n - 1) }}{% endif %}{% endmacro %}{{ m(5) }}", "{% macro m() %}<{{ caller(1, b=2) }}>{% endmacro %}{% call(a, b) m() %}{{ a }}{{ b }}{% endcall %}",
    "{% generation %}{% set q = 1 %}{{ q }}{% endgeneration %}{{ q }}", "{% for i in [1, 2, 3] %}{% if i == 2 %}{% continue %}{% endif %}{{ i }}{% else %}E{% endfor %}",
    "{% for i in [1] %}{% break %}{% else %}E{% endfor %}", "{% for i in [] %}{% else %}{% set z = 1 %}{{ z }}{% endfor %}{{ z }}", "{% for i in [1, 2, 3, 4] if i is even %}{{ loop.index }}/{{ loop.length }}{{ i }}{{ loop.nextitem }}{% endfor %}",
    "{% for i in 'aäb' %}{{ loop.cycle('x', 'y') }}{{ i }}{{ loop.changed(i == 'b') }}{{ loop.previtem }}{% endfor %}", "{% set x = x %}{{ x }}{% set loop = 3 %}{{ loop }}",
    # White space.
    "  {% if true %}\n a\n  {% endif %}\nb", "a {%- if true -%} b {%- endif -%} c", "  {%+ if true %}x{% endif +%}\ny", "{{ 1 -}}  \n x {#- c -#} y", "{# a #}\n b {# c +#}\nd", "x\n", "x\n\n", "{% raw %}\n{{ a }}{% endraw %}\n b", "a{%- raw -%} {{ b }} {%- endraw -%} c",
    "  {{ 1 }}\n  {# x #}  \n z", "\r\n{% set a = 1 %}\r\nb\r", "{%- for i in [1, 2] %}\n  {{ i }}\n{%- endfor %}\n",
    # Values.
    "{{ 7 // 2 }} {{ -7 // 2 }} {{ -7 % 3 }} {{ 7 / 2 }} {{ 2 ** 10 }} {{ 2 ** -1 }} {{ 7.5 // 2 }} {{ -7.5 % 2 }} {{ 1e16 }} {{ 1e-5 }} {{ 0.1 + 0.2 }} {{ 1.0 }} {{ true + 1 }} {{ 3 - -2 }}",
    "{{ [1, 'a', \"it's\", 'q\"', 'both\\'\"', none, true, 1.5, (1,), (), {}, {'a': [1]}, '\\n\\t\\\\ä\\x07\\u200b'] }}", "{{ 'abc'[::-1] }} {{ 'äöü'[1] }} {{ 'abc'[-2:] }} {{ [1, 2, 3][5:] }} {{ (1, 2, 3)[::2] }} {{ 'abc'[9] }}",
    "{{ 'ß'.upper() }} {{ 'ΑΣ'.lower() }} {{ 'hello wORLD-x'.title() }} {{ 'hello wORLD-x' | title }} {{ 'ǆ'.title() }} {{ 'éA'.capitalize() }} {{ 'İ'.lower() | length }}",
    "{{ 'a b  c '.split() }} {{ 'a,b,,c'.split(',') }} {{ 'a,b,c'.rsplit(',', 1) }} {{ ' a b c '.split(none, 1) }} {{ ' a b c '.rsplit(none, 1) }} {{ 'aaa'.rsplit('aa') }} {{ 'a\\r\\nb\\u2028c\\n'.splitlines() }}",
    "{{ 'xxaxx'.strip('x') }} {{ '  a '.lstrip() }}| {{ 'abc'.find('c') }} {{ 'abcabc'.count('bc') }} {{ 'abc'.replace('', '-') }} {{ 'aaa'.replace('a', 'b', 2) }} {{ 'abc'.removeprefix('a').removesuffix('c') }} {{ 'abc'.startswith(('x', 'a')) }}",
    "{{ {'a': 1}.get('b') }} {{ {'a': 1}.get('b', 2) }} {{ {'a': 1}.items() }} {{ {'a': 1}.keys() | list }} {{ {'items': 1}.items is callable }} {{ {'items': 1}['items'] }} {{ {1: 'a', 1.0: 'b', true: 'c'} }}",
    "{{ [1, 2].append }}{{ [1].append is defined }} {{ {}.update is undefined }}", "{{ [1].append(2) }}", "{{ {}.update({}) }}", "{{ {'a': 1}.pop('a') }}",
    "{{ 1 < 2 < 3 }} {{ 1 < 3 < 2 }} {{ 1 == 1.0 == true }} {{ 'a' < 'b' }} {{ [1, 2] < [1, 3] }} {{ 1 in [1.0] }} {{ 'a' not in 'bc' }} {{ not none }} {{ 'x' in {'x': 1} }}", "{{ 1 < 'a' }}", "{{ x.y }}", "{{ x + 1 }}", "{{ x['y'] }}", "{{ x() }}", "{{ 'a' + 1 }}", "{{ none.x }}|{{ 5['a'] }}",
    "{{ x }}{{ x is defined }}{{ x | default('d') }}{{ '' | d('e', true) }}{{ [x] }}{{ x ~ 1 }}{{ x | length }}{{ x == y }}{{ 1 if false }}{% for a in x %}{% endfor %}",
    "{{ {'b': 1, 'a': [1.5, none, true, 'ä\"\\n\\x01</script>']} | tojson }} {{ {'b': 1, 'a': {}} | tojson(indent=2) }} {{ [1, [2]] | tojson(indent=1, separators=(',', ':')) }} {{ {'b': 'ä😀', 'a': 2} | tojson(true, sort_keys=true) }} {{ {1: 2, none: 3, true: 4} | tojson }}", "{{ x | tojson }}", "{{ {'a': 1}.items() | tojson }}",
    "{{ '%s %d %5.2f %x %-4s|%%' % ('a', 3.9, 2.345, 255, 'b') }} {{ '%(a)s' % {'a': 1} }} {{ '%s' | format('x') }} {{ '{} {1}' }} {{ '{:>5}|{:<4}|{:^5}|{:05d}|{:.2f}|{:,}'.format('a', 'b', 'c', 42, 3.14159, 1234567) }} {{ '{a}{0}'.format(1, a=2) }}",
    "{{ [3, 1, 2] | sort }} {{ ['b', 'A'] | sort }} {{ [1, 1, 2] | unique | list }} {{ [1, 2] | sum }} {{ [1, 2, 3] | reverse | list }} {{ 'abc' | reverse }} {{ [] | first }} {{ [1, 2] | last }} {{ [[1, 'x'], [2, 'y']] | map(attribute=1) | join('+') }} {{ [1, 2, 3] | select('odd') | list }} {{ [{'a': 1}, {'a': 0}, {}] | selectattr('a') | list }}",
    "{% set t = [1, 2] | map('string') %}{{ t | join }}{{ t | join }}{{ t is iterable }}{{ t is sequence }}", "{{ ('<a>' | safe) + '<b>' }} {{ '<b>' + ('<a>' | safe) }} {{ ('a' | safe) ~ '<' }} {{ ['x' | safe] }}", "{{ 'a\\nb\\n\\nc' | indent }}|{{ 'a\\nb' | indent(2, true) }}|{{ 'a\\n\\nb' | indent('> ', blank=true) }}",
    "{{ '42.7' | int }} {{ 'x' | int(5) }} {{ ' 1_0 ' | int }} {{ 3.9 | int }} {{ '1e3' | float }} {{ 'nan' | float }} {{ 'inf' | int }} {{ none | int }} {{ '-5' | int | abs }}", "{{ range(3) }} {{ range(1, 7, 2) | list }} {{ range(5)[1:3] }} {{ 2 in range(3) }} {{ range(0) | length }}",
    "{{ dict(a=1, **{'b': 2}) }} {{ dict([('x', 1)]) }} {{ namespace(a=1).a }} {{ cycler is defined }}", "{{ 1 is sameas 1.0 }} {{ none is sameas none }} {{ 4 is divisibleby 2 }} {{ 'a' is in 'abc' }} {{ 3 is not odd }} {{ 'A' is upper }} {{ [] is mapping }} {{ 1 is number }} {{ true is integer }}",
    "{{ raise_exception('no ' ~ 1) }}", "{{ 'a' 'b' }} {{ [1, 2,] }} {{ (1) }} {{ {'a': 1,} }} {{ 1_000 }} {{ 0x1F }} {{ [[1]][0][0] }} {{ {'a': {'b': 2}}.a.b }} {{ [5].0 }}", "{{ '\\u00e9\\x41\\n\\q\\'' }} {{ \"a\\\nb\" }}", "{% print 1, 2 %}{{- 3 if 1 else 4 if 2 else 5 }} {{ not 1 == 2 }} {{ -1 ** 2 }} {{ 2 ** 3 ** 2 }} {{ -3 | abs }} {{ 1 ~ 2 + 3 }}",
    # What is refused.
    "{{ 1 | nothing }}", "{% if false %}{{ 1 | nothing }}{% endif %}ok", "{{ 1 is nothing }}", "{% nothing %}", "{{ 'a'.nothing() }}", "{{ 'a'.nothing }}|", "{% for loop in [1] %}{% endfor %}", "{% for i in [1] %}{% set loop = 1 %}{% endfor %}", "{% break %}", "{% for i in [1] %}{% generation %}{% break %}{% endgeneration %}{% endfor %}", "{{ f(a=1, a=2) }}", "{% macro m(a, a) %}{% endmacro %}", "{% macro m(a=1, b) %}{% endmacro %}", "{% set 1 = 2 %}", "{% set a.b = 1 %}",
    "{{ 1 / 0 }}", "{{ [1, 2] | join(x, y, z) }}", "{% set a, b = [1] %}", "{{ {[]: 1} }}", "{{ ''.join([1]) }}", "{{ 'a'.split('') }}", "{{ '%d' % 'a' }}", "{{ '%s' % (1, 2) }}", "{{ '{}'.format() }}", "{% include 'x' %}", "{% extends 'x' %}", "{{ namespace(_a=1) }}", "{% set n = namespace() %}{% set n._a = 1 %}",
    "{{ m() }}{% macro m() %}{% endmacro %}", "{{ (1, 2) }}{{ 1, 2 }}{{ () }}", "{{", "{% if %}{% endif %}", "{% if 1 %}", "{{ 'a }}", "{# a", "{% raw %}", "{{ 1 2 }}", "{{ ] }}", "{{ a. }}", "{% endif %}", "{{ (1 }}", "{% set %}x{% endset %}", "{% for in x %}{% endfor %}", "{{ a[1:2, 3] }}", "{% call 1 %}{% endcall %}", "{{ '\\ud800' }}", "{% set a | trim | upper %} x {% endset %}{{ a }}|{% filter trim | upper %} y {% endfilter %}",
]
