#include "kernels/cpu/sampling.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <limits>

#include "common/base/math.h"
#include "kernels/cpu/candidate_set.h"
#include "kernels/cpu/logit_adjustments.h"
#include "kernels/cpu/philox.h"

namespace quire {
namespace {

constexpr float kNegativeInfinity = -std::numeric_limits<float>::infinity();

// Divides one piece of scratch memory into the arrays for sampling one row.
class Workspace {
 public:
  static size_t BytesFor(int64_t vocab_size) {
    const auto n = static_cast<size_t>(vocab_size);
    const size_t per_token = 4 * sizeof(float) + 3 * sizeof(int32_t);
    return n * per_token + sizeof(CandidateBucket) * kCandidateBuckets + 16 * kAlignment;
  }

  explicit Workspace(void* memory) : next_(static_cast<std::byte*>(memory)) {}

  template <typename T>
  T* Take(int64_t count) {
    T* result = reinterpret_cast<T*>(next_);
    next_ += RoundUp(static_cast<size_t>(count) * sizeof(T), kAlignment);
    return result;
  }

 private:
  static constexpr size_t kAlignment = 64;
  std::byte* next_;
};

double UniformOf(const SamplingRow& row) {
  const PhiloxWords words =
      Philox4x32(row.params->seed, {0, static_cast<uint32_t>(row.output_token_ids.size()), 0, 0});
  return static_cast<double>(words[0]) * 0x1p-32;
}

class RowSampler {
 public:
  RowSampler(const SampleParams& params, const RowScan& scan, int32_t index, Workspace workspace)
      : params_(params),
        row_(params.rows[index]),
        scan_(scan),
        index_(index),
        n_(params.vocab_size),
        blocks_(DivCeil(int64_t{params.vocab_size}, kScanBlock)),
        logits_(params.logits + index * params.row_stride),
        block_values_(workspace.Take<float>(blocks_)),
        block_scratch_(workspace.Take<float>(blocks_)) {
    memory_.ids = workspace.Take<TokenId>(n_);
    memory_.logits = workspace.Take<float>(n_);
    memory_.weights = workspace.Take<float>(n_);
    memory_.border = workspace.Take<int32_t>(n_);
    memory_.buckets = workspace.Take<CandidateBucket>(kCandidateBuckets);
    counts_ = workspace.Take<uint32_t>(n_);
    raw_copy_ = workspace.Take<float>(n_);
  }

  void Run() {
    params_.token_ids[index_] = 0;
    params_.logprobs[index_] = 0.0F;
    params_.finite[index_] = FindMax(false);
    const int32_t top = std::max(row_.params->num_logprobs, 0);
    std::fill_n(top_logprobs(), top, SampledLogprob{});
    if (!params_.finite[index_]) {
      return;
    }
    const float* raw = logits_;
    const bool wants_logprob = row_.params->num_logprobs >= 0;
    double log_normalizer = 0.0;
    if (wants_logprob) {
      log_normalizer = LogNormalizer();
      WriteTopLogprobs(std::min<int64_t>(top, n_), log_normalizer);
    }
    if (row_.is_adjusted()) {
      raw = wants_logprob ? std::copy_n(logits_, n_, raw_copy_) - n_ : logits_;
      AdjustLogits(row_, {logits_, static_cast<size_t>(n_)}, {counts_, static_cast<size_t>(n_)});
      params_.finite[index_] = FindMax(true) && std::isfinite(max_);
      if (!params_.finite[index_]) {
        return;
      }
    }
    const TokenId token = row_.params->is_greedy() ? ArgMax() : Draw();
    params_.token_ids[index_] = token;
    if (wants_logprob) {
      params_.logprobs[index_] = static_cast<float>(raw[token] - log_normalizer);
    }
  }

 private:
  SampledLogprob* top_logprobs() const {
    return params_.top_logprobs + index_ * params_.top_logprobs_stride;
  }

