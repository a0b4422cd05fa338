#include "common/step/step_bytes.h"

#include "common/base/math.h"

namespace quire {
namespace {

constexpr int64_t kIdBytes = 4;  // a packed fixed32 on the wire

// Upper bound on the tags, lengths and scalar fields of a SequenceIntroduction and its sampling
// parameters: at most 22 fields of at most 11 bytes.
constexpr int64_t kFixedIntroductionBytes = 256;
// Upper bound on a StepRequest's header and the tags and lengths of its columns.
constexpr int64_t kFixedStepBytes = 512;

constexpr int64_t kCopyBytes = 2 * kIdBytes;
constexpr int64_t kSwapBytes = 16;  // a swap-in: block, host block, generation

// Upper bound on the bytes of a slice without its new blocks. The sum counts ids: 3 columns; 2 for
// a forced token, with the slice's index; 2 for a next block, with the slice's index; 1 release; 2
// for the copy of a shared last block; 2 for the copy of a pinned prefix's partly filled last
// block.
constexpr int64_t kSliceBytes = kIdBytes * (3 + 2 + 2 + 1 + 2 + 2);

// Upper bound on a sequence's sampling lists: 300 biases of two numbers, 64 stop tokens, and 1,024
// end-of-sequence tokens each from config.json and generation_config.json.
constexpr int64_t kMaxSamplingBytes = kIdBytes * (2 * 300 + 64 + 2 * 1024);

}  // namespace

int64_t IntroductionBytes(int64_t num_tokens, int64_t num_blocks, const SamplingParams& sampling) {
  const auto num_biases = static_cast<int64_t>(sampling.logit_bias.size());
  const auto num_banned = static_cast<int64_t>(sampling.banned_before_min_tokens.size());
  return kFixedIntroductionBytes +
         kIdBytes * (num_tokens + num_blocks + 2 * num_biases + num_banned);
}

int64_t MaxStepBytes(const StepLimits& limits) {
  const int64_t longest =
      kMaxSamplingBytes + IntroductionBytes(limits.max_model_len,
                                            DivCeil(limits.max_model_len, limits.block_size_tokens),
                                            {});
  // Each token starts at most one new block, and each slice adds at most one more.
  const int64_t num_new_blocks = int64_t{limits.max_tokens_per_step} + limits.max_sequences;
  const int64_t spare_bytes = kIdBytes * (1 + kMaxSpareBlocks);
  const int64_t num_page_copies = limits.blocks_per_page > 1 ? kMaxPageCopies : 0;
  return kFixedStepBytes + kIntroductionBudgetBytes + 2 * longest + spare_bytes +
         kSwapBytes * limits.num_host_blocks + kCopyBytes * num_page_copies +
         kSliceBytes * limits.max_sequences + kIdBytes * num_new_blocks;
}

}  // namespace quire
