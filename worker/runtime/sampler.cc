#include "worker/runtime/sampler.h"

#include <algorithm>
#include <span>

namespace quire {

Sampler::Sampler(KernelBackend& backend, int32_t vocab_size, const RankShare& share)
    : backend_(backend), vocab_size_(vocab_size), rank_(share.rank), num_ranks_(share.size) {}

void Sampler::Reserve(size_t num_rows) {
  token_ids_.resize(num_rows);
  logprobs_.resize(num_rows);
  if (num_finite_ < num_rows) {
    finite_ = std::make_unique<bool[]>(num_rows);
    num_finite_ = num_rows;
  }
}

int32_t Sampler::CollectRows(const std::vector<ScheduledSlice>& slices) {
  rows_.clear();
  handles_.clear();
  int32_t max_top = 0;
  for (const ScheduledSlice& slice : slices) {
    if (!slice.is_sampled()) {
      continue;
    }
    const SequenceState& sequence = *slice.sequence;
    rows_.push_back(sequence.sampling_row());
    handles_.push_back(slice.handle);
    max_top = std::max(max_top, sequence.sampling.num_logprobs);
  }
  return max_top;
}

void Sampler::Announce(const std::vector<ScheduledSlice>& slices) {
  if (rank_ == 0) {
    CollectRows(slices);
    backend_.AnnounceSampling(rows_);
  }
}

void Sampler::Sample(const std::vector<ScheduledSlice>& slices,
                     float* logits,
                     std::vector<SampledToken>* sampled) {
  int64_t top_stride = CollectRows(slices);
  Reserve(rows_.size());
  top_logprobs_.resize(rows_.size() * static_cast<size_t>(top_stride));
  if (rows_.empty()) {
    return;
  }
  if (rank_ == 0) {
    SampleRows(logits, top_stride);
  }
  if (num_ranks_ > 1) {
    Share();
  }
  sampled->reserve(sampled->size() + rows_.size());
  for (size_t row = 0; row < rows_.size(); ++row) {
    sampled->push_back(Result(row, top_stride));
  }
}

void Sampler::SampleRows(float* logits, int64_t top_stride) {
  backend_.Sample({.num_rows = static_cast<int32_t>(rows_.size()),
                   .vocab_size = vocab_size_,
                   .row_stride = vocab_size_,
                   .logits = logits,
                   .rows = rows_.data(),
                   .token_ids = token_ids_.data(),
                   .logprobs = logprobs_.data(),
                   .finite = finite_.get(),
                   .top_logprobs = top_logprobs_.data(),
                   .top_logprobs_stride = top_stride});
}

void Sampler::Share() {
  backend_.Broadcast(std::as_writable_bytes(std::span(token_ids_)));
  backend_.Broadcast(std::as_writable_bytes(std::span(finite_.get(), rows_.size())));
}

SampledToken Sampler::Result(size_t row, int64_t top_stride) const {
  SampledToken result{.handle = handles_[row],
                      .token_id = token_ids_[row],
                      .logprob = logprobs_[row],
                      .finite = finite_[row],
                      .top_logprobs = {}};
  // A row with logits that are not finite has no top log-probabilities.
  const bool has_top = result.finite && rank_ == 0;
  int32_t num_top = has_top ? std::min(rows_[row].params->num_logprobs, vocab_size_) : 0;
  for (int32_t k = 0; k < num_top; ++k) {
    const SampledLogprob& top =
        top_logprobs_[row * static_cast<size_t>(top_stride) + static_cast<size_t>(k)];
    result.top_logprobs.push_back({.token_id = top.token_id, .logprob = top.logprob});
  }
  return result;
}

}  // namespace quire
