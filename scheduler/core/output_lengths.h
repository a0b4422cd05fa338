// OutputLengths keeps the lengths of recent outputs and returns their lower quartile: three of four
// outputs are at least that long.
//
// Lengths are kept by class of max_tokens: [1, 2), [2, 4), [4, 8), ... A request with max_tokens 1
// says nothing about a request with max_tokens 400: without classes, many short requests would make
// long requests look short. A class without data takes its estimate from the next larger class that
// has data, cut to max_tokens. If no larger class has data, the estimate comes from the next
// smaller class, and is too low.
//
// An output that was cut off, by its deadline or its client, would have been longer. It still
// counts if it had reached the expected length, so that lengths are learned even while all outputs
// are cut off. An output that was cut off before the expected length is ignored.
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
  static constexpr size_t kFewestLengths = 16;  // an estimate needs this many outputs
  static constexpr size_t kNumClasses = 32;

  // Returns the class of max_tokens, < kNumClasses.
  static size_t ClassOf(int32_t max_tokens);

  // Records the length of a sequence that ended. is_whole: the output was not cut off. REQUIRES:
  // num_tokens >= 0, max_tokens >= 0.
  void OnEnd(int32_t num_tokens, int32_t max_tokens, bool is_whole);

  // Returns true once all classes together have enough outputs for an estimate.
  bool is_known() const;
  // Expected length of a sequence of at most max_tokens; never more than max_tokens. 0 while
  // unknown.
  int32_t Expect(int32_t max_tokens) const;
  // Expected length over all classes, from recent outputs. 0 while unknown.
  int32_t ExpectOfAny() const { return any_.quartile; }

 private:
  struct Window {
    std::array<int32_t, kNumLengths> lengths = {};
    size_t num_lengths = 0;  // number of lengths ever added
    int32_t quartile = 0;    // lower quartile of `lengths`; 0 while too few are known

    void Add(int32_t num_tokens, bool is_whole);
  };

  std::array<Window, kNumClasses> classes_;
  Window any_;
};

}  // namespace quire

#endif  // QUIRE_SCHEDULER_CORE_OUTPUT_LENGTHS_H_
