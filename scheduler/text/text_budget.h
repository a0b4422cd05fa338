// TextBudget bounds the cost of tokenizing one text, whatever the text and the operator's
// tokenizer.json. It counts steps: each byte read, each try of a pattern's item (pattern.h), each
// byte compared with an added token, each pair of symbols taken from BpeModel's queue. It does not
// measure time, so the result for a text is the same on every machine.
//
// Limits: a text may take kMaxStepsPerByte steps for each of its bytes, plus kMaxFreeSteps. A
//         rewritten text may have kMaxBytesPerByte bytes for each byte of the text, plus
//         kMaxFreeBytes. Ordinary text with the tokenizers that README.md in this folder names
//         takes less than a quarter of these limits.
//
// Thread safety: not thread-safe; one for each text.
// Errors:        kInvalidArgument, reason TOKENIZE_BUDGET; or the error that the StopCheck
//                returned.
// Cost:          Spend is an addition and a comparison.
#ifndef QUIRE_SCHEDULER_TEXT_TEXT_BUDGET_H_
#define QUIRE_SCHEDULER_TEXT_TEXT_BUDGET_H_

#include <cstddef>
#include <functional>

#include "absl/status/status.h"

namespace quire {

inline constexpr size_t kMaxStepsPerByte = 96;
inline constexpr size_t kMaxFreeSteps = size_t{1} << 20;
inline constexpr size_t kMaxBytesPerByte = 4;
inline constexpr size_t kMaxFreeBytes = 4096;
inline constexpr size_t kStepsPerStopCheck = size_t{1} << 16;

// Returns an error if the client no longer waits; the error ends the tokenizing. Called on the
// thread that tokenizes, every kStepsPerStopCheck steps.
using StopCheck = std::function<absl::Status()>;

class TextBudget {
 public:
  explicit TextBudget(size_t text_bytes, StopCheck stop_check = nullptr);

  // Counts num_steps steps. Returns false if tokenizing must end with status(). All later calls
  // then return false, too.
  [[nodiscard]] bool Spend(size_t num_steps) {
    num_steps_ += num_steps;
    return num_steps_ < next_look_ || Look();
  }

  // Returns false if a rewritten text of num_bytes bytes is too long. Tokenizing must then end with
  // status().
  [[nodiscard]] bool HasRoomFor(size_t num_bytes);

  const absl::Status& status() const { return status_; }
  size_t num_steps() const { return num_steps_; }

 private:
  bool Look();

  const size_t max_steps_;
  const size_t max_bytes_;
  const StopCheck stop_check_;
  size_t num_steps_ = 0;
  // Spend calls Look when num_steps_ reaches this value. This value is 0 at first, and 0 again when
  // tokenizing must end.
  size_t next_look_ = 0;
  absl::Status status_;
};

}  // namespace quire

#endif  // QUIRE_SCHEDULER_TEXT_TEXT_BUDGET_H_
