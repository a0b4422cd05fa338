// OutputLengths keeps the lengths of recent outputs and returns their lower quartile: three of four
// outputs are at least as long.
//
// A request of max_tokens 1 says nothing about one of 400, so lengths are kept by class of
// max_tokens: [1, 2), [2, 4), [4, 8), ... Else many short requests would make long ones look short.
// A class without data takes its estimate from the next larger class that has data, cut to
// max_tokens. If there is none, it takes that of the next smaller class, which is too low.
//
// An output that was cut off, by its deadline or its client, would have been longer. It counts if
// it reached the expected length, else nothing would be learned while all outputs are cut off. If
// it was cut off earlier, it is ignored.
//
// Thread safety: not thread-safe; owned by CompletionEstimate.
// Cost:          O(kNumLengths) a call of OnEnd; memory for kNumClasses * kNumLengths numbers.
#ifndef QUIRE_SCHEDULER_CORE_OUTPUT_LENGTHS_H_
#define QUIRE_SCHEDULER_CORE_OUTPUT_LENGTHS_H_

#include <array>
#include <cstddef>
#include <cstdint>

namespace quire {

class OutputLengths {
 public:
  static constexpr size_t kNumLengths = 64;     // recent outputs kept per class
  static constexpr size_t kFewestLengths = 16;  // outputs before a class gives an estimate
  static constexpr size_t kNumClasses = 32;

  // Returns the class of max_tokens, < kNumClasses.
  static size_t ClassOf(int32_t max_tokens);

  // A sequence of at most max_tokens ended. is_whole: it was not cut off. REQUIRES: both >= 0.
  void OnEnd(int32_t num_tokens, int32_t max_tokens, bool is_whole);

  // Returns true once any class gives an estimate.
  bool is_known() const;
  // Expected length of a sequence of at most max_tokens; never more than max_tokens. 0 while
  // unknown.
  int32_t Expect(int32_t max_tokens) const;
  // Expected length over all classes, from recent outputs. 0 while unknown.
  int32_t ExpectOfAny() const { return any_.quartile; }

 private:
  struct Window {
    std::array<int32_t, kNumLengths> lengths = {};
    size_t num_lengths = 0;  // ever added
    int32_t quartile = 0;    // three of four are at least as long; 0 while too few are known

    void Add(int32_t num_tokens, bool is_whole);
  };

  std::array<Window, kNumClasses> classes_;
  Window any_;
};

}  // namespace quire

#endif  // QUIRE_SCHEDULER_CORE_OUTPUT_LENGTHS_H_