  // Sets block_values_ to the maxima of the row's blocks (row_scan.h), and max_ to the maximum of
  // the row. Returns false if the row holds a NaN or an infinity; accept_banned permits -infinity,
  // the logit of a banned token.
  bool FindMax(bool accept_banned) {
    const bool valid = scan_.block_max(logits_, n_, accept_banned, block_values_);
    max_ = *std::max_element(block_values_, block_values_ + blocks_);
    return valid;
  }

  // Returns log(sum(exp(logits))).
  double LogNormalizer() {
    scan_.exp_weights(logits_, n_, max_, 1.0F, 0.0F, nullptr, block_scratch_);
    return max_ + std::log(SumOfBlocks(block_scratch_));
  }

  double SumOfBlocks(const float* blocks) const {
    double sum = 0.0;
    for (int64_t b = 0; b < blocks_; ++b) {
      sum += blocks[b];
    }
    return sum;
  }

  // Returns a bound that the logits of at least k tokens reach: the k-th greatest of the blocks'
  // maxima, or -infinity if there are fewer than k blocks.
  float BoundOfLikeliest(int64_t k) {
    if (k > blocks_) {
      return kNegativeInfinity;
    }
    std::copy_n(block_values_, blocks_, block_scratch_);
    std::nth_element(
        block_scratch_, block_scratch_ + k - 1, block_scratch_ + blocks_, std::greater<>());
    return block_scratch_[k - 1];
  }

  void WriteTopLogprobs(int64_t k, double log_normalizer) {
    if (k == 0) {
      return;
    }
    const int64_t found = scan_.collect(logits_, n_, BoundOfLikeliest(k), memory_.ids);
    std::partial_sort(
        memory_.ids, memory_.ids + k, memory_.ids + found, [this](TokenId a, TokenId b) {
          return logits_[a] > logits_[b] || (logits_[a] == logits_[b] && a < b);
        });
    for (int64_t i = 0; i < k; ++i) {
      const TokenId token = memory_.ids[i];
      const double logprob = logits_[token] - log_normalizer;
      top_logprobs()[i] = {.token_id = token, .logprob = static_cast<float>(logprob)};
    }
  }

  TokenId ArgMax() const {
    const int64_t block = std::find(block_values_, block_values_ + blocks_, max_) - block_values_;
    const float* begin = logits_ + block * kScanBlock;
    const float* end = logits_ + std::min((block + 1) * kScanBlock, n_);
    return static_cast<TokenId>(std::find(begin, end, max_) - logits_);
  }

  TokenId Draw() {
    const double u = UniformOf(row_);
    const int64_t top_k = row_.params->top_k;
    const bool has_top_p = row_.params->top_p < 1.0F;
    if (top_k > 0 && top_k < n_) {
      CandidateSet candidates = LikeliestCandidates(top_k);
      if (has_top_p) {
        candidates.KeepMass(row_.params->top_p * candidates.TotalMass());
      }
      return candidates.Draw(u);
    }
    WeighAll(memory_.weights);
    return has_top_p ? NucleusCandidates().Draw(u) : DrawFromAll(u);
  }

  float factor() const { return 1.0F / row_.params->temperature; }

  // Writes the weights of the whole row to `weights`, and each block's sum to block_scratch_.
  void WeighAll(float* weights) {
    scan_.exp_weights(logits_, n_, max_, factor(), row_.params->min_p, weights, block_scratch_);
  }

  CandidateSet LikeliestCandidates(int64_t top_k) {
    const int64_t found = scan_.collect(logits_, n_, BoundOfLikeliest(top_k), memory_.ids);
    for (int64_t i = 0; i < found; ++i) {
      memory_.logits[i] = logits_[memory_.ids[i]];
    }
    scan_.exp_weights(
        memory_.logits, found, max_, factor(), row_.params->min_p, memory_.weights, block_scratch_);
    CandidateSet candidates(memory_, found, max_, row_.params->temperature);
    candidates.KeepLikeliest(top_k);
    return candidates;
  }

