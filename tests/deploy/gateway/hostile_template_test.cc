// Templates and variables made to exhaust the gateway. Each ends with a reason, and its memory
// stays bounded: the test counts what it allocates.
#include <malloc.h>

#include <atomic>
#include <cstdlib>
#include <new>
#include <string>
#include <vector>

#include "gtest/gtest.h"

#include "common/base/error.h"
#include "deploy/gateway/template/chat_template.h"

namespace {
std::atomic<int64_t> living_bytes = 0, peak_bytes = 0;
}  // namespace

void* operator new(size_t size) {
  void* const memory = std::malloc(size);
  if (memory == nullptr) throw std::bad_alloc();
  const int64_t now = living_bytes += static_cast<int64_t>(::malloc_usable_size(memory));
  for (int64_t peak = peak_bytes; now > peak && !peak_bytes.compare_exchange_weak(peak, now);) {
  }
  return memory;
}
void operator delete(void* memory) noexcept {
  living_bytes -= static_cast<int64_t>(::malloc_usable_size(memory));
  std::free(memory);
}
void operator delete(void* memory, size_t) noexcept { operator delete(memory); }

namespace quire {
namespace {

using OrderedJson = nlohmann::ordered_json;

std::string Repeated(std::string_view part, int count) {
  std::string text;
  for (int i = 0; i < count; ++i) {
    text += part;
  }
  return text;
}

OrderedJson NestedLists(int depth) {
  OrderedJson json = OrderedJson::array();
  for (int i = 0; i < depth; ++i) {
    OrderedJson outer = OrderedJson::array();
    outer.push_back(std::move(json));
    json = std::move(outer);
  }
  return json;
}

struct Hostile {
  std::string name, source, reason;
};

std::vector<Hostile> HostileTemplates() {
  return {
      {"long string", "{{ 'x' * 10 ** 9 }}", "TEMPLATE_LIMIT"},
      {"negative product", "{{ ('x' * -10 ** 9) ~ 'ok' }}", "ok"},
      {"product that overflows", "{{ 'xx' * 9223372036854775807 }}", "TEMPLATE_LIMIT"},
      {"long list", "{{ ([1] * 10 ** 9) | length }}", "TEMPLATE_LIMIT"},
      {"long tuple", "{{ (1, 2) * 10 ** 9 }}", "TEMPLATE_LIMIT"},
      {"long range", "{{ range(10 ** 9) | length }}", "TEMPLATE"},
      {"many ranges",
       "{% for a in range(100000) %}{% for b in range(100000) %}{% endfor %}{% endfor %}",
       "TEMPLATE_LIMIT"},
      {"doubling string",
       "{% set n = namespace(s='x') %}{% for i in range(99) %}{% set n.s = n.s ~ n.s %}{% endfor "
       "%}",
       "TEMPLATE_LIMIT"},
      {"doubling list",
       "{% set n = namespace(s=[1]) %}{% for i in range(99) %}{% set n.s = n.s + n.s %}{% endfor "
       "%}",
       "TEMPLATE_LIMIT"},
      {"quadratic concatenation",
       "{% set n = namespace(s='') %}{% for i in range(100000) %}{% set n.s = n.s ~ 'abcdefgh' "
       "%}{% endfor %}",
       "TEMPLATE_LIMIT"},
      {"replace that grows",
       "{{ ('a' * 100000).replace('a', 'b' * 100000) | length }}",
       "TEMPLATE_LIMIT"},
      {"replace filter that grows",
       "{{ ('a' * 100000) | replace('', 'b' * 100000) | length }}",
       "TEMPLATE_LIMIT"},
      {"join that grows", "{{ range(100000) | join('x' * 100000) | length }}", "TEMPLATE_LIMIT"},
      {"join method that grows",
       "{{ ('x' * 100000).join('y' * 100000) | length }}",
       "TEMPLATE_LIMIT"},
      {"indent that grows", "{{ ('a\n' * 100000) | indent(100000) | length }}", "TEMPLATE_LIMIT"},
      {"wide percent format", "{{ '%999999999999d' % 1 }}", "TEMPLATE_LIMIT"},
      {"wide format", "{{ '{:>999999999999}'.format('a') }}", "TEMPLATE_LIMIT"},
      {"precise format", "{{ '%.999999999f' % 1.5 }}", "TEMPLATE"},
      {"wide tojson", "{{ [[[1]]] | tojson(indent=999999999) }}", "TEMPLATE"},
      {"tojson of many lines",
       "{{ (range(90000) | list) | tojson(indent=1000) | length }}",
       "TEMPLATE_LIMIT"},
      {"batch that fills", "{{ [1] | batch(10 ** 9, 0) | list | length }}", "TEMPLATE_LIMIT"},
      {"macro without end", "{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}", "TEMPLATE_LIMIT"},
      {"two macros without end",
       "{% macro a(f) %}{{ f(a) }}{% endmacro %}{% macro b(f) %}{{ f(b) }}{% endmacro %}{{ a(b) }}",
       "TEMPLATE_LIMIT"},
      {"macros of two calls each",
       "{% macro m(n) %}{% if n %}{{ m(n - 1) }}{{ m(n - 1) }}{% endif %}{% endmacro %}{{ m(50) }}",
       "TEMPLATE_LIMIT"},
      {"caller without end",
       "{% macro m() %}{{ caller() }}{% endmacro %}{% macro n() %}{% call m() %}{{ n() }}{% "
       "endcall %}{% endmacro %}{{ n() }}",
       "TEMPLATE_LIMIT"},
      {"nested list",
       "{% set n = namespace(l=[]) %}{% for i in range(100000) %}{% set n.l = [n.l] %}{% endfor %}",
       "TEMPLATE_LIMIT"},
      {"nested dict",
       "{% set n = namespace(l={}) %}{% for i in range(100000) %}{% set n.l = {'a': n.l} %}{% "
       "endfor %}",
       "TEMPLATE_LIMIT"},
      {"nested iterators",
       "{% set n = namespace(l=[1]) %}{% for i in range(100000) %}{% set n.l = n.l | map('string') "
       "%}{% endfor %}{{ n.l | list }}",
       "TEMPLATE_LIMIT"},
      {"chain of namespaces",
       "{% set n = namespace() %}{% for i in range(100000) %}{% set n.a = namespace(b=n.a) %}{% "
       "endfor %}",
       "TEMPLATE_LIMIT"},
      {"namespace in itself",
       "{% set n = namespace() %}{% set n.n = n %}{{ n }}",
       "TEMPLATE_LIMIT"},
      {"list of a namespace that holds it",
       "{% set n = namespace() %}{% set n.l = [n] %}{{ n.l == n.l }}{{ n.l }}",
       "TEMPLATE_LIMIT"},
      {"macros kept in lists",
       "{% set n = namespace(l=[]) %}{% for i in range(100000) %}{% macro m() %}{% endmacro %}{% "
       "set n.l = (n.l + [m])[-9:] %}{% endfor %}",
       "TEMPLATE_LIMIT"},
      {"loop kept beyond its end",
       "{% set n = namespace() %}{% macro m() %}{% for i in [1, 2, 3] if i %}{% set n.l = loop "
       "%}{% break %}{% endfor %}{% endmacro %}{{ m() }}{{ n.l.nextitem }}",
       "2"},
      {"substring search of equal letters",
       "{% set a = 'a' * 400000 %}{{ (a ~ 'b' ~ a) in (a ~ a ~ a) }}",
       "False"},
      {"splits into letters",
       "{% set a = 'a ' * 200000 %}{% for i in range(1000) %}{% set b = a.split() %}{% endfor %}",
       "TEMPLATE_LIMIT"},
      {"reversed splits",
       "{% set a = 'ab' * 200000 %}{{ a.rsplit('b') | length }}{{ a.rsplit('b') | length }}",
       "TEMPLATE_LIMIT"},
      {"big dict",
       "{% set n = namespace(d={}) %}{% for i in range(100000) %}{% set n.d = dict(n.d, **{'k' ~ "
       "i: i}) %}{% endfor %}",
       "TEMPLATE_LIMIT"},
      {"unique of all different", "{{ range(100000) | unique | list | length }}", "TEMPLATE_LIMIT"},
      {"powers",
       "{% for i in range(100000) %}{{ 2 ** 62 }}{{ 1 ** 9223372036854775807 }}{% endfor %}",
       "TEMPLATE_LIMIT"},
      {"long upper case",
       "{% set a = 'ﬁ' * 300000 %}{% for i in range(1000) %}{% set b = a | upper %}{% endfor %}",
       "TEMPLATE_LIMIT"},
      {"strip of many", "{{ ('a' * 100000).strip('ab' * 100000) }}", "TEMPLATE"},
      {"endless output",
       "{% for i in range(100000) %}{{ 'x' * 1000 }}{% endfor %}",
       "TEMPLATE_LIMIT"},
      {"many arguments",
       "{% macro m() %}{{ varargs | length }}{% endmacro %}{% for i in range(1000) %}{{ "
       "m(*range(100000)) }}{% endfor %}",
       "TEMPLATE_LIMIT"},
      {"sort of many",
       "{{ (range(90000) | list + range(90000) | list) | sort(reverse=true) | first }}",
       "TEMPLATE_LIMIT"},
      {"deep parentheses",
       "{{ " + Repeated("(", 100000) + "1" + Repeated(")", 100000) + " }}",
       "TEMPLATE_SYNTAX"},
      {"deep lists", "{{ " + Repeated("[", 100000) + " }}", "TEMPLATE_SYNTAX"},
      {"deep not", "{{ " + Repeated("not ", 100000) + "1 }}", "TEMPLATE_SYNTAX"},
      {"deep minus", "{{ " + Repeated("-", 100000) + "1 }}", "TEMPLATE_SYNTAX"},
      {"deep sum", "{{ 1" + Repeated("+1", 100000) + " }}", "TEMPLATE_SYNTAX"},
      {"deep filters", "{{ 1" + Repeated("|abs", 100000) + " }}", "TEMPLATE_SYNTAX"},
      {"deep attributes", "{{ a" + Repeated(".a", 100000) + " }}", "TEMPLATE_SYNTAX"},
      {"deep conditions", "{{ 1" + Repeated(" if 1 else 1", 50000) + " }}", "TEMPLATE_SYNTAX"},
      {"deep ifs", Repeated("{% if 1 %}", 50000), "TEMPLATE_SYNTAX"},
      {"deep loops", Repeated("{% for a in [1] %}", 50000), "TEMPLATE_SYNTAX"},
      {"deep targets", "{% set " + Repeated("(", 100000) + " = 1 %}", "TEMPLATE_SYNTAX"},
      {"many names in many ifs",
       [] {
         std::string source;
         for (int i = 0; i < 9000; ++i) {
           source += "{% set a" + std::to_string(i) + "=1 %}{% if a %}{% set b" +
                     std::to_string(i) + "=1 %}{% endif %}";
         }
         return source;
       }(),
       ""},
      {"long source", std::string((1 << 20) + 1, 'a'), "TEMPLATE_SYNTAX"},
  };
}

std::string OutcomeOf(std::string_view source, const OrderedJson& variables) {
  const auto chat_template = ChatTemplate::Parse(source);
  if (!chat_template.ok()) {
    return ReasonOf(chat_template.status());
  }
  const auto prompt =
      chat_template->Render(variables, OrderedJson::object(), {}, absl::CivilSecond());
  return prompt.ok() ? prompt->text : ReasonOf(prompt.status());
}

TEST(HostileTemplateTest, EveryTemplateEndsWithItsReasonInBoundedMemory) {
  constexpr int64_t kMaxRenderingBytes = 16 << 20;
  ASSERT_GE(HostileTemplates().size(), 40u);
  for (const Hostile& hostile : HostileTemplates()) {
    const auto chat_template = ChatTemplate::Parse(hostile.source);
    if (!chat_template.ok()) {
      EXPECT_EQ(ReasonOf(chat_template.status()), hostile.reason) << hostile.name;
      continue;
    }
    const int64_t before = living_bytes;
    peak_bytes = before;
    EXPECT_EQ(OutcomeOf(hostile.source, OrderedJson::object()), hostile.reason) << hostile.name;
    EXPECT_LE(peak_bytes - before,
              kMaxRenderingBytes + static_cast<int64_t>(hostile.source.size()) * 100)
        << hostile.name;
    EXPECT_EQ(living_bytes, before) << hostile.name;
  }
}

// 'a' is the template's, c the client's: every second byte begins a range.
TEST(HostileTemplateTest, ManyRangesOfClientTextStayWithinTheBudget) {
  const std::string text = "{% set s = ('a' ~ c) * 50000 %}";
  const std::string again = text + "{% for i in range(100000) %}{% set t = ";
  const std::vector<Hostile> cases = {
      {"output", "{% for i in range(90000) %}a{{ c }}{% endfor %}", "ok"},
      {"string", text + "{{ s }}{{ s[::-1] }}{{ s | tojson }}", "ok"},
      {"long string", "{{ ('a' ~ c) * 1000000 }}", "TEMPLATE_LIMIT"},
      {"doubling string",
       "{% set n = namespace(s='a' ~ c) %}{% for i in range(99) %}{% set n.s = n.s ~ n.s %}"
       "{% endfor %}",
       "TEMPLATE_LIMIT"},
      {"replace that grows",
       "{% set n = namespace(s='a' ~ c) %}{% for i in range(99) %}"
       "{% set n.s = n.s.replace('a', 'a' ~ c ~ 'a') %}{% endfor %}",
       "TEMPLATE_LIMIT"},
      {"replace", again + "s.replace('a', c) %}{% endfor %}", "TEMPLATE_LIMIT"},
      {"slices", again + "s[i:] %}{% endfor %}", "TEMPLATE_LIMIT"},
      {"short slices", again + "s[50000:50009] %}{% endfor %}", "TEMPLATE_LIMIT"},
      {"copies", again + "s ~ '' %}{% endfor %}", "TEMPLATE_LIMIT"},
      {"characters", text + "{{ s | list | length }}", "TEMPLATE_LIMIT"},
      {"splits", again + "s.split(c) %}{% endfor %}", "TEMPLATE_LIMIT"},
      {"escapes", again + "[s] | tojson %}{% endfor %}", "TEMPLATE_LIMIT"},
      {"formats", again + "'%s' % s %}{% endfor %}", "TEMPLATE_LIMIT"},
  };
  const OrderedJson variables = {{"c", "x"}};
  for (const Hostile& hostile : cases) {
    const int64_t before = living_bytes;
    peak_bytes = before;
    const std::string outcome = OutcomeOf(hostile.source, variables);
    EXPECT_EQ(outcome.starts_with("TEMPLATE") ? outcome : "ok", hostile.reason) << hostile.name;
    EXPECT_LE(peak_bytes - before, 16 << 20) << hostile.name;
  }
}

TEST(HostileTemplateTest, DeepVariablesAreRefused) {
  EXPECT_EQ(OutcomeOf("{{ x }}", {{"x", NestedLists(90)}}).substr(0, 3), "[[[");
  EXPECT_EQ(OutcomeOf("{{ x }}", {{"x", NestedLists(120)}}), "TEMPLATE_LIMIT");
  EXPECT_EQ(OutcomeOf("{{ x }}", {{"x", NestedLists(20000)}}), "TEMPLATE_LIMIT");
}

TEST(HostileTemplateTest, LongVariablesAreRefused) {
  EXPECT_EQ(OutcomeOf("{{ x | length }}", {{"x", std::string(4 << 20, 'x')}}), "4194304");
  EXPECT_EQ(OutcomeOf("{{ x }}{{ x }}", {{"x", std::string(4 << 20, 'x')}}), "TEMPLATE_LIMIT");
  EXPECT_EQ(OutcomeOf("{{ x | length }}", {{"x", std::vector<int>(2'000'000, 1)}}),
            "TEMPLATE_LIMIT");
}

TEST(HostileTemplateTest, EachLimitIsKept) {
  const auto chat_template = ChatTemplate::Parse("{% for i in x %}{{ 'abcd' }}{% endfor %}");
  ASSERT_TRUE(chat_template.ok());
  const OrderedJson variables = {{"x", {1, 2, 3}}};
  const auto message = [&](const TemplateLimits& limits) {
    const auto prompt =
        chat_template->Render(variables, OrderedJson::object(), limits, absl::CivilSecond());
    return prompt.ok() ? prompt->text : std::string(prompt.status().message());
  };
  EXPECT_EQ(message({}), "abcdabcdabcd");
  EXPECT_EQ(message({.max_steps = 10}), "template: too many steps (line 1)");
  EXPECT_EQ(message({.max_memory_bytes = 500}).substr(0, 25), "template: too much memory");
  EXPECT_EQ(message({.max_output_bytes = 11}), "template: too much output (line 1)");
  EXPECT_EQ(message({.max_output_bytes = 12}), "abcdabcdabcd");
  EXPECT_EQ(message({.max_depth = 2}), "template: recursion too deep");
}

}  // namespace
}  // namespace quire
