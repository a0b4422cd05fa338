#include "scheduler/text/pattern.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include <utility>

#include "absl/strings/str_cat.h"

#include "common/base/error.h"
#include "common/base/status_macros.h"
#include "common/base/string_view.h"

namespace quire {
namespace {

constexpr size_t kMaxPatternBytes = 4096;

// Per match, not per text. Ten steps for every byte of the longest prompt the service takes.
constexpr uint32_t kMatchLimit = 10'000'000;
constexpr uint32_t kHeapLimitKiB = 64 * 1024;
constexpr size_t kJitStackStartBytes = size_t{32} * 1024;
constexpr size_t kJitStackMaxBytes = size_t{1024} * 1024;

template <auto kFree>
struct Free {
  template <typename T>
  void operator()(T* object) const {
    kFree(object);
  }
};
using CodePtr = std::unique_ptr<pcre2_code, Free<pcre2_code_free>>;
using MatchDataPtr = std::unique_ptr<pcre2_match_data, Free<pcre2_match_data_free>>;
using MatchContextPtr = std::unique_ptr<pcre2_match_context, Free<pcre2_match_context_free>>;
using JitStackPtr = std::unique_ptr<pcre2_jit_stack, Free<pcre2_jit_stack_free>>;

absl::Status Refused(std::string_view rule) {
  return InvalidArgument("TOKENIZER", absl::StrCat("pattern: ", ToAbsl(rule)));
}

// Escapes that mean something else in Oniguruma, or start features that no tokenizer needs.
constexpr std::string_view kRefusedEscapes = "hHRXKGCQEgkzZ";

// Finds the syntax that both engines accept and read differently.
absl::Status CheckPortable(std::string_view pattern) {
  bool in_class = false;
  for (size_t i = 0; i < pattern.size(); ++i) {
    char c = pattern[i];
    if (c == '\\') {
      if (i + 1 < pattern.size() &&
          kRefusedEscapes.find(pattern[i + 1]) != std::string_view::npos) {
        return Refused(
            absl::StrCat("escape \\", std::string(1, pattern[i + 1]), " is not supported"));
      }
      ++i;
    } else if (in_class && c == '[' && !pattern.substr(i).starts_with("[:")) {
      return Refused("nested character classes are not supported");
    } else if (in_class && pattern.substr(i).starts_with("&&")) {
      return Refused("intersections of character classes are not supported");
    } else if (in_class &&
               (pattern.substr(i).starts_with("[:") || pattern.substr(i).starts_with(":]"))) {
      i += 1;
    } else if (c == '[' || c == ']') {
      in_class = c == '[';
    } else if (!in_class && pattern.substr(i).starts_with("(*")) {
      return Refused("verbs are not supported");
    } else if (!in_class && pattern.substr(i).starts_with("(?") && i + 2 < pattern.size() &&
               std::string_view("imsx-").find(pattern[i + 2]) != std::string_view::npos &&
               !pattern.substr(i).starts_with("(?i:")) {
      return Refused("of the inline options only (?i: is supported");
    }
  }
  return absl::OkStatus();
}

}  // namespace

struct Pattern::Code {
  CodePtr code;
};

Pattern::Pattern(std::unique_ptr<const Code> code) : code_(std::move(code)) {}
Pattern::Pattern(Pattern&&) noexcept = default;
Pattern& Pattern::operator=(Pattern&&) noexcept = default;
Pattern::~Pattern() = default;

absl::StatusOr<Pattern> Pattern::Compile(const std::string& pattern) {
  if (pattern.empty() || pattern.size() > kMaxPatternBytes) {
    return Refused(
        absl::StrCat("must have 1 to ", kMaxPatternBytes, " bytes (got ", pattern.size(), ")"));
  }
  QUIRE_RETURN_IF_ERROR(CheckPortable(pattern));
  int error = 0;
  size_t error_offset = 0;
  // MULTILINE because ^ and $ always match at line ends in Oniguruma.
  CodePtr code(pcre2_compile(reinterpret_cast<PCRE2_SPTR>(pattern.data()),
                             pattern.size(),
                             PCRE2_UTF | PCRE2_UCP | PCRE2_MULTILINE | PCRE2_NEVER_BACKSLASH_C,
                             &error,
                             &error_offset,
                             nullptr));
  if (code == nullptr) {
    return Refused(absl::StrCat("does not compile (error ", error, " at byte ", error_offset, ")"));
  }
  uint32_t matches_empty = 0;
  pcre2_pattern_info(code.get(), PCRE2_INFO_MATCHEMPTY, &matches_empty);
  if (matches_empty != 0) {
    return Refused("must not match the empty string");
  }
  // Without JIT (unsupported processor, hardened kernel) matching is slower, not different.
  pcre2_jit_compile(code.get(), PCRE2_JIT_COMPLETE);
  return Pattern(std::make_unique<const Code>(Code{std::move(code)}));
}

absl::Status Pattern::FindAll(std::string_view text, std::vector<TextSpan>* spans) const {
  MatchDataPtr match(pcre2_match_data_create_from_pattern(code_->code.get(), nullptr));
  MatchContextPtr context(pcre2_match_context_create(nullptr));
  JitStackPtr stack;  // made when the 32 KiB that a match may use by itself are not enough
  if (match == nullptr || context == nullptr) {
    return Error(absl::StatusCode::kResourceExhausted, "TOKENIZE_MEMORY", "text: no memory left");
  }
  pcre2_set_match_limit(context.get(), kMatchLimit);
  pcre2_set_heap_limit(context.get(), kHeapLimitKiB);
  size_t done = 0;
  while (done < text.size()) {
    int count = pcre2_match(code_->code.get(),
                            reinterpret_cast<PCRE2_SPTR>(text.data()),
                            text.size(),
                            done,
                            PCRE2_NO_UTF_CHECK,
                            match.get(),
                            context.get());
    if (count == PCRE2_ERROR_NOMATCH) {
      break;
    }
    if (count == PCRE2_ERROR_JIT_STACKLIMIT && stack == nullptr) {
      stack.reset(pcre2_jit_stack_create(kJitStackStartBytes, kJitStackMaxBytes, nullptr));
      pcre2_jit_stack_assign(context.get(), nullptr, stack.get());
      continue;
    }
    if (count < 0) {
      return InvalidArgument("TOKENIZE_BUDGET",
                             absl::StrCat("text: takes too long to tokenize (error ", count, ")"));
    }
    const size_t* offsets = pcre2_get_ovector_pointer(match.get());
    if (offsets[0] < done || offsets[1] <= offsets[0]) {
      return InvalidArgument("TOKENIZE_BUDGET", "text: a pattern matched nothing at all");
    }
    if (done < offsets[0]) {
      spans->push_back({done, offsets[0], false});
    }
    spans->push_back({offsets[0], offsets[1], true});
    done = offsets[1];
  }
  if (done < text.size()) {
    spans->push_back({done, text.size(), false});
  }
  return absl::OkStatus();
}

}  // namespace quire
