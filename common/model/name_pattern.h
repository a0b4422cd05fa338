// NamePattern selects modules of a model for a rule of quantization_config. Its text is either
// "re:" with a regular expression, or the whole name or class of a module.
//
// A regular expression matches as in Python's re.match: the match begins where the name begins, but
// may end before the name ends.
//
// Thread safety: a value type; Matches is safe from any thread. Copies share one compiled pattern.
// Cost:          PCRE2's steps and memory for one match are bounded, so a hostile pattern gives an
//                error instead of a long search.
#ifndef QUIRE_COMMON_MODEL_NAME_PATTERN_H_
#define QUIRE_COMMON_MODEL_NAME_PATTERN_H_

#include <memory>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"

namespace quire {

class NamePattern {
 public:
  // Errors: kInvalidArgument, reason CONFIG; the message is a rule without file or field.
  static absl::StatusOr<NamePattern> Parse(std::string text);

  const std::string& text() const { return text_; }
  bool is_regex() const { return code_ != nullptr; }

  // Errors: kInvalidArgument, reason CONFIG, if the match needs too many steps.
  absl::StatusOr<bool> Matches(std::string_view name) const;

  friend bool operator==(const NamePattern& a, const NamePattern& b) { return a.text_ == b.text_; }

 private:
  NamePattern() = default;

  std::string text_;
  std::shared_ptr<const void> code_;  // a pcre2_code; null if the pattern is plain text
};

}  // namespace quire

#endif  // QUIRE_COMMON_MODEL_NAME_PATTERN_H_
