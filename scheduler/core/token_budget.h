// TokenBudget holds the number of tokens that are left to give out in the step being planned.
//
// Thread safety: a value type.
#ifndef QUIRE_SCHEDULER_CORE_TOKEN_BUDGET_H_
#define QUIRE_SCHEDULER_CORE_TOKEN_BUDGET_H_

#include <algorithm>
#include <cstdint>

namespace quire {

class TokenBudget {
 public:
  explicit TokenBudget(int32_t num_tokens) : num_tokens_left_(num_tokens) {}

  // Gives out up to num_tokens; returns how many.
  int32_t Take(int32_t num_tokens) {
    int32_t taken = std::min(num_tokens, num_tokens_left_);
    num_tokens_left_ -= taken;
    return taken;
  }

  int32_t num_tokens_left() const { return num_tokens_left_; }
  bool is_spent() const { return num_tokens_left_ == 0; }

 private:
  int32_t num_tokens_left_;
};

}  // namespace quire

#endif  // QUIRE_SCHEDULER_CORE_TOKEN_BUDGET_H_
