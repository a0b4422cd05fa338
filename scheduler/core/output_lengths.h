// OutputLengths remembers how long outputs were lately, and says how long one will be at least, in
// three of four cases.
//
// A request of max_tokens 1 says nothing about one of 400, so outputs are remembered by class of
// max_tokens, [1, 2), [2, 4), [4, 8), ...: whoever asks for many short ones does not make long ones
// look short. Where a class has not been seen, the next larger one tells, cut to max_tokens, and
// else the next smaller one, which says less than it will be.
//
// An output that was cut off, by its deadline or its client, would have been longer. It counts when
// it came as far as was expected: else, when all are cut off, nothing would ever be learnt; and one
// that was cut off early says nothing.
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
  static constexpr size_t kNumLengths = 64;     // outputs of a class that are remembered
  static constexpr size_t kFewestLengths = 16;  // of them, before the class says anything
  static constexpr size_t kNumClasses = 32;

  // < kNumClasses.
  static size_t ClassOf(int32_t max_tokens);

  // A sequence of at most max_tokens ended with so many. is_whole: by itself. REQUIRES: both >= 0.
  void OnEnd(int32_t num_tokens, int32_t max_tokens, bool is_whole);

  // Whether any class says something.
  bool is_known() const;
  // Of a sequence of at most max_tokens, and no more than that. 0 while nothing is known.
  int32_t Expect(int32_t max_tokens) const;
  // Of any sequence, as they came lately. 0 while nothing is known.
  int32_t ExpectOfAny() const { return any_.quartile; }

 private:
  struct Window {
    std::array<int32_t, kNumLengths> lengths = {};
    size_t num_lengths = 0;  // ever
    int32_t quartile = 0;    // three of four are as long; 0 while few are known

    void Add(int32_t num_tokens, bool is_whole);
  };

  std::array<Window, kNumClasses> classes_;
  Window any_;
};

}  // namespace quire

#endif  // QUIRE_SCHEDULER_CORE_OUTPUT_LENGTHS_H_
