#include "common/model/name_pattern.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include <array>
#include <cstdint>
#include <utility>

#include "absl/strings/str_cat.h"

#include "common/base/error.h"
#include "common/base/string_view.h"
#include "common/model/load_error.h"

namespace quire {
namespace {

constexpr std::string_view kPrefix = "re:";
// Bounds on a pattern and on one match. Published patterns have fewer than 100 bytes, and one match
// takes fewer than 1,000 steps of PCRE2.
constexpr size_t kMaxNamePatternBytes = 512;
constexpr uint32_t kMaxSteps = 2000;
constexpr uint32_t kMaxHeapKiB = 1024;

}  // namespace

absl::StatusOr<NamePattern> NamePattern::Parse(std::string text) {
  NamePattern pattern;
  pattern.text_ = std::move(text);
  if (!pattern.text_.starts_with(kPrefix)) {
    return pattern;
  }
  const std::string_view regex = std::string_view(pattern.text_).substr(kPrefix.size());
  auto error = [&](std::string_view rule) {
    return InvalidArgument("CONFIG",
                           absl::StrCat(PrintableName(pattern.text_), ": ", ToAbsl(rule)));
  };
  if (regex.size() > kMaxNamePatternBytes) {
    return error(absl::StrCat("a pattern must have at most ", kMaxNamePatternBytes, " bytes"));
  }
  int code = 0;
  size_t at = 0;
  pcre2_code* const compiled = pcre2_compile(reinterpret_cast<PCRE2_SPTR>(regex.data()),
                                             regex.size(),
                                             PCRE2_ANCHORED | PCRE2_NEVER_BACKSLASH_C,
                                             &code,
                                             &at,
                                             nullptr);
  if (compiled == nullptr) {
    std::array<PCRE2_UCHAR, 128> message = {};
    pcre2_get_error_message(code, message.data(), message.size());
    return error(absl::StrCat("byte ", at, ": ", reinterpret_cast<const char*>(message.data())));
  }
  pattern.code_ = std::shared_ptr<const void>(
      compiled, [compiled](const void* /*unused*/) { pcre2_code_free(compiled); });
  return pattern;
}

absl::StatusOr<bool> NamePattern::Matches(std::string_view name) const {
  if (!is_regex()) {
    return name == text_;
  }
  const auto* const code = static_cast<const pcre2_code*>(code_.get());
  const std::unique_ptr<pcre2_match_data, decltype(&pcre2_match_data_free)> data(
      pcre2_match_data_create(1, nullptr), pcre2_match_data_free);
  const std::unique_ptr<pcre2_match_context, decltype(&pcre2_match_context_free)> context(
      pcre2_match_context_create(nullptr), pcre2_match_context_free);
  pcre2_set_match_limit(context.get(), kMaxSteps);
  pcre2_set_heap_limit(context.get(), kMaxHeapKiB);
  const int result = pcre2_match(code,
                                 reinterpret_cast<PCRE2_SPTR>(name.data()),
                                 name.size(),
                                 0,
                                 0,
                                 data.get(),
                                 context.get());
  if (result < 0 && result != PCRE2_ERROR_NOMATCH) {
    return InvalidArgument("CONFIG",
                           absl::StrCat("config.json: quantization_config: ",
                                        PrintableName(text_),
                                        ": the pattern needs too many steps to match"));
  }
  return result >= 0;
}

}  // namespace quire
