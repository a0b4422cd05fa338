// The steps of GpuBackend: their inputs, their graphs and the sampling of their rows.
#include <bit>
#include <cstdint>
#include <functional>
#include <utility>
#include <vector>

#include "common/base/check.h"
#include "kernels/gpu/gpu_backend_class.h"

namespace quire {

StepInputs GpuBackend::BeginStep(const StepInputs& host) {
  QUIRE_CHECK(packer_.has_value());
  CoverStep(host);
  const bool may_sample = group_ == nullptr && !announced_.empty() &&
                          std::cmp_equal(announced_.size(), host.num_logits) &&
                          GpuSampler::CanSampleAhead(announced_);
  const int32_t num_padded = DecodeBucket(host.num_logits);
  const int64_t bytes = packer_->Plan(
      host, memory_.partial_bytes(), may_sample ? GpuSampler::AheadBytes(num_padded) : 0);
  QUIRE_CHECK(bytes <= memory_.input_bytes());
  std::byte* host_copy = memory_.staging().Next();
  step_ = packer_->Write(host, host_copy, memory_.inputs());
  samples_ahead_ = may_sample && step_.is_replayable;
  if (samples_ahead_) {
    sampler_.WriteAhead(announced_, num_padded, step_.extra);
  }
  Require(api_.copy_to_device(memory_.inputs(), host_copy, static_cast<size_t>(bytes), stream_),
          "upload inputs");
  memory_.staging().MarkRead(stream_);
  if (step_.is_replayable && host.first_places == nullptr) {
    SpreadTables();
  }
  decode_plans_.Clear();
  announced_name_.reset();
  return step_.inputs;
}

void GpuBackend::SpreadTables() {
  static_assert(sizeof(BlockId) == sizeof(float));
  StepInputs& inputs = step_.inputs;
  auto* tables = static_cast<BlockId*>(memory_.tables());
  Require(api_.copy_columns({.to = reinterpret_cast<float*>(tables),
                             .to_stride = bounds_.max_blocks_per_seq,
                             .from = reinterpret_cast<const float*>(inputs.block_tables),
                             .from_stride = inputs.max_blocks_per_seq,
                             .num_rows = inputs.num_seqs,
                             .width = inputs.max_blocks_per_seq},
                            stream_),
          "spread block tables");
  inputs.block_tables = tables;
  inputs.max_blocks_per_seq = bounds_.max_blocks_per_seq;
}

// Returns the largest bucket first, so that a lack of memory shows early.
std::vector<int32_t> GpuBackend::BatchesToRecord(int32_t max_seqs) const {
  std::vector<int32_t> batches;
  if (!options_.records_at_start || !options_.use_graphs || staged_ != nullptr ||
      graphs_.size() > 0) {
    return batches;
  }
  for (int32_t bucket = DecodeBucket(max_seqs); bucket > 0;) {
    batches.push_back(bucket);
    // Finds the next smaller bucket: the largest smaller number that is not padded to `bucket`.
    int32_t smaller = bucket - 1;
    while (smaller > 0 && DecodeBucket(smaller) == bucket) {
      --smaller;
    }
    bucket = smaller;
  }
  return batches;
}

void GpuBackend::AnnounceOperations(const std::function<void()>& operations) {
  if (UsesGraph()) {
    announced_name_ = DigestOf([&] {
      operations();
      SampleAhead();
    });
  }
}

// Collectives through main memory make the host wait for the device, so a step with them cannot be
// recorded as a graph.
void GpuBackend::RunStep(const std::function<void()>& operations) {
  if (UsesGraph()) {
    RunReplayable([&] {
      operations();
      SampleAhead();
    });
  } else {
    operations();
  }
  if (nccl_ != nullptr) {
    nccl_->Finish();  // else a later wait for the device would hang if a rank is lost
  }
  if (samples_ahead_) {
    sampler_.MarkAhead();
  }
}

void GpuBackend::RunReplayable(const std::function<void()>& operations) {
  const uint64_t name = announced_name_.has_value() ? *announced_name_ : DigestOf(operations);
  announced_name_.reset();
  if (gpu::Graph graph = graphs_.Find(name); graph != nullptr) {
    Launch(graph);
  } else if (graphs_.can_record() && graphs_.HasRun(name)) {
    RecordAndLaunch(name, operations);
  } else {
    operations();
  }
}

uint64_t GpuBackend::DigestOf(const std::function<void()>& operations) {
  digest_.emplace();
  digest_->AddInt(static_cast<int64_t>(num_moves_));
  digest_->AddInt(step_.num_decodes);
  operations();
  const uint64_t name = digest_->value();
  digest_.reset();
  return name;
}

void GpuBackend::Launch(gpu::Graph graph) {
  Require(api_.launch_graph(graph, stream_), "launch graph");
  if (nccl_ != nullptr) {
    nccl_->CountLaunch();
  }
}

void GpuBackend::RecordAndLaunch(uint64_t name, const std::function<void()>& operations) {
  graphs_.BeginRecording(stream_);
  if (nccl_ != nullptr) {
    nccl_->BeginRecording();
  }
  operations();
  if (nccl_ != nullptr && !nccl_->is_whole()) {
    // The group of ranks is broken, so the step fails and its results are not read.
    graphs_.AbandonRecording(stream_);
    nccl_->EndRecording();
    return;
  }
  const gpu::Graph graph = graphs_.EndRecording(name, stream_);
  if (nccl_ != nullptr) {
    nccl_->EndRecording();
  }
  if (graph == nullptr) {
    decode_plans_.Clear();  // the recorded planning of splits did not run
    operations();
    return;
  }
  Launch(graph);
}

void GpuBackend::SampleAhead() {
  if (!samples_ahead_) {
    return;
  }
  if (digest_.has_value()) {
    digest_->AddInt(std::bit_cast<int64_t>(logits_.data));
    digest_->AddInt(logits_.vocab_size);
    digest_->AddInt(std::bit_cast<int64_t>(step_.extra_at_destination));
    return;
  }
  sampler_.EnqueueAhead(
      logits_.data, logits_.vocab_size, logits_.num_rows, step_.extra_at_destination);
}

// Uses the tokens sampled ahead only if they were sampled from these logits with these rows.
void GpuBackend::Sample(const SampleParams& params) {
  QUIRE_CHECK(!digest_.has_value());
  const bool is_done = samples_ahead_ && params.rows == announced_.data() &&
                       std::cmp_equal(params.num_rows, announced_.size()) &&
                       params.logits == logits_.data && params.vocab_size == logits_.vocab_size &&
                       params.row_stride == logits_.vocab_size;
  if (is_done) {
    sampler_.FinishAhead(params, logits_.num_rows);
  } else {
    sampler_.Sample(params);
  }
  samples_ahead_ = false;
  announced_ = {};
  launches_.Add();
}

}  // namespace quire
