// Budget bounds one rendering: steps, bytes of living values and output, depth of recursion. The
// first fault is kept. Afterwards Spend, Charge and Fits return false, so loops end and their
// results are dropped. The counts do not depend on a clock, so a template fails on every machine or
// on none.
//
// Thread safety: not thread-safe; one for each rendering.
#ifndef QUIRE_DEPLOY_GATEWAY_TEMPLATE_BUDGET_H_
#define QUIRE_DEPLOY_GATEWAY_TEMPLATE_BUDGET_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "absl/status/status.h"

#include "common/base/error.h"
#include "deploy/gateway/template/cat.h"

namespace quire {

// With these defaults a rendering stays below 100 ms and 16 MiB on one core of 2 GHz.
struct TemplateLimits {
  int64_t max_steps = 1'000'000;  // a step: a node evaluated, an item visited, 64 bytes of text
  int64_t max_memory_bytes = 16 << 20;
  int64_t max_output_bytes = 4 << 20;
  int max_depth = 600;  // nested evaluations; Python's own limit is of this order
};

class Budget {
 public:
  explicit Budget(const TemplateLimits& limits)
      : limits_(limits), steps_left_(limits.max_steps), bytes_left_(limits.max_memory_bytes) {}
  Budget(const Budget&) = delete;
  Budget& operator=(const Budget&) = delete;

  bool ok() const { return status_.ok(); }
  const absl::Status& status() const { return status_; }
  const TemplateLimits& limits() const { return limits_; }

  // Returns false if the rendering has already failed, or fails now because no steps are left.
  bool Spend(int64_t steps = 1) {
    steps_left_ -= steps;
    return (steps_left_ >= 0 && ok()) || Fail("TEMPLATE_LIMIT", "template: too many steps");
  }
  bool SpendOnText(size_t bytes) { return Spend(static_cast<int64_t>(bytes / 64)); }

  bool Charge(size_t bytes) {
    bytes_left_ -= static_cast<int64_t>(bytes);
    return (bytes_left_ >= 0 && ok()) || Fail("TEMPLATE_LIMIT", "template: too much memory");
  }
  void Release(size_t bytes) { bytes_left_ += static_cast<int64_t>(bytes); }
  // Returns false, and fails the rendering, if `bytes` more do not fit. Charges nothing. Call this
  // before an allocation whose size depends on a number in the template.
  bool Fits(int64_t bytes) {
    return (bytes <= bytes_left_ && ok()) || Fail("TEMPLATE_LIMIT", "template: too much memory");
  }

  // Keeps the first fault, whose message is cut after 1000 bytes. Always returns false.
  bool Fail(std::string_view reason, std::string_view message) {
    if (status_.ok()) {
      size_t size = std::min<size_t>(message.size(), 1000);
      while (size < message.size() && (message[size] & 0xC0) == 0x80) {
        --size;  // do not cut within a character
      }
      message = message.substr(0, size);
      status_ =
          InvalidArgument(reason, line_ > 0 ? Cat(message, " (line ", line_, ")") : Cat(message));
    }
    return false;
  }
  void set_line(int line) { line_ = line; }

  // Depth of recursion. Only DepthGuard changes it.
  int depth = 0;

 private:
  const TemplateLimits limits_;
  int64_t steps_left_;
  int64_t bytes_left_;
  int line_ = 0;  // of the statement that runs
  absl::Status status_;
};

// Counts one level of recursion while it lives.
class DepthGuard {
 public:
  explicit DepthGuard(Budget& budget) : budget_(budget) { ++budget_.depth; }
  ~DepthGuard() { --budget_.depth; }
  DepthGuard(const DepthGuard&) = delete;
  DepthGuard& operator=(const DepthGuard&) = delete;
  bool ok() const {
    return budget_.depth <= budget_.limits().max_depth ||
           budget_.Fail("TEMPLATE_LIMIT", "template: recursion too deep");
  }

 private:
  Budget& budget_;
};

}  // namespace quire

#endif  // QUIRE_DEPLOY_GATEWAY_TEMPLATE_BUDGET_H_
