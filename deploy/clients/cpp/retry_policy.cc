#include "deploy/clients/cpp/retry_policy.h"

#include <algorithm>
#include <cstdint>
#include <random>

namespace quire {
namespace {

using std::chrono::milliseconds;

// Bounds the time that one attempt adds to the unanswered time. A dead server is noticed sooner:
// connecting takes at most 2 s, and keepalive at most 4 s + 3 s.
constexpr milliseconds kLongestUnansweredAttempt(10'000);
constexpr int kMaxDoublings = 20;  // keeps the shift below from overflowing

}  // namespace

void Patience::NoteMessage() {
  NoteServer();
  num_waits_ = 0;
  unanswered_ = milliseconds(0);
  waited_for_a_place_ = milliseconds(0);
}

std::optional<milliseconds> Patience::WaitUnanswered(milliseconds lasted) {
  unanswered_ += std::min(lasted, kLongestUnansweredAttempt);
  if (unanswered_ >= limit_) {
    return std::nullopt;
  }
  const milliseconds wait = std::min(NextWait(), limit_ - unanswered_);
  unanswered_ += wait;
  return wait;
}

std::optional<milliseconds> Patience::WaitForPlace(milliseconds asked) {
  const milliseconds left = policy_.max_wait_for_a_place - waited_for_a_place_;
  if (left.count() <= 0) {
    return std::nullopt;
  }
  const milliseconds wait = std::min(std::max(NextWait(), asked), left);
  waited_for_a_place_ += wait;
  unanswered_ = milliseconds(0);
  return wait;
}

milliseconds Patience::NextWait() {
  const int num_doublings = std::min(num_waits_++, kMaxDoublings);
  const milliseconds longest =
      std::min(policy_.max_wait, policy_.first_wait * (int64_t{1} << num_doublings));
  thread_local std::minstd_rand generator{std::random_device{}()};
  const double share = std::uniform_real_distribution<double>(0.5, 1.0)(generator);
  return milliseconds(static_cast<int64_t>(static_cast<double>(longest.count()) * share));
}

}  // namespace quire
