#include "common/model/rank_share.h"

#include <algorithm>
#include <string_view>

#include "absl/strings/str_cat.h"

#include "common/base/error.h"
#include "common/base/string_view.h"

namespace quire {
namespace {

absl::Status Refusal(std::string_view rule) {
  return InvalidArgument("TENSOR_PARALLEL_SIZE",
                         absl::StrCat("tensor_parallel_size: ", ToAbsl(rule)));
}

absl::Status CheckDivides(int32_t size, std::string_view what, int64_t number) {
  return number % size == 0 ? absl::OkStatus()
                            : Refusal(absl::StrCat("does not divide ",
                                                   ToAbsl(what),
                                                   " (got ",
                                                   size,
                                                   ", the model has ",
                                                   number,
                                                   ")"));
}

// Checks that `number` is a multiple of kMaxRanks. Only then can a row-parallel sum of `number`
// terms be cut into kMaxRanks equal segments, which are the same for every group size.
absl::Status CheckSegments(std::string_view what, int64_t number) {
  return number % kMaxRanks == 0 ? absl::OkStatus()
                                 : Refusal(absl::StrCat("above 1, ",
                                                        ToAbsl(what),
                                                        " must be a multiple of ",
                                                        kMaxRanks,
                                                        " (the model has ",
                                                        number,
                                                        ")"));
}

absl::Status CheckSize(const ModelConfig& config, int32_t size) {
  if (size < 1 || kMaxRanks % size != 0) {
    return Refusal(absl::StrCat("must be 1, 2, 4 or 8 (got ", size, ")"));
  }
  if (size == 1) {
    return absl::OkStatus();
  }
  if (config.vocab_size < size) {
    return Refusal(absl::StrCat("exceeds the size of the vocabulary (got ",
                                size,
                                ", the model has ",
                                config.vocab_size,
                                ")"));
  }
  for (const absl::Status& status :
       {CheckDivides(size, "the heads", config.num_heads),
        CheckDivides(size, "the width of the MLP", config.intermediate_size),
        CheckSegments("the width of attention", int64_t{config.num_heads} * config.head_dim),
        CheckSegments("the width of the MLP", config.intermediate_size)}) {
    if (!status.ok()) {
      return status;
    }
  }
  // Either each rank has whole KV heads, or each KV head is shared by the same number of ranks.
  if (config.num_kv_heads % size != 0 && size % config.num_kv_heads != 0) {
    return CheckDivides(size, "the KV heads", config.num_kv_heads);
  }
  return absl::OkStatus();
}

IndexRange Even(int32_t count, int32_t rank, int32_t size) {
  const auto at = [&](int64_t r) { return static_cast<int32_t>(count * r / size); };
  return {.begin = at(rank), .count = at(rank + 1) - at(rank)};
}

}  // namespace

absl::StatusOr<RankShare> ShareOf(const ModelConfig& config, RankPlace place) {
  const auto [rank, size] = place;
  if (absl::Status status = CheckSize(config, size); !status.ok()) {
    return status;
  }
  if (rank < 0 || rank >= size) {
    return InvalidArgument(
        "TENSOR_PARALLEL_SIZE",
        absl::StrCat(
            "rank: must be below tensor_parallel_size (got ", rank, ", limit ", size, ")"));
  }
  RankShare share = {.rank = rank,
                     .size = size,
                     .heads = Even(config.num_heads, rank, size),
                     .kv_heads = Even(config.num_kv_heads, rank, size),
                     .intermediate = Even(config.intermediate_size, rank, size),
                     .vocab = VocabOf(config, place)};
  if (config.num_kv_heads < size) {
    share.kv_heads = {.begin = rank * config.num_kv_heads / size, .count = 1};
  }
  return share;
}

IndexRange VocabOf(const ModelConfig& config, RankPlace place) {
  return Even(config.vocab_size, place.rank, place.size);
}

}  // namespace quire