  // Returns the nucleus, the smallest set of likeliest tokens whose probabilities reach top_p.
  // A token whose weight is below (1 - top_p) * total / n is not in the nucleus: all such tokens
  // together weigh less than the mass that top-p leaves out.
  CandidateSet NucleusCandidates() {
    constexpr int64_t kManyCandidates = 4096;
    const double total = SumOfBlocks(block_scratch_);
    const double top_p = row_.params->top_p;
    const double floor = std::max((1.0 - top_p) * total / static_cast<double>(n_) * 0.999,
                                  double{std::numeric_limits<float>::min()});
    int64_t found = scan_.collect(memory_.weights, n_, static_cast<float>(floor), memory_.ids);
    if (found > kManyCandidates) {
      const float bound = BoundOfMass(top_p * total, static_cast<float>(floor));
      found = scan_.collect(memory_.weights, n_, bound, memory_.ids);
    }
    for (int64_t i = 0; i < found; ++i) {
      // token >= i, so no weight is overwritten before it is read.
      const TokenId token = memory_.ids[i];
      memory_.logits[i] = logits_[token];
      memory_.weights[i] = memory_.weights[token];
    }
    CandidateSet candidates(memory_, found, max_, row_.params->temperature);
    candidates.KeepMass(top_p * total);
    return candidates;
  }

  // Returns the greatest power of two p >= 2^-31 such that the tokens of weight p or more together
  // reach `mass`. Returns `floor` if there is no such p, or if `floor` is greater.
  float BoundOfMass(double mass, float floor) const {
    constexpr double kSlack = 1.0001;  // covers the rounding of fp32 sums
    constexpr int kMaxHalvings = 32;
    int low = 0;
    int high = kMaxHalvings;
    while (low < high) {
      const int halvings = (low + high) / 2;
      const auto bound = static_cast<float>(std::ldexp(1.0, -halvings));
      if (scan_.mass_at_least(memory_.weights, n_, bound) >= mass * kSlack) {
        high = halvings;
      } else {
        low = halvings + 1;
      }
    }
    return high == kMaxHalvings ? floor
                                : std::max(floor, static_cast<float>(std::ldexp(1.0, -high)));
  }

  TokenId DrawFromAll(double u) const {
    const double target = u * SumOfBlocks(block_scratch_);
    double running = 0.0;
    // The block in which the running sum passes the target. If none does, the last block with a
    // weight that is not 0.
    int64_t block = 0;
    for (int64_t b = 0; b < blocks_; ++b) {
      if (block_scratch_[b] > 0.0F) {
        block = b;
        if (running + block_scratch_[b] > target) {
          break;
        }
      }
      running += block_scratch_[b];
    }
    TokenId last = 0;
    for (int64_t i = block * kScanBlock; i < std::min((block + 1) * kScanBlock, n_); ++i) {
      if (memory_.weights[i] > 0.0F) {
        last = static_cast<TokenId>(i);
        running += memory_.weights[i];
        if (running > target) {
          break;
        }
      }
    }
    return last;
  }

  const SampleParams& params_;
  const SamplingRow& row_;
  const RowScan& scan_;
  const int32_t index_;
  const int64_t n_;
  const int64_t blocks_;
  float* const logits_;
  float* const block_values_;  // maximum of each block
  float* const block_scratch_;
  CandidateMemory memory_;
  uint32_t* counts_ = nullptr;
  float* raw_copy_ = nullptr;
  float max_ = 0.0F;
};

}  // namespace

void Sample(const SampleParams& params, const RowScan& scan, ThreadTeam& team) {
  team.ParallelFor(params.num_rows, [&](int64_t index, int thread) {
    Workspace workspace(team.Scratch(thread, Workspace::BytesFor(params.vocab_size)));
    RowSampler(params, scan, static_cast<int32_t>(index), workspace).Run();
  });
}

}  // namespace quire
