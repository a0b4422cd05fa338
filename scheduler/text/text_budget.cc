#include "scheduler/text/text_budget.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"

#include "common/base/error.h"

namespace quire {

TextBudget::TextBudget(size_t text_bytes, StopCheck stop_check)
    : max_steps_(kMaxFreeSteps + kMaxStepsPerByte * text_bytes),
      max_bytes_(kMaxFreeBytes + kMaxBytesPerByte * text_bytes),
      stop_check_(std::move(stop_check)) {}

bool TextBudget::Look() {
  if (status_.ok() && num_steps_ > max_steps_) {
    status_ = InvalidArgument(
        "TOKENIZE_BUDGET",
        absl::StrCat("text: takes too long to tokenize (limit ", max_steps_, " steps)"));
  } else if (status_.ok() && stop_check_ != nullptr) {
    status_ = stop_check_();
  }
  next_look_ = status_.ok() ? std::min(num_steps_ + kStepsPerStopCheck, max_steps_ + 1) : 0;
  return status_.ok();
}

bool TextBudget::HasRoomFor(size_t num_bytes) {
  if (status_.ok() && num_bytes > max_bytes_) {
    status_ = InvalidArgument(
        "TOKENIZE_BUDGET",
        absl::StrCat("text: becomes too long when the tokenizer rewrites it (limit ",
                     max_bytes_,
                     " bytes)"));
    next_look_ = 0;
  }
  return status_.ok();
}

}  // namespace quire
