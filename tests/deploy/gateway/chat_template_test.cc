#include "deploy/gateway/template/chat_template.h"

#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "gtest/gtest.h"

#include "common/base/error.h"
#include "common/base/read_file.h"

namespace quire {
namespace {

using OrderedJson = nlohmann::ordered_json;

constexpr absl::CivilSecond kNow(2026, 7, 4, 13, 5, 9);  // as in transformers_environment.py

absl::StatusOr<std::string> Render(std::string_view source,
                                   const OrderedJson& variables = OrderedJson::object()) {
  const auto chat_template = ChatTemplate::Parse(source);
  if (!chat_template.ok()) {
    return chat_template.status();
  }
  auto prompt = chat_template->Render(variables, OrderedJson::object(), {}, kNow);
  return prompt.ok() ? absl::StatusOr<std::string>(std::move(prompt->text)) : prompt.status();
}

std::string ReasonFor(std::string_view source,
                      const OrderedJson& variables = OrderedJson::object()) {
  const auto text = Render(source, variables);
  return text.ok() ? "text: " + *text : ReasonOf(text.status());
}

std::string MessageFor(std::string_view source) {
  return std::string(Render(source).status().message());
}

TEST(ChatTemplateTest, RendersWhatJinjaRendersAndRefusesWhatJinjaRefuses) {
  const auto file = ReadFile("tests/deploy/gateway/testdata/template_goldens.json", 16 << 20);
  ASSERT_TRUE(file.ok()) << file.status();
  const OrderedJson goldens = OrderedJson::parse(*file);
  ASSERT_GT(goldens["cases"].size(), 500u);
  for (const OrderedJson& golden : goldens["cases"]) {
    std::string source = golden["template"];
    source = goldens["chats"].value(source, source);
    const std::string name = golden["variables"];
    const auto text = Render(source, goldens["variables"][name]);
    if (golden["text"].is_null()) {
      EXPECT_FALSE(text.ok()) << source << "\n" << name << "\n" << *text;
    } else {
      EXPECT_TRUE(text.ok()) << source << "\n" << name << "\n" << text.status();
      EXPECT_EQ(text.value_or(""), golden["text"].get<std::string>()) << source << "\n" << name;
    }
  }
}

TEST(ChatTemplateTest, SyntaxErrorNamesItsLine) {
  EXPECT_EQ(ReasonFor("a\nb {% if %}"), "TEMPLATE_SYNTAX");
  EXPECT_EQ(MessageFor("a\nb {% if %}"), "template: line 2: expected an expression");
  EXPECT_EQ(MessageFor("{{ 1 }}\n\n{% nothing %}"), "template: line 3: unknown tag 'nothing'");
  EXPECT_EQ(MessageFor("{{ 1 | nothing }}"), "template: line 1: unknown filter or test 'nothing'");
}

TEST(ChatTemplateTest, FailureNamesTheStatementsLine) {
  EXPECT_EQ(MessageFor("a\n{{ x.y }}"), "template: 'x' is undefined (line 2)");
  EXPECT_EQ(ReasonFor("{{ x.y }}"), "TEMPLATE");
}

TEST(ChatTemplateTest, RaisedExceptionHasItsMessage) {
  const std::string source = "{{ raise_exception('unknown role: ' ~ role) }}";
  EXPECT_EQ(ReasonFor(source, {{"role", "wizard"}}), "TEMPLATE_EXCEPTION");
  EXPECT_EQ(Render(source, {{"role", "wizard"}}).status().message(),
            "unknown role: wizard (line 1)");
}

TEST(ChatTemplateTest, RaisedMessageIsCutAtACharacter) {
  const auto status = Render("{{ raise_exception('ä' * 5000) }}").status();
  EXPECT_EQ(status.message().size(), 1000 + std::string(" (line 1)").size());
}

TEST(ChatTemplateTest, MethodsThatAreNotThereAreRefusedByName) {
  EXPECT_EQ(MessageFor("{{ 'a'.swapcase() }}"),
            "template: 'str' attribute 'swapcase' is not supported (line 1)");
  EXPECT_EQ(MessageFor("{{ [1].append(2) }}"),
            "template: access to attribute 'append' of 'list' object is unsafe. (line 1)");
}

TEST(ChatTemplateTest, ValuesWithoutATextAreRefused) {
  EXPECT_EQ(MessageFor("{{ [1] | map('string') }}"), "template: a generator has no text (line 1)");
  EXPECT_EQ(MessageFor("{{ 'a'.upper }}"), "template: a function has no text (line 1)");
}

TEST(ChatTemplateTest, MethodsAreNotCompared) {
  EXPECT_EQ(MessageFor("{% set s = 'a' %}{{ s.upper == s.upper }}"),
            "template: methods cannot be compared (line 1)");
  EXPECT_EQ(ReasonFor("{% set s = 'a' %}{{ s.upper == s.lower }}"), "text: False");
  EXPECT_EQ(ReasonFor("{% macro f() %}{% endmacro %}{{ f == f }}"), "text: True");
}

TEST(ChatTemplateTest, KeysKeepTheOrderOfTheJson) {
  EXPECT_EQ(
      *Render("{{ d | tojson }}{{ d | list }}", OrderedJson::parse(R"({"d": {"z": 1, "a": 2}})")),
      R"({"z": 1, "a": 2}['z', 'a'])");
}

TEST(ChatTemplateTest, BytesThatAreNotUtf8AreRefused) {
  EXPECT_EQ(ReasonFor("\xC3("), "TEMPLATE_SYNTAX");
  EXPECT_EQ(ReasonFor("{{ x }}", {{"x", "\xED\xA0\x80"}}), "TEMPLATE");
  EXPECT_EQ(ReasonFor("{{ x }}", {{"\xFF", 1}}), "TEMPLATE");
}

TEST(ChatTemplateTest, IntegersBeyond64BitsAreRefused) {
  EXPECT_EQ(*Render("{{ x }}", {{"x", INT64_MAX}}), "9223372036854775807");
  EXPECT_EQ(ReasonFor("{{ x }}", {{"x", uint64_t{1} << 63}}), "TEMPLATE");
  for (const char* source : {"{{ x + 1 }}",
                             "{{ x * 2 }}",
                             "{{ -x - 2 }}",
                             "{{ 2 ** 63 }}",
                             "{{ 9223372036854775808 }}",
                             "{{ (-x - 1) // -1 }}",
                             "{{ (-x - 1) | abs }}",
                             "{{ 1e19 | int }}"}) {
    EXPECT_NE(ReasonFor(source, {{"x", INT64_MAX}}).substr(0, 5), "text:") << source;
  }
  EXPECT_EQ(*Render("{{ (-x - 1) % -1 }}", {{"x", INT64_MAX}}), "0");
}

TEST(ChatTemplateTest, VariablesMustBeAnObject) {
  EXPECT_EQ(ReasonFor("a", OrderedJson::array()), "TEMPLATE");
}

TEST(ChatTemplateTest, OneTemplateRendersInManyThreads) {
  const auto chat_template =
      ChatTemplate::Parse("{% for m in messages %}{{ m | upper }}{% endfor %}");
  ASSERT_TRUE(chat_template.ok());
  const OrderedJson variables = {{"messages", {"a", "b"}}};
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&] {
      for (int j = 0; j < 100; ++j) {
        EXPECT_EQ(chat_template->Render(variables, OrderedJson::object(), {}, kNow)->text, "AB");
      }
    });
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
}

}  // namespace
}  // namespace quire
