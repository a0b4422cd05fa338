// A template up to the first zero byte, then JSON variables: refused with a reason, or a text of
// UTF-8 within its limit, the same in every rendering.
#include <string>

#include "common/base/check.h"
#include "common/base/error.h"
#include "deploy/gateway/template/chat_template.h"
#include "deploy/gateway/template/unicode.h"
#include "tests/fuzz/fuzz_verdict.h"

namespace {

// Sanitizers slow a step down, and need more stack.
constexpr quire::TemplateLimits kLimits = {
    .max_steps = 100'000, .max_output_bytes = 100'000, .max_depth = 300};

void CheckRefusal(const absl::Status& status) {
  QUIRE_CHECK(status.code() == absl::StatusCode::kInvalidArgument);
  QUIRE_CHECK(quire::ReasonOf(status).starts_with("TEMPLATE"));
  QUIRE_CHECK(!status.message().empty());
}

// In order, apart, not empty, and of whole characters.
void CheckRanges(const quire::RenderedPrompt& prompt) {
  const auto is_character_begin = [&](size_t i) {
    return i == prompt.text.size() || (prompt.text[i] & 0xC0) != 0x80;
  };
  size_t last_end = 0;
  for (const quire::ByteRange& range : prompt.client_text) {
    QUIRE_CHECK(range.begin > last_end || (range.begin == 0 && last_end == 0));
    QUIRE_CHECK(range.begin < range.end && range.end <= prompt.text.size());
    QUIRE_CHECK(is_character_begin(range.begin) && is_character_begin(range.end));
    last_end = range.end;
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string text(reinterpret_cast<const char*>(data), size);
  const std::string source = text.substr(0, text.find('\0'));
  const auto chat_template = quire::ChatTemplate::Parse(source);
  if (!chat_template.ok()) {
    QUIRE_CHECK_EQ(quire::ReasonOf(chat_template.status()), "TEMPLATE_SYNTAX");
    CheckRefusal(chat_template.status());
    return 0;
  }
  const std::string json = text.substr(std::min(source.size() + 1, text.size()));
  auto variables = nlohmann::ordered_json::parse(json, nullptr, /*allow_exceptions=*/false);
  if (!variables.is_object()) {
    variables = {{"messages", {{{"role", "user"}, {"content", "Hi"}}}}, {"text", json}, {"n", 3}};
  }
  const absl::CivilSecond now(2026, 7, 4, 13, 5, 9);
  const nlohmann::ordered_json own = {{"bos_token", "<s>"}};
  const auto rendered = chat_template->Render(variables, own, kLimits, now);
  const auto again = chat_template->Render(variables, own, kLimits, now);
  QUIRE_CHECK(rendered.status() == again.status());
  if (!rendered.ok()) {
    CheckRefusal(rendered.status());
    return 0;
  }
  QUIRE_CHECK(rendered->text == again->text);
  QUIRE_CHECK(rendered->client_text == again->client_text);
  QUIRE_CHECK(quire::IsUtf8(rendered->text));
  QUIRE_CHECK_LE(rendered->text.size(), static_cast<size_t>(kLimits.max_output_bytes));
  CheckRanges(*rendered);
  quire::is_accepted = true;
  return 0;
}
