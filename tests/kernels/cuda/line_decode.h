// LineDecode has the plan and the memory that decode by lines (DecodeKernel::kLines) needs, with
// room for exactly the partial results that DecodePartialFloats counts. Decoded does it all.
//
// Usage: LineDecode decode(params, {.num_ctas = 3});  decode.Run(params, dtype, stream);
#ifndef QUIRE_TESTS_KERNELS_CUDA_LINE_DECODE_H_
#define QUIRE_TESTS_KERNELS_CUDA_LINE_DECODE_H_

#include <algorithm>
#include <cstdint>
#include <vector>

#include "gtest/gtest.h"

#include "kernels/cuda/gpu_ops.h"
#include "tests/kernels/cuda/attention_data.h"
#include "tests/kernels/cuda/device_array.h"

namespace quire::gpu {

struct LineOptions {
  int32_t split_tokens = 64;
  int32_t num_ctas = 3;
  int32_t max_query_tokens = 1;
  std::vector<int32_t> seq_index;  // empty: all sequences, in order
};

class LineDecode {
 public:
  LineDecode(const PagedAttentionParams& params, const LineOptions& options)
      : seq_index_(options.seq_index),
        split_start_((options.seq_index.empty() ? params.num_seqs
                                                : static_cast<int64_t>(options.seq_index.size())) +
                     1),
        arrivals_(std::vector<int32_t>(static_cast<size_t>(options.num_ctas), 0)) {
    plan_ = {.seq_index = options.seq_index.empty() ? nullptr : seq_index_.data(),
             .num_decodes = static_cast<int32_t>(split_start_.size()) - 1,
             .split_tokens = options.split_tokens,
             .split_start = split_start_.data(),
             .num_ctas = options.num_ctas,
             .kernel = DecodeKernel::kLines,
             .max_query_tokens = options.max_query_tokens,
             .arrivals = arrivals_.data()};
    partial_out_ = DeviceArray<float>(DecodePartialFloats(params, plan_));
    plan_.partial_out = partial_out_.data();
  }

  const DecodePlan& plan() const { return plan_; }
  std::vector<int32_t> SplitStart() const { return split_start_.ToHost(); }

  int Plan(const PagedAttentionParams& params, Stream stream) {
    return PlanDecode(params, plan_, split_start_.data(), stream);
  }

  // Plans and decodes.
  void Run(const PagedAttentionParams& params, DType activations, Stream stream = nullptr) {
    EXPECT_EQ(Plan(params, stream), 0);
    EXPECT_EQ(Decode(params, plan_, activations, stream), 0);
  }

  // Every call must leave zeros for the next one.
  void ExpectNoArrivals() const {
    EXPECT_EQ(arrivals_.ToHost(), std::vector<int32_t>(static_cast<size_t>(arrivals_.size()), 0));
  }

 private:
  DeviceArray<int32_t> seq_index_;
  DeviceArray<int32_t> split_start_;
  DeviceArray<int32_t> arrivals_;
  DeviceArray<float> partial_out_{0};
  DecodePlan plan_;
};

inline int32_t MaxQueryTokens(const AttentionProblem& problem) {
  int32_t most = 1;
  for (const AttentionSequence& sequence : problem.sequences) {
    most = std::max(most, sequence.query_len);
  }
  return most;
}

// Returns the bits of the output, [num_tokens, num_heads * head_dim].
inline std::vector<uint16_t> Decoded(const AttentionData& data, LineOptions options = {}) {
  options.max_query_tokens = std::max(options.max_query_tokens, MaxQueryTokens(data.problem()));
  DeviceAttention device(data);
  LineDecode decode(device.params(), options);
  decode.Run(device.params(), data.problem().dtype);
  decode.ExpectNoArrivals();
  return device.Out();
}

inline void ExpectDecodes(const AttentionProblem& problem, const LineOptions& options = {}) {
  AttentionData data(problem);
  ExpectClose(data, Decoded(data, options));
}

// One query each.
inline std::vector<AttentionSequence> SequencesOf(const std::vector<int32_t>& seq_lens) {
  std::vector<AttentionSequence> sequences;
  for (int32_t seq_len : seq_lens) {
    sequences.push_back({.seq_len = seq_len, .key = sequences.size() + 1});
  }
  return sequences;
}

// Returns the sequence's rows of the output.
inline std::vector<uint16_t> RowsOf(const AttentionData& data,
                                    const std::vector<uint16_t>& out,
                                    size_t sequence) {
  auto width = static_cast<int64_t>(data.OutWidth());
  return {out.begin() + data.query_start()[sequence] * width,
          out.begin() + data.query_start()[sequence + 1] * width};
}

}  // namespace quire::gpu

#endif  // QUIRE_TESTS_KERNELS_CUDA_LINE_DECODE_H_
