// StepPacker lays out the inputs of a step for one copy to the device. It decides which sequences
// decode, cuts the prefills of the others into items of up to kPrefillRows rows (gpu::PrefillItem),
// and decides whether a graph can replay the step.
//
// If every sequence of a step decodes one token and is sampled, the step's number of sequences is
// padded to the next bucket (DecodeBucket). So a few graphs serve all such steps. Padding sequences
// have length 0; their tokens have slot -1. The block tables stay as wide as they were given;
// GpuBackend spreads them to rows of one width.
//
// The decodes of a step are cut into groups. The partial results of a group fit into the memory for
// partial results (StepNeeds). A step with several groups is not replayed, because the groups
// depend on the lengths of the sequences.
//
// If decodes run by lines, sequences with up to LineShape::max_query_tokens tokens in the step
// decode too, in separate groups. Decode divides a context among all CTAs, while prefill has only
// one CTA for each item and KV head. But decode and prefill give different bits, and other requests
// decide how many tokens of a prompt a step has. So batch-invariant servers set max_query_tokens to
// 1.
//
// Thread safety: one caller at a time.
// Cost:          O(tokens + block table entries).
#ifndef QUIRE_KERNELS_GPU_STEP_PACKER_H_
#define QUIRE_KERNELS_GPU_STEP_PACKER_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "kernels/api/step_inputs.h"
#include "kernels/cuda/gpu_ops.h"
#include "kernels/gpu/decode_memory.h"

namespace quire {

// Consecutive decodes whose partial results fit in memory together.
struct DecodeGroup {
  int32_t first = 0;  // index into decode_seq_index
  int32_t count = 0;
  int32_t max_query_tokens = 1;  // the most query tokens of a decode

  friend bool operator==(const DecodeGroup&, const DecodeGroup&) = default;
};

struct PackedStep {
  StepInputs inputs;            // all pointers point into the `destination` of Write
  bool is_decode_only = false;  // each sequence decodes one token; padded to a bucket
  bool is_replayable = false;   // is_decode_only, in one group, and shares no new tokens
  int32_t num_decodes = 0;
  std::vector<DecodeGroup> groups;            // of all decodes, in order
  const int32_t* decode_seq_index = nullptr;  // [num_decodes] decoding sequences; null: all
  int32_t num_items = 0;
  const gpu::PrefillItem* items = nullptr;  // [num_items], longest context first
  // Room for the caller's extra inputs: on the host, in Write's `bytes`, and on the device, where
  // it is copied to, in Write's `destination`.
  std::byte* extra = nullptr;
  const std::byte* extra_at_destination = nullptr;
};

class StepPacker {
 public:
  // pad_decodes: whether to pad decode-only steps, so that graphs can replay them.
  StepPacker(const StepShape& shape, bool pad_decodes) : shape_(shape), pad_decodes_(pad_decodes) {}

  // Returns an upper bound on the result of Plan with num_extra_bytes 0, for steps within `bounds`.
  static int64_t MaxBytes(const StepBounds& bounds, int32_t num_queries_per_kv_head);
  // Returns an upper bound on the elements of DecodePlan::split_start, summed over the groups of a
  // step within `bounds`.
  static int64_t MaxSplitStarts(const StepBounds& bounds);

  // Divides the sequences into prefills and decodes, and chooses the offset of each array.
  // max_partial_bytes: upper bound on the partial results of a group, except a group of one
  // sequence that decodes one token. num_extra_bytes: room for more inputs, which the caller fills.
  // Returns the number of bytes of all inputs. The block tables lie behind all other arrays,
  // because their size differs between replayable steps of one bucket. So the other arrays of two
  // such steps have equal addresses.
  int64_t Plan(const StepInputs& host, int64_t max_partial_bytes, int64_t num_extra_bytes = 0);
  // Fills `bytes`. The pointers of the returned step are valid after `bytes` is copied to
  // `destination`.
  PackedStep Write(const StepInputs& host, std::byte* bytes, void* destination);

 private:
  struct Array {
    int64_t offset = 0;
    int64_t count = 0;
  };
  // Numbers of elements of the arrays.
  struct Counts {
    int64_t tokens = 0;
    int64_t seqs = 0;
    int64_t table_entries = 0;
    int64_t first_places = 0;
    int64_t logits = 0;
    int64_t decodes = 0;
    int64_t items = 0;
    int64_t extra_bytes = 0;
  };
  struct Layout {
    Array token_ids, positions, slots, query_start, seq_lens, tables, first_places, logits,
        decode_index, items, extra;
    int64_t bytes = 0;
  };

  static Layout LayOut(const Counts& counts);
  // Collects the decodes and the prefills. Decodes of one query token come first.
  void Classify(const StepInputs& host, int64_t max_partial_bytes);
  // Cuts the decodes into groups.
  void Group(const StepInputs& host, int64_t max_partial_bytes);
  void CollectItems(const StepInputs& host);
  bool Decodes(const StepInputs& host, int32_t seq, int64_t max_partial_bytes) const;
  // Writes the block tables or, if attention reads windows, first_places.
  void WriteBlocks(const StepInputs& host, std::byte* bytes) const;

  const StepShape shape_;
  const bool pad_decodes_;

  // State of the current step, from Plan to Write.
  PackedStep step_;
  int32_t num_seqs_ = 0;  // padding included
  std::vector<int32_t> decodes_;
  std::vector<int32_t> prefills_;
  std::vector<gpu::PrefillItem> items_;
  Layout at_;
};

// Returns the smallest bucket that is at least num_seqs. The buckets are 1, 2, 4, 8, then multiples
// of 8 up to 64, of 16 up to 256, and of 32 above.
int32_t DecodeBucket(int32_t num_seqs);

}  // namespace quire

#endif  // QUIRE_KERNELS_GPU_STEP_PACKER_H_
