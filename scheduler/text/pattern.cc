#include "scheduler/text/pattern.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include <algorithm>
#include <charconv>
#include <iterator>
#include <limits>
#include <system_error>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"

#include "common/base/error.h"
#include "common/base/status_macros.h"
#include "common/base/string_view.h"

namespace quire {
namespace {

constexpr size_t kMaxPatternBytes = 4096;
constexpr int kMaxRepeat = 256;
// MULTILINE: ^ and $ match at line ends, as they always do in Oniguruma.
// AUTO_CALLOUT: PCRE2 calls CountItem before each item.
// NO_AUTO_CAPTURE: plain groups, (...), do not capture, because CountItem does not count the cost
// of a capture.
constexpr uint32_t kOptions = PCRE2_UTF | PCRE2_UCP | PCRE2_MULTILINE | PCRE2_NEVER_BACKSLASH_C |
                              PCRE2_AUTO_CALLOUT | PCRE2_NO_AUTO_CAPTURE;
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

// Escapes that are refused: their meaning differs between PCRE2 and Oniguruma, or no tokenizer
// needs them. Digits, \g and \k refer to a group, and would read all of the group's text in one
// item. \c consumes the next character, even a bracket, and would mislead CheckPortable.
constexpr std::string_view kRefusedEscapes = "hHRXKGCQEgkzZc123456789";

// Texts accepted after "(?". Other groups capture, change how the rest of the pattern is read, or
// call a part of the pattern. A call copies the state of all items, and CountItem does not count
// this cost.
constexpr std::string_view kKnownGroups[] = {":", "=", "!", "<=", "<!", ">", "i:"};

// Returns the largest number in a count like {1,3} at the front of pattern, or 0 if no count is
// there.
int LargestRepeat(std::string_view pattern) {
  int largest = 0;
  for (size_t i = 1; i < pattern.size() && pattern[i] != '}'; ++i) {
    int number = 0;
    auto [end, error] =
        std::from_chars(pattern.data() + i, pattern.data() + pattern.size(), number);
    if (error == std::errc::result_out_of_range) {
      return std::numeric_limits<int>::max();
    }
    if (error == std::errc()) {
      largest = std::max(largest, number);
      i = static_cast<size_t>(end - pattern.data()) - 1;
    } else if (pattern[i] != ',') {
      return 0;
    }
  }
  return largest;
}

// State of CountItem over one text.
struct Progress {
  TextBudget* budget;
  size_t position;  // position at which the previous item was tried
};

// Callback that PCRE2 calls before it tries an item of a pattern. Spends one step for the item, and
// one step for each character read since the previous item.
int CountItem(pcre2_callout_block* item, void* data) {
  auto* progress = static_cast<Progress*>(data);
  const size_t position = item->current_position;
  const size_t num_read = position > progress->position ? position - progress->position : 0;
  progress->position = position;
  return progress->budget->Spend(1 + num_read) ? 0 : PCRE2_ERROR_CALLOUT;
}

// Returns the length of a named class, like [:alpha:], at the front of text, or 0 if no such class
// is there.
size_t NamedClassBytes(std::string_view text) {
  if (!text.starts_with("[:")) {
    return 0;
  }
  size_t end = text.starts_with("[:^") ? 3 : 2;
  while (end < text.size() && absl::ascii_isalpha(static_cast<unsigned char>(text[end]))) {
    ++end;
  }
  return text.substr(end).starts_with(":]") ? end + 2 : 0;
}

// Refuses syntax that PCRE2 and Oniguruma read differently, and syntax whose cost CountItem does
// not count.
absl::Status CheckPortable(std::string_view pattern) {
  bool in_class = false;
  for (size_t i = 0; i < pattern.size(); ++i) {
    const std::string_view rest = pattern.substr(i);
    char c = pattern[i];
    if (c == '\\') {
      if (rest.size() > 1 && kRefusedEscapes.find(rest[1]) != std::string_view::npos) {
        return Refused(absl::StrCat("escape \\", ToAbsl(rest.substr(1, 1)), " is not supported"));
      }
      ++i;
    } else if (in_class && NamedClassBytes(rest) > 0) {
      i += NamedClassBytes(rest) - 1;
    } else if (in_class && c == '[') {
      return Refused("nested character classes are not supported");
    } else if (in_class && rest.starts_with("&&")) {
      return Refused("intersections of character classes are not supported");
    } else if (c == '[' || c == ']') {
      in_class = c == '[';
    } else if (!in_class && rest.starts_with("(*")) {
      return Refused("verbs are not supported");
    } else if (!in_class && rest.starts_with("(?") &&
               std::none_of(std::begin(kKnownGroups), std::end(kKnownGroups), [&](auto known) {
                 return rest.substr(2).starts_with(known);
               })) {
      return Refused("the only supported groups with (? are (?: (?= (?! (?<= (?<! (?> (?i:");
    } else if (!in_class && c == '{' && LargestRepeat(rest) > kMaxRepeat) {
      return Refused(absl::StrCat("counts must be at most ", kMaxRepeat));
    }
  }
  return absl::OkStatus();
}

}  // namespace

void FindLiteral(std::string_view literal, std::string_view text, std::vector<TextSpan>* spans) {
  size_t done = 0;
  for (size_t found = text.find(literal); found != std::string_view::npos;
       found = text.find(literal, done)) {
    if (done < found) {
      spans->push_back({done, found, false});
    }
    done = found + literal.size();
    spans->push_back({found, done, true});
  }
  if (done < text.size()) {
    spans->push_back({done, text.size(), false});
  }
}

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
  CodePtr code(pcre2_compile(reinterpret_cast<PCRE2_SPTR>(pattern.data()),
                             pattern.size(),
                             kOptions,
                             &error,
                             &error_offset,
                             nullptr));
  if (code == nullptr) {
    return Refused(absl::StrCat("does not compile (error ", error, " at byte ", error_offset, ")"));
  }
  uint32_t num_captures = 0;
  pcre2_pattern_info(code.get(), PCRE2_INFO_CAPTURECOUNT, &num_captures);
  if (num_captures != 0) {
    return Refused("groups must not capture");
  }
  uint32_t matches_empty = 0;
  pcre2_pattern_info(code.get(), PCRE2_INFO_MATCHEMPTY, &matches_empty);
  if (matches_empty != 0) {
    return Refused("must not match the empty string");
  }
  // If JIT is not available (unsupported processor, hardened kernel), matching is slower but gives
  // the same result.
  pcre2_jit_compile(code.get(), PCRE2_JIT_COMPLETE);
  return Pattern(std::make_unique<const Code>(Code{std::move(code)}));
}

absl::Status Pattern::FindAll(std::string_view text,
                              TextBudget* budget,
                              std::vector<TextSpan>* spans) const {
  MatchDataPtr match(pcre2_match_data_create_from_pattern(code_->code.get(), nullptr));
  MatchContextPtr context(pcre2_match_context_create(nullptr));
  JitStackPtr stack;  // created if PCRE2's default stack of 32 KiB is too small
  if (match == nullptr || context == nullptr) {
    return Error(absl::StatusCode::kResourceExhausted, "TOKENIZE_MEMORY", "text: no memory left");
  }
  pcre2_set_heap_limit(context.get(), kHeapLimitKiB);
  Progress progress = {.budget = budget, .position = 0};
  pcre2_set_callout(context.get(), CountItem, &progress);
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
    if (count == PCRE2_ERROR_CALLOUT) {
      return budget->status();
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
      return InvalidArgument("TOKENIZE_BUDGET",
                             "text: a pattern of the tokenizer matched an empty string");
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
