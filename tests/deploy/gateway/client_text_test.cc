// Which bytes of a rendered prompt are the client's.
#include <string>
#include <utility>
#include <vector>

#include "gtest/gtest.h"

#include "common/base/error.h"
#include "common/base/read_file.h"
#include "deploy/gateway/template/chat_template.h"

namespace quire {
namespace {

using OrderedJson = nlohmann::ordered_json;

constexpr absl::CivilSecond kNow(2026, 7, 4, 13, 5, 9);

// The text with '[' and ']' around what is the client's.
std::string Bracketed(const RenderedPrompt& prompt) {
  std::string result;
  size_t done = 0;
  for (const ByteRange& range : prompt.client_text) {
    EXPECT_LT(range.begin, range.end);
    EXPECT_TRUE(range.begin > done || done == 0) << "ranges touch";
    result += prompt.text.substr(done, range.begin - done) + "[" +
              prompt.text.substr(range.begin, range.end - range.begin) + "]";
    done = range.end;
  }
  return result + prompt.text.substr(done);
}

absl::StatusOr<RenderedPrompt> Render(std::string_view source,
                                      const OrderedJson& client,
                                      const OrderedJson& model = OrderedJson::object()) {
  const auto chat_template = ChatTemplate::Parse(source);
  return chat_template.ok() ? chat_template->Render(client, model, {}, kNow)
                            : chat_template.status();
}

TEST(ClientTextTest, EachOperationKeepsTheMarks) {
  const OrderedJson client = {
      {"c", "αβγ"},
      {"words", "α β γ"},
      {"lines", "α\nβ\n"},
      {"d", {{"κ", "λ"}, {"μ", {1, nullptr}}}},
      {"named", {{"k", "λ"}, {"v", "μ"}}},
      {"l", {"α", "β"}},
      {"format", "%5s|{:δ>3}|%%"},
      {"quote", "it's <\"α\">"},
      {"n", 5},
      {"empty", ""},
      {"time", "%Y"},
  };
  const OrderedJson model = {{"bos", "<s>"}, {"own", {{"c", "x"}}}};
  const std::vector<std::pair<std::string, std::string>> cases = {
      {"a{{ c }}b{{ bos }}{{ n }}{{ empty }}", "a[αβγ]b<s>5"},
      {"{{ c ~ 'x' ~ c }}{{ 'a' + c + c }}", "[αβγ]x[αβγ]a[αβγαβγ]"},
      {"{{ ('x' ~ c) * 2 }}{{ c * 2 }}", "x[αβγ]x[αβγαβγαβγ]"},
      {"{% set s %}a{{ c }}{% endset %}{{ s }}{% set t | trim %} {{ s }} {% endset %}{{ t }}",
       "a[αβγ]a[αβγ]"},
      {"{% macro m(x, y='q') %}<{{ x }}{{ y }}{{ caller() }}>{% endmacro %}"
       "{% call m(c) %}z{{ c }}{% endcall %}",
       "<[αβγ]qz[αβγ]>"},
      {"{% macro m() %}{{ kwargs }}{% endmacro %}{{ m(**named) }}{{ dict(**named) }}",
       "{'[k]': '[λ]', '[v]': '[μ]'}{'[k]': '[λ]', '[v]': '[μ]'}"},
      {"{{ namespace(**named) }}{{ dict(named, k='x') }}",
       "<Namespace {'[k]': '[λ]', '[v]': '[μ]'}>{'[k]': 'x', '[v]': '[μ]'}"},
      {"{{ [c, 'x', n] | join('-') }}{{ '-'.join([c, 'x']) }}{{ ['x', 'y'] | join(c) }}",
       "[αβγ]-x-5[αβγ]-xx[αβγ]y"},
      {"{{ c[1] }}{{ ('x' ~ c)[:2] }}{{ ('x' ~ c ~ 'y')[::-1] }}{{ ('x' ~ c)[::2] }}",
       "[β]x[α]y[γβα]xx[β]"},
      {"{{ ('ab' ~ 'c')[::-1] }}{{ c | first }}{{ c | last }}{{ c | reverse }}", "cba[αγγβα]"},
      {"{% for x in 'a' ~ c %}{{ x }},{% endfor %}", "a,[α],[β],[γ],"},
      {"{{ ('a ' ~ words).split() }}{{ words.split(' ', 1) }}{{ ('a-' ~ c).split('-') }}",
       "['a', '[α]', '[β]', '[γ]']['[α]', '[β γ]']['a', '[αβγ]']"},
      {"{{ ('a-' ~ c ~ '-b').rsplit('-', 1) }}{{ ('a ' ~ words).rsplit(none, 1) }}",
       "['a-[αβγ]', 'b']['a [α β]', '[γ]']"},
      {"{{ ('x\n' ~ lines).splitlines() }}", "['x', '[α]', '[β]']"},
      {"{{ (' ' ~ c ~ ' ').strip() }}{{ ('x' ~ c).lstrip('x') }}{{ ('x' ~ c).rstrip('γ') }}",
       "[αβγαβγ]x[αβ]"},
      {"{{ ('x' ~ c).removeprefix('x') }}{{ ('x' ~ c).removesuffix('γ') }}", "[αβγ]x[αβ]"},
      {"{{ ('xaya' ~ c).replace('a', c) }}{{ c.replace('β', 'b') }}{{ c | replace('β', '') }}",
       "x[αβγ]y[αβγαβγα]b[γαγ]"},
      {"{{ c.replace('', '-') }}", "-[α]-[β]-[γ]-"},
      {"{{ c | upper }}{{ ('x' ~ c) | title }}{{ 'x' | upper }}{{ ('x' ~ c).capitalize() }}",
       "[ΑΒΓXαβγ]X[Xαβγ]"},
      {"{{ '%s-%5s-%r' % (c, c, c) }}{{ '%.2s' % c }}", "[αβγ]-  [αβγ]-'[αβγ]'[αβ]"},
      {"{{ '{}-{:>5}-{!r}'.format(c, c, c) }}{{ '%s' | format(c) }}", "[αβγ]-  [αβγ]-'[αβγ]'[αβγ]"},
      {"{{ format % 'x' }}{{ format.format('x') }}", "[    x|{:δ>3}|%%5s|δδx|%%]"},
      {"{{ '%(k)s' % named }}{{ '%(k)s' | format(**named) }}", "[λλ]"},
      {"{{ d }}{{ d | tojson }}",
       "{'[κ]': '[λ]', '[μ]': [1, None]}{\"[κ]\": \"[λ]\", \"[μ]\": [1, "
       "null]}"},
      {"{{ {'a': c} | tojson(indent=c) }}{{ [1, c] | tojson(separators=(c, c)) }}",
       "{\n[αβγ]\"a\": \"[αβγ]\"\n}[1[αβγ]\"[αβγ]\"]"},
      {"{{ c | tojson(ensure_ascii=true) }}{{ [quote] }}{{ quote | tojson }}",
       "\"[\\u03b1\\u03b2\\u03b3]\"['[it\\'s <\"α\">]']\"[it's <\\\"α\\\">]\""},
      {"{{ ('<' ~ quote) + ('x' | safe) }}{{ quote | safe }}",
       "&lt;[it&#39;s &lt;&#34;α&#34;&gt;]x[it's <\"α\">]"},
      {"{{ ('x\n' ~ lines) | indent(2) }}{{ 'x\ny' | indent(c) }}", "x[\n]  [α\n]  [β\n]x\n[αβγ]y"},
      {"{{ l }}{{ l | join }}{{ l | map('upper') | list }}{{ (l + ['x']) | sort | join }}",
       "['[α]', '[β]'][αβ]['[Α]', '[Β]']x[αβ]"},
      {"{% for k, v in d.items() %}{{ k }}{% endfor %}{{ d | list }}{{ d | dictsort | first }}",
       "[κμ]['[κ]', '[μ]']('[κ]', '[λ]')"},
      {"{% for x in l %}{{ loop.cycle('a', c) }}{{ loop.previtem }}{% endfor %}", "a[αβγα]"},
      {"{% set n = namespace(s='') %}{% for x in l %}{% set n.s = n.s ~ x ~ ';' %}{% endfor %}"
       "{{ n.s }}",
       "[α];[β];"},
      {"{{ strftime_now(time) }}{{ strftime_now('%Y') }}", "[2026]2026"},
      // Text that the client only chooses is the template's.
      {"{% if c == 'αβγ' %}<|x|>{% endif %}{{ {'αβγ': '<|y|>'}[c] }}{{ c in 'αβγδ' }}",
       "<|x|><|y|>True"},
      {"{{ c | default('x') }}{{ empty or 'x' }}{{ c and 'y' }}{{ empty | d('z', true) }}",
       "[αβγ]xyz"},
      {"{% filter trim %} {{ c }}<|x|> {% endfilter %}{% generation %}{{ c }}{% endgeneration %}",
       "[αβγ]<|x|>[αβγ]"},
      {"{{ own.c }}{{ own }}", "x{'c': 'x'}"},
  };
  for (const auto& [source, expected] : cases) {
    const auto prompt = Render(source, client, model);
    ASSERT_TRUE(prompt.ok()) << source << "\n" << prompt.status();
    EXPECT_EQ(Bracketed(*prompt), expected) << source;
  }
}

TEST(ClientTextTest, AVariableOfTheClientHidesTheModels) {
  EXPECT_EQ(Bracketed(*Render("{{ bos }}{{ eos }}", {{"bos", "α"}}, {{"bos", "x"}, {"eos", "y"}})),
            "[α]y");
  EXPECT_EQ(ReasonOf(Render("", OrderedJson::object(), OrderedJson::array()).status()), "TEMPLATE");
}

bool IsLatin(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z'); }

// True if a letter of Greek begins here. They have two bytes.
bool IsGreek(const std::string& text, size_t i) {
  const auto byte = static_cast<uint8_t>(text[i]);
  return byte >= 0xCD && byte <= 0xCF;
}

// Checks that no Greek letter lacks a mark, and if `is_exact`, that no Latin one has it.
void CheckMarks(const RenderedPrompt& prompt, bool is_exact, const std::string& source) {
  auto range = prompt.client_text.begin();
  for (size_t i = 0; i < prompt.text.size(); ++i) {
    while (range != prompt.client_text.end() && range->end <= i) {
      ++range;
    }
    const bool is_marked = range != prompt.client_text.end() && range->begin <= i;
    ASSERT_TRUE(is_marked || !IsGreek(prompt.text, i)) << source << "\n" << Bracketed(prompt);
    ASSERT_FALSE(is_exact && is_marked && IsLatin(prompt.text[i])) << source << "\n"
                                                                   << Bracketed(prompt);
  }
}

// The random templates of template_generator.py: their literals have no Greek letters, and the
// client's strings have no Latin ones.
TEST(ClientTextTest, RandomTemplatesMarkTheClientsLettersAndNoOthers) {
  const OrderedJson client = {{"s", "Αβγ δ"},
                              {"t", "σς"},
                              {"u", "ωψ"},
                              {"m", {"γ", "δ"}},
                              {"l", {3, "β", "α", 2}},
                              {"e", {{"κ", 1}, {"λ", "μν"}, {"ξ", {1, {{"ο", nullptr}}}}}},
                              {"words", {"β", "Α", "ά", ""}}};
  const OrderedJson model = {
      {"i", 3},
      {"d", {{"a", 1}, {"b", "x"}, {"c", {1, {{"z", nullptr}}}}}},
      {"flag", true},
      {"rows", {{{"n", "x"}, {"v", 2}}, {{"n", "y"}, {"v", nullptr}}, {{"n", "x"}}}},
      {"none", nullptr},
      {"float", 2.5},
      {"nested", {{"a", {{"b", {true, 1.0, "'q\""}}}}}}};
  const auto file = ReadFile("tests/deploy/gateway/testdata/template_goldens.json", 16 << 20);
  ASSERT_TRUE(file.ok()) << file.status();
  int num_rendered = 0, num_exact = 0, num_marked = 0;
  const OrderedJson goldens = OrderedJson::parse(*file);
  for (const OrderedJson& golden : goldens["cases"]) {
    const std::string source = golden["template"];
    const auto prompt = Render(source, client, model);
    if (golden["variables"] != "random" || !prompt.ok()) {
      continue;
    }
    // These mark the whole text, or write Greek letters as Latin ones.
    bool is_exact = true;
    for (const char* word : {"upper", "lower", "title", "capitalize", "ensure_ascii"}) {
      is_exact = is_exact && source.find(word) == std::string::npos;
    }
    CheckMarks(*prompt, is_exact, source);
    ++num_rendered;
    num_exact += is_exact ? 1 : 0;
    num_marked += prompt->client_text.empty() ? 0 : 1;
  }
  EXPECT_GE(num_rendered, 100);
  EXPECT_GE(num_exact, 40);
  EXPECT_GE(num_marked, 50);
}

TEST(ClientTextTest, ATemplateThatLoopsOverContentsIsKnown) {
  const auto loops = [](std::string_view source) {
    const auto chat_template = ChatTemplate::Parse(source);
    EXPECT_TRUE(chat_template.ok()) << chat_template.status();
    return chat_template.ok() && chat_template->loops_over_content();
  };
  EXPECT_TRUE(loops("{% for m in messages %}{% for c in m['content'] %}{% endfor %}{% endfor %}"));
  EXPECT_TRUE(
      loops("{% set a = messages[1:] %}{% set b = a | list %}{% for m in b %}{% if m %}"
            "{% for c in m.content | reverse %}{% endfor %}{% endif %}{% endfor %}"));
  EXPECT_TRUE(
      loops("{% macro f() %}{% for m in messages %}{% if 0 %}{% elif 1 %}"
            "{% for c in m.content[1:] %}{% endfor %}{% endif %}{% endfor %}{% endmacro "
            "%}"));
  EXPECT_FALSE(
      loops("{% for m in messages %}{{ m.content }}{% for c in m.tool_calls %}{% endfor "
            "%}{% endfor %}"));
  EXPECT_FALSE(
      loops("{% for m in messages %}{% set c = m.content %}{% for p in c %}{% endfor "
            "%}{% endfor %}"));
  EXPECT_FALSE(loops("{% for t in tools %}{% for c in t.content %}{% endfor %}{% endfor %}"));
  EXPECT_FALSE(loops("{% for a, b in messages %}{% for c in a.content %}{% endfor %}{% endfor %}"));
  EXPECT_FALSE(
      loops("{% set a = a %}{% for m in a %}{% for c in m.content %}{% endfor %}{% endfor "
            "%}"));
}

}  // namespace
}  // namespace quire
