// StepPacker lays out the inputs of a step for one copy to the device. It decides which sequences
// decode, cuts the prefills of the others into items of up to kPrefillRows rows (gpu::PrefillItem),
// and decides whether a graph can replay the step.
//
// If every sequence of a step decodes one token and is sampled, the step is padded: its number of
// sequences to the next bucket (DecodeBucket), and its number of block table columns to a power of
// two. So a few graphs serve all such steps. Padding sequences have length 0, their tokens slot -1.
//
// Thread safety: one caller at a time.
// Cost:          O(tokens + block table entries).
#ifndef QUIRE_KERNELS_GPU_STEP_PACKER_H_
#define QUIRE_KERNELS_GPU_STEP_PACKER_H_

#include <compare>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "kernels/api/step_inputs.h"
#include "kernels/cuda/gpu_ops.h"

namespace quire {

// Decode-only steps of equal shape run the same operations with the same arguments.
struct DecodeShape {
  int32_t num_seqs = 0;
  int32_t max_blocks_per_seq = 0;
  bool reads_windows = false;  // the step has first_places instead of block_tables

  // NOLINTNEXTLINE(modernize-use-nullptr): clang-tidy 14 mistakes the operator
  friend auto operator<=>(const DecodeShape&, const DecodeShape&) = default;
};

struct PackedStep {
  StepInputs inputs;            // all pointers point into the `destination` of Write
  bool is_decode_only = false;  // each sequence decodes one token; padded to `shape`
  DecodeShape shape;
  int32_t num_decodes = 0;
  const int32_t* decode_seq_index = nullptr;  // [num_decodes] decoding sequences; null: all
  int32_t num_items = 0;
  const gpu::PrefillItem* items = nullptr;  // [num_items], longest context first
  // Upper bound on the splits of all decodes together; a split is a part of one context
  // (gpu::DecodePlan). Tokens before a sliding window need no splits.
  int64_t max_splits = 0;
};

class StepPacker {
 public:
  // pad_decodes: whether to pad decode-only steps, so that graphs can replay them.
  StepPacker(int32_t num_queries_per_kv_head, int32_t split_tokens, bool pad_decodes)
      : group_(num_queries_per_kv_head), split_tokens_(split_tokens), pad_decodes_(pad_decodes) {}

  // Divides the sequences into prefills and decodes, and chooses the offset of each array. Returns
  // the number of bytes that Write fills.
  int64_t Plan(const StepInputs& host);
  // Fills `bytes`. The pointers of the returned step are valid after `bytes` is copied to
  // `destination`.
  PackedStep Write(const StepInputs& host, std::byte* bytes, void* destination);

 private:
  struct Array {
    int64_t offset = 0;
    int64_t count = 0;
  };

  void Classify(const StepInputs& host);
  void CollectItems(const StepInputs& host);
  template <typename T>
  Array Place(int64_t count);
  // Writes the block tables or, if attention reads windows, first_places.
  void WriteBlocks(const StepInputs& host, std::byte* bytes) const;

  const int32_t group_;
  const int32_t split_tokens_;
  const bool pad_decodes_;

  // State of the current step, from Plan to Write.
  PackedStep step_;
  std::vector<int32_t> decodes_;
  std::vector<gpu::PrefillItem> items_;
  int64_t bytes_ = 0;
  Array token_ids_, positions_, slots_, query_start_, seq_lens_, tables_, first_places_, logits_,
      decode_index_, item_list_;
};

// Returns the smallest bucket that is at least num_seqs. The buckets are 1, 2, 4, 8, then multiples
// of 8 up to 64, of 16 up to 256, and of 32 above.
int32_t DecodeBucket(int32_t num_seqs);

}  // namespace quire

#endif  // QUIRE_KERNELS_GPU_STEP_PACKER_H_
