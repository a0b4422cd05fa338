// AttentionCase runs PagedAttention of any backend on made-up sequences.
//
// Every q, k and v element is a function of (sequence key, position, head, dim), so the same
// sequence can be computed whole, in pieces, beside others, or from another layout, and its outputs
// compared. The pool is filled with NaN; only positions below a sequence's length are written, and
// with a sliding window only blocks that it reaches. Each case runs through block tables and once
// more through windows, which must give the same bits.
#ifndef QUIRE_TESTS_KERNELS_ATTENTION_CASE_H_
#define QUIRE_TESTS_KERNELS_ATTENTION_CASE_H_

#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

#include "kernels/api/kernel_backend.h"

namespace quire {

struct CaseSequence {
  int32_t query_len = 1;
  int32_t seq_len = 1;  // with the queries
  uint64_t key = 1;     // names the sequence: same key, same numbers
};

struct AttentionCase {
  int32_t num_heads = 4;
  int32_t num_kv_heads = 2;
  int32_t head_dim = 64;
  int32_t block_size_tokens = 16;
  DType dtype = DType::kBF16;
  int32_t sliding_window = 0;
  bool alibi = false;       // every head with a slope of its own
  uint64_t block_seed = 1;  // which physical blocks the sequences get
  std::vector<CaseSequence> sequences;
  // Replace what an element would be; for tests of special numbers.
  std::function<float(int32_t position, float value)> change_value;
  std::function<float(float value)> change_query;
  // The numbers are first stored as this type, with scales, and read back.
  std::optional<DType> rounded_as;
};

// [tokens, num_heads * head_dim]. Fails the test when something but the output was written.
std::vector<float> RunAttention(KernelBackend& backend, const AttentionCase& c);

// The reference's output for the same case.
std::vector<float> ReferenceAttention(const AttentionCase& c);

// A number in (-1, 1) that is a function of its arguments.
float NumberFor(uint64_t key, uint64_t a, uint64_t b, uint64_t c);

// Square root of sum (a - b)^2 / sum b^2; infinite when there is a NaN in either.
double NormalisedError(const std::vector<float>& a, const std::vector<float>& b);

}  // namespace quire

#endif  // QUIRE_TESTS_KERNELS_ATTENTION_CASE_H_
