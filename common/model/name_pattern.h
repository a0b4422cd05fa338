// NamePattern says which modules of a model a rule of quantization_config is for: "re:" and a
// regular expression, or else a module's whole name or class.
//
// A regular expression is read as Python's re.match reads it: from the beginning of the name on,
// but not necessarily to its end.
//
// Thread safety: a value type; Matches is safe from any thread. Copies share one compiled pattern.
// Cost:          PCRE2's steps and memory for one match are bounded, so a hostile pattern is an
//                error.
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
