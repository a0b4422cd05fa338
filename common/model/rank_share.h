// RankShare is the part of a model that one rank of a tensor-parallel group holds and computes.
//
//   column-parallel   q, k, v, gate, up, fc1: a rank computes the outputs of its heads, or of its
//                     columns of the MLP. No rank needs another rank's outputs.
//   row-parallel      attention output, MLP down: a rank multiplies the inputs that it computed by
//                     its part of the weights. The product is a partial sum of every output. The
//                     partial sums of all ranks are added up.
//   vocabulary        token table, output layer: a rank has the rows of one range of token ids.
//   replicated        norms, learned positions, projections of the embedding: every rank has all.
//
// With fewer KV heads than ranks, neighboring ranks hold the same KV head.
//
// Thread safety: a value type.
// Source:        Shoeybi et al. 2019 (Megatron-LM), section 3.
#ifndef QUIRE_COMMON_MODEL_RANK_SHARE_H_
#define QUIRE_COMMON_MODEL_RANK_SHARE_H_

#include <cstdint>

#include "absl/status/statusor.h"

#include "common/model/model_config.h"

namespace quire {

// Upper bound on ranks: the number of segments of a row-parallel sum, since a rank sums at least
// one whole segment.
inline constexpr int32_t kMaxRanks = 8;

// A rank of a group: `rank` is its number, from 0; `size` is the number of ranks in the group.
struct RankPlace {
  int32_t rank = 0;
  int32_t size = 1;
};

struct IndexRange {
  int32_t begin = 0;
  int32_t count = 0;

  friend bool operator==(const IndexRange&, const IndexRange&) = default;
};

struct RankShare {
  int32_t rank = 0;
  int32_t size = 1;  // ranks in the group
  IndexRange heads;
  IndexRange kv_heads;
  IndexRange intermediate;  // columns of the MLP
  IndexRange vocab;         // token ids; the counts of two ranks differ by at most one

  bool is_whole() const { return size == 1; }
};

// Returns the part of the model that a rank holds. A group size above 1 is allowed only if the
// model's row-parallel sums divide into kTreeSegments equal segments (kernels/api/dense.h). These
// segments are the same at every size, so the size changes no bit of an answer.
// Errors: kInvalidArgument, reason TENSOR_PARALLEL_SIZE: the size is not 1, 2, 4 or 8; the size
// does not fit the model (the message has both numbers); the rank is not in [0, size).
absl::StatusOr<RankShare> ShareOf(const ModelConfig& config, RankPlace place);

// Returns the range of token ids whose rows this rank holds, in the token table and in the output
// layer.
IndexRange VocabOf(const ModelConfig& config, RankPlace place);

}  // namespace quire

#endif  // QUIRE_COMMON_MODEL_RANK_SHARE_H_
