// Timed owns an object and times every call to it, in CPU time of the calling thread. Simulations
// wrap the scheduler core in Timed. A call longer than kMaxCallNs fails the run, because in a
// server such a call would stop all streams for as long.
//
// Thread safety: one thread.
// Cost:          each call reads a coarse clock twice, which takes 10 ns each time. Reading the CPU
//                time is a system call, so the CPU time is read at most 100 times a second.
//                Therefore the measured time of a call can include up to 10 ms from before the
//                call.
#ifndef QUIRE_TESTS_SUPPORT_TIMED_H_
#define QUIRE_TESTS_SUPPORT_TIMED_H_

#include <cstdint>
#include <ctime>
#include <optional>
#include <string>
#include <utility>

#include "common/base/clock.h"
#include "common/base/thread_times.h"
#include "tests/support/sanitizer.h"

namespace quire {

inline constexpr int64_t kMaxCallNs = 100 * kNanosPerMilli;

// Measures calls of one thread. Ignores all calls under sanitizers, which slow everything down.
class CallWatch {
 public:
  void Begin() {
    began_at_ = CoarseNow();
    if (began_at_ - read_at_ >= kReadIntervalNs) {
      read_at_ = began_at_;
      cpu_ns_ = ThreadCpuNanos();
    }
  }
  void End() {
    if (!kUnderSanitizer && CoarseNow() - began_at_ > kMaxCallNs - kReadIntervalNs) {
      const int64_t call_ns = ThreadCpuNanos() - cpu_ns_;
      longest_ns_ = call_ns > longest_ns_ ? call_ns : longest_ns_;
    }
  }
  // Returns a text about the longest call if it was longer than kMaxCallNs, else "".
  std::string Fault() const {
    return longest_ns_ <= kMaxCallNs
               ? ""
               : "a call took " + std::to_string(longest_ns_ / kNanosPerMilli) + " ms";
  }

 private:
  static constexpr int64_t kReadIntervalNs = 10 * kNanosPerMilli;

  // A clock that ticks every few milliseconds.
  static Instant CoarseNow() {
    timespec time{};
    ::clock_gettime(CLOCK_MONOTONIC_COARSE, &time);
    return int64_t{time.tv_sec} * kNanosPerSecond + time.tv_nsec;
  }

  Instant read_at_ = 0;
  int64_t cpu_ns_ = 0;  // CPU time at read_at_
  Instant began_at_ = 0;
  int64_t longest_ns_ = 0;  // longest call; only calls near or over kMaxCallNs are measured
};

template <typename T>
class Timed {
  // Measures one call: a temporary that lives to the end of the calling statement.
  template <typename Object>
  class Call {
   public:
    Call(Object* object, CallWatch* watch) : object_(object), watch_(watch) { watch_->Begin(); }
    ~Call() { watch_->End(); }
    Call(const Call&) = delete;
    Call& operator=(const Call&) = delete;
    Object* operator->() const { return object_; }

   private:
    Object* const object_;
    CallWatch* const watch_;
  };

 public:
  Timed() = default;  // REQUIRES: emplace is called before any other function
  template <typename... Arguments>
  explicit Timed(std::in_place_t /*tag*/, Arguments&&... arguments)
      : object_(std::in_place, std::forward<Arguments>(arguments)...) {}

  // Replaces the object.
  template <typename... Arguments>
  void emplace(Arguments&&... arguments) {
    object_.emplace(std::forward<Arguments>(arguments)...);
  }

  Call<T> operator->() { return {&*object_, &watch_}; }
  Call<const T> operator->() const { return {&*object_, &watch_}; }

  // Returns the object, for calls that only tests make and that must not be measured.
  T& untimed() { return *object_; }

  // See CallWatch::Fault.
  std::string Fault() const { return watch_.Fault(); }

 private:
  std::optional<T> object_;
  mutable CallWatch watch_;
};

}  // namespace quire

#endif  // QUIRE_TESTS_SUPPORT_TIMED_H_
