#include "common/step/prompt_logprobs.h"

#include <algorithm>

namespace quire {
namespace {

template <typename T>
std::vector<T> TakeFirst(std::vector<T>& from, int64_t count) {
  std::vector<T> first(from.begin(), from.begin() + count);
  from.erase(from.begin(), from.begin() + count);
  return first;
}

}  // namespace

PromptLogprobs PromptLogprobs::TakeFront(int32_t num_tokens) {
  const int32_t count = std::min(num_tokens, this->num_tokens());
  PromptLogprobs front = {.first_position = first_position,
                          .num_top = num_top,
                          .logprobs = TakeFirst(logprobs, count),
                          .top = TakeFirst(top, int64_t{count} * num_top)};
  first_position += count;
  return front;
}

}  // namespace quire
