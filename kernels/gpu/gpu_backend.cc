#include "kernels/gpu/gpu_backend.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "common/base/check.h"
#include "common/base/clock.h"
#include "common/base/error.h"
#include "common/base/log.h"
#include "common/base/math.h"
#include "common/base/status_macros.h"
#include "kernels/api/progress_counter.h"
#include "kernels/gpu/decode_plans.h"
#include "kernels/gpu/gpu_linear.h"
#include "kernels/gpu/gpu_memory.h"
#include "kernels/gpu/gpu_sampler.h"
#include "kernels/gpu/gpu_transfers.h"
#include "kernels/gpu/gpu_windows.h"
#include "kernels/gpu/graph_cache.h"
#include "kernels/gpu/nccl_group.h"
#include "kernels/gpu/operation_digest.h"
#include "kernels/gpu/staged_group.h"
#include "kernels/gpu/step_memory.h"
#include "kernels/gpu/step_needs.h"
#include "kernels/gpu/step_packer.h"

namespace quire {
namespace {

constexpr std::array kHeadDims = {64, 80, 96, 112, 128, 256};
constexpr int32_t kWidthMultiple = 8;
constexpr int32_t kFp8WidthMultiple = 16;
constexpr int64_t kMaxNcclConnect = 30 * kNanosPerSecond;

absl::Status DeviceError(const std::string& what) {
  return Error(absl::StatusCode::kFailedPrecondition, "DEVICE", "device: " + what);
}

gpu::Stream MakeStream(const gpu::GpuApi& api) {
  gpu::Stream stream = nullptr;
  RequireGpu(api, api.create_stream(&stream), "create stream");
  return stream;
}

class GpuBackend final : public KernelBackend {
 public:
  GpuBackend(const GpuLibrary& library, const GpuBackendOptions& options, void* gemm)
      : library_(library),
        api_(library_.api()),
        options_(options),
        gemm_(gemm),
        stream_(MakeStream(api_)),
        window_page_bytes_(GpuWindows::PageBytes(api_)),
        transfers_(api_, stream_),
        sampler_(api_, stream_),
        graphs_(api_,
                library.device().index,
                {.max_graphs = static_cast<size_t>(options.max_graphs),
                 .max_bytes = max_record_bytes()}) {}

  ~GpuBackend() override {
    LeaveGroup();
    graphs_.Clear();
    api_.destroy_gemm(gemm_);
    api_.destroy_stream(stream_);
  }

  std::string name() const override {
    return std::string(api_.name) + "-" + std::string(NameOf(dtype_)) + "-sm" +
           std::to_string(library_.device().compute_capability) +
           (options_.quantization == GpuQuantization::kFp8 ? "-fp8" : "") +
           (options_.batch_invariant ? "-batch-invariant" : "") +
           (num_ranks_ > 1 ? "-tp" + std::to_string(num_ranks_) : "");
  }

  void BindThread() override { Require(api_.set_device(library_.device().index), "set device"); }

  absl::Status PrepareFor(const ModelConfig& config, const RankShare& share) override;

  // Returns the layout of a pool of the model's part, for blocks of any size.
  KvCacheLayout LayoutOf(DType cache_dtype) const {
    return LayoutFor({.num_layers = 1,
                      .num_kv_heads = shape_.num_kv_heads,
                      .head_dim = shape_.head_dim,
                      .block_size_tokens = 16,
                      .dtype = cache_dtype});
  }
  KvCacheLayout LayoutFor(const KvCacheSpec& spec) const override { return SwizzledRows(spec); }
  bool CanStoreKvAs(DType dtype) const override {
    return dtype == dtype_ || dtype == DType::kF8E4M3;
  }
  DType activation_dtype() const override { return dtype_; }
  bool adds_bias_to_sums() const override { return false; }

  std::optional<DeviceSpace> space() const override;
  absl::StatusOr<std::unique_ptr<DeviceMemory>> Allocate(int64_t bytes) override;
  int64_t window_page_bytes() const override { return window_page_bytes_; }
  absl::StatusOr<std::unique_ptr<WindowMemory>> AllocateWindows(const WindowShape& shape) override {
    graphs_.Clear();  // the caller may free older memory, whose addresses graphs hold
    return GpuWindows::Create(api_, stream_, shape);
  }
  void Upload(void* device, const void* host, int64_t bytes) override {
    Require(api_.copy_to_device(device, host, static_cast<size_t>(bytes), stream_), "upload");
    Require(api_.synchronize(stream_), "upload");  // a copy from pinned memory is asynchronous
  }
  absl::StatusOr<std::unique_ptr<DeviceMemory>> AllocateHost(int64_t bytes) override;
  absl::StatusOr<std::unique_ptr<PackedLinear>> PackLinear(const LinearSource& source) override {
    if (source.is_quantizable && options_.quantization == GpuQuantization::kFp8) {
      auto packed = GpuLinear::PackFp8(source, dtype_, api_, stream_, *this);
      if (packed.ok()) {
        shape_.fp8_width = std::max(shape_.fp8_width, (*packed)->in_features());
      }
      return packed;
    }
    return GpuLinear::Pack(source, dtype_, *this);
  }

  absl::Status ReserveForSteps(const StepBounds& bounds) override;
  int64_t max_record_bytes() const override {
    constexpr int64_t kDeviceParts = 40;
    return options_.use_graphs
               ? std::min(options_.max_graph_bytes, library_.device().total_bytes / kDeviceParts)
               : 0;
  }
  std::vector<int32_t> BatchesToRecord(int32_t max_seqs) const override;
  StepInputs BeginStep(const StepInputs& host) override;
  void RunStep(const std::function<void()>& operations) override;
  void WaitForOperations() override {
    if (nccl_ != nullptr) {
      nccl_->Finish();
    }
    Require(api_.synchronize(stream_), "step");
  }

  void Embed(const EmbeddingParams& params) override;
  void Norm(const NormParams& params) override;
  void Linear(const LinearParams& params) override;
  void Activate(const ActivationParams& params) override;
  void PrepareAttention(const PrepareAttentionParams& params) override;
  void PagedAttention(const PagedAttentionParams& params) override;
  void CopyBlocks(const CopyBlocksParams& params) override;
  void AnnounceSampling(std::span<const SamplingRow> rows) override { announced_ = rows; }
  void Sample(const SampleParams& params) override;
  uint64_t progress() const override { return launches_.value(); }

  absl::Status JoinGroup(std::shared_ptr<Communicator> group) override;
  void AllReduce(const AllReduceParams& params) override {
    if (IsOnlyNamed(params)) {
      return;
    }
    nccl_ != nullptr ? nccl_->AllReduce(params) : staged_->AllReduce(params);
    launches_.Add();
  }
  void Gather(const GatherParams& params) override {
    if (IsOnlyNamed(params)) {
      return;
    }
    nccl_ != nullptr ? nccl_->Gather(params) : staged_->Gather(params);
    launches_.Add();
  }
  void Broadcast(std::span<std::byte> data) override {
    Require(api_.synchronize(stream_), "step");
    group_->Broadcast(data);
  }

  TransferId StartTransfer(const BlockTransferParams& params) override {
    return transfers_.Start(params);
  }
  void OrderAfter(TransferId transfer) override { transfers_.OrderAfter(transfer); }
  TransferId TransfersDone() override { return transfers_.Done(); }
  void WaitForTransfers() override { transfers_.Wait(); }

 private:
  // Checks the result of a call that enqueues work on the device, and counts the call as progress.
  void Require(int error, const char* what) const {
    RequireGpu(api_, error, what);
    launches_.Add();
  }
  void LeaveGroup();
  // Returns the digest of the operations that the function calls. Runs none of them.
  uint64_t DigestOf(const std::function<void()>& operations);
  // Adds the operation's parameters to the digest. Returns false if there is none, because the
  // operation is to run.
  template <typename Params>
  bool IsOnlyNamed(const Params& params) {
    if (digest_.has_value()) {
      digest_->Add(params);
    }
    return digest_.has_value();
  }
  // Enqueues the sampling of the announced rows, or adds it to the digest.
  void SampleAhead();
  // Runs the operations, or replays or records them.
  void RunReplayable(const std::function<void()>& operations);
  void Launch(gpu::Graph graph);
  // Records the operations as a graph and launches it. Runs them if there is no memory for a graph.
  void RecordAndLaunch(uint64_t name, const std::function<void()>& operations);
  // Makes room for all of `bounds`. If anything moves, drops the graphs, which hold the addresses.
  absl::Status Reserve(const StepBounds& bounds);
  // Copies the step's block tables to rows of the width that all replayed steps have.
  void SpreadTables();
  // Makes room for a step beyond the bounds, for callers that have reserved too little or nothing.
  void CoverStep(const StepInputs& host);
  // Rounds the product's input rows to e4m3.
  void QuantizeInput(gpu::GemmArgs* product);

  const GpuLibrary library_;
  const gpu::GpuApi& api_;
  const GpuBackendOptions options_;
  void* gemm_;
  DType dtype_ = DType::kBF16;  // type of activations and weights; set by PrepareFor
  const gpu::Stream stream_;
  const int64_t window_page_bytes_;
  GpuTransfers transfers_;

  // group_ is null if there is one rank. With several ranks, collectives go through nccl_ or, if
  // nccl_ is null, through staged_, in main memory.
  std::shared_ptr<Communicator> group_;
  std::unique_ptr<NcclGroup> nccl_;
  std::unique_ptr<StagedGroup> staged_;

  // The number of ranks, and this rank's share of the model.
  int32_t num_ranks_ = 1;
  StepShape shape_;
  int64_t vocab_size_ = 0;
  std::optional<StepPacker> packer_;

  StepBounds bounds_;  // of the memory below

  PackedStep step_;  // the current step
  StepMemory memory_{api_};
  DecodePlans decode_plans_{api_, stream_, memory_};

  GpuSampler sampler_;
  std::span<const SamplingRow> announced_;  // AnnounceSampling for this step; empty: none
  bool samples_ahead_ = false;              // whether the step samples the announced rows
  // The outputs of the last product with fp32 outputs, which are a step's logits.
  struct LastLogits {
    float* data = nullptr;
    int32_t num_rows = 0;
    int32_t vocab_size = 0;
  } logits_;
  mutable ProgressCounter launches_;
  // The last PrepareAttention. It was the last operation if no launch was counted since.
  struct LastPrepared {
    const void* qkv = nullptr;
    uint64_t launch = 0;
  } last_prepared_;

  // The first step with some operations runs unrecorded, the second is recorded.
  GraphCache graphs_;
  std::optional<OperationDigest> digest_;  // set while operations are named and not run
  uint64_t num_moves_ = 0;                 // of the memory that operations use beside parameters
};

absl::Status GpuBackend::PrepareFor(const ModelConfig& config, const RankShare& share) {
  if (std::find(kHeadDims.begin(), kHeadDims.end(), config.head_dim) == kHeadDims.end()) {
    return DeviceError("no attention kernel for head_dim " + std::to_string(config.head_dim) +
                       " (supported: 64, 80, 96, 112, 128 and 256)");
  }
  const int32_t layer_multiple =
      options_.quantization == GpuQuantization::kFp8 ? kFp8WidthMultiple : kWidthMultiple;
  struct Width {
    const char* field;
    int32_t value;
    int32_t multiple;
  };
  for (const auto& [field, value, multiple] :
       {Width{"hidden_size", config.hidden_size, layer_multiple},
        Width{share.is_whole() ? "intermediate_size" : "a rank's part of intermediate_size",
              share.intermediate.count,
              layer_multiple},
        Width{"embedding_dim", config.embedding_dim, kWidthMultiple}}) {
    if (value % multiple != 0) {
      return DeviceError(std::string(field) + " must be a multiple of " + std::to_string(multiple) +
                         " (got " + std::to_string(value) + ")");
    }
  }
  const DType stored = config.dtype == DType::kF16 ? DType::kF16 : DType::kBF16;
  dtype_ = options_.dtype.value_or(stored);
  if (options_.quantization == GpuQuantization::kFp8) {
    QUIRE_RETURN_IF_ERROR(GpuLinear::CheckFp8(library_, dtype_, gemm_));
  }
  num_ranks_ = share.size;
  vocab_size_ = config.vocab_size;
  const auto layer_has_window = [&](int32_t layer) {
    return config.sliding_window.has_value() &&
           config.layer_uses_sliding_window[static_cast<size_t>(layer)];
  };
  std::set<int32_t> windows;
  for (int32_t layer = 0; layer < config.num_layers; ++layer) {
    windows.insert(layer_has_window(layer) ? *config.sliding_window : 0);
  }
  memory_.SetWindows(windows);
  shape_ = {.num_heads = share.heads.count,
            .num_kv_heads = share.kv_heads.count,
            .head_dim = config.head_dim,
            .sliding_window = *windows.begin(),
            .received_width =
                share.size > 1 && share.rank == 0 ? config.vocab_size - share.vocab.count : 0,
            .max_partial_bytes = options_.max_partial_bytes,
            .prefills_single_tokens = options_.batch_invariant};
  constexpr int32_t kMaxQueryTokens = 16;  // of a decode
  const std::array layouts = {LayoutOf(dtype_), LayoutOf(DType::kF8E4M3)};
  shape_.lines =
      FindLines(api_, shape_, dtype_, layouts, options_.batch_invariant ? 1 : kMaxQueryTokens);
  shape_.split_tokens = SplitTokens(shape_.num_queries_per_kv_head(), shape_.decodes_by_lines());
  decode_plans_.SetModel(shape_, dtype_);
  packer_.emplace(shape_, options_.use_graphs);
  bounds_ = {};
  graphs_.Clear();
  return absl::OkStatus();
}

std::optional<DeviceSpace> GpuBackend::space() const {
  gpu::DeviceInfo info;
  Require(api_.query_device(library_.device().index, &info), "query device");
  return DeviceSpace{.total_bytes = info.total_bytes, .free_bytes = info.free_bytes};
}

absl::StatusOr<std::unique_ptr<DeviceMemory>> GpuBackend::Allocate(int64_t bytes) {
  void* data = nullptr;
  const int error = bytes <= 0 ? 1 : api_.allocate(&data, static_cast<size_t>(bytes));
  if (error != 0) {
    return Error(
        absl::StatusCode::kResourceExhausted,
        "MEMORY",
        "memory: the GPU cannot allocate so much (got " + std::to_string(bytes) + " bytes)");
  }
  // The caller may free older memory, whose addresses the recorded graphs hold.
  graphs_.Clear();
  auto memory = std::make_unique<GpuMemory>(api_, stream_, data, bytes);
  QUIRE_RETURN_IF_ERROR(memory->Clear());
  return memory;
}

absl::StatusOr<std::unique_ptr<DeviceMemory>> GpuBackend::AllocateHost(int64_t bytes) {
  void* data = nullptr;
  const int error = bytes <= 0 ? 1 : api_.allocate_pinned(&data, static_cast<size_t>(bytes));
  if (error != 0) {
    return Error(absl::StatusCode::kResourceExhausted,
                 "MEMORY",
                 "memory: the host cannot pin so much (got " + std::to_string(bytes) + " bytes)");
  }
  auto memory = std::make_unique<GpuHostMemory>(api_, data, bytes);
  QUIRE_RETURN_IF_ERROR(memory->Clear());
  return memory;
}

absl::Status GpuBackend::JoinGroup(std::shared_ptr<Communicator> group) {
  LeaveGroup();
  memory_.ClearArrivals(stream_);  // a step of the group before may have been given up
  if (group == nullptr) {
    return absl::OkStatus();
  }
  const auto drop_graphs = [this] { graphs_.Clear(); };
  QUIRE_ASSIGN_OR_RETURN(
      nccl_,
      NcclGroup::Join(
          library_, stream_, group, memory_.gathered_parts(), drop_graphs, kMaxNcclConnect));
  if (nccl_ == nullptr) {
    staged_ = std::make_unique<StagedGroup>(api_, stream_, group);
  }
  group_ = std::move(group);
  return absl::OkStatus();
}

void GpuBackend::LeaveGroup() {
  nccl_.reset();
  staged_.reset();
  group_.reset();
}

absl::Status GpuBackend::ReserveForSteps(const StepBounds& bounds) {
  const StepBounds covered = Cover(bounds_, bounds);
  return covered == bounds_ ? absl::OkStatus() : Reserve(covered);
}

absl::Status GpuBackend::Reserve(const StepBounds& bounds) {
  if (nccl_ != nullptr) {
    nccl_->Finish();  // freeing memory waits for the device, which hangs if a rank is lost
  }
  graphs_.Clear();
  ++num_moves_;
  bounds_ = {};  // after an error some of the memory is gone
  const StepNeeds needs = NeedsOf(bounds, shape_);
  QUIRE_RETURN_IF_ERROR(memory_.Reserve(needs));
  QUIRE_RETURN_IF_ERROR(sampler_.Reserve(vocab_size_, DecodeBucket(bounds.max_seqs)));
  memory_.ClearArrivals(stream_);
  bounds_ = bounds;
  return absl::OkStatus();
}

void GpuBackend::CoverStep(const StepInputs& host) {
  const StepBounds step = {
      .max_tokens = host.num_tokens,
      .max_seqs = std::max(host.num_seqs, host.num_logits),
      .max_context_tokens =
          host.num_seqs == 0 ? 0 : *std::max_element(host.seq_lens, host.seq_lens + host.num_seqs),
      .max_blocks_per_seq = host.first_places == nullptr ? host.max_blocks_per_seq : 0};
  if (Cover(bounds_, step) == bounds_) {
    return;
  }
  // A bound that is too small grows to a power of two, so a slowly growing batch allocates rarely.
  const auto grown = [](int32_t reserved, int32_t needed) {
    return needed <= reserved ? reserved
                              : static_cast<int32_t>(std::bit_ceil(static_cast<uint32_t>(needed)));
  };
  RequireMemory(
      Reserve({.max_tokens = grown(bounds_.max_tokens, step.max_tokens),
               .max_seqs = grown(bounds_.max_seqs, step.max_seqs),
               .max_context_tokens = grown(bounds_.max_context_tokens, step.max_context_tokens),
               .max_blocks_per_seq = grown(bounds_.max_blocks_per_seq, step.max_blocks_per_seq)}));
}

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

// Largest first, since products of more rows take longer to time, and a lack of memory shows early.
std::vector<int32_t> GpuBackend::BatchesToRecord(int32_t max_seqs) const {
  std::vector<int32_t> batches;
  if (!options_.records_at_start || !options_.use_graphs || staged_ != nullptr ||
      graphs_.size() > 0) {
    return batches;
  }
  for (int32_t bucket = DecodeBucket(max_seqs); bucket > 0;) {
    batches.push_back(bucket);
    // The next smaller bucket is the largest that some smaller number is padded to.
    int32_t smaller = bucket - 1;
    while (smaller > 0 && DecodeBucket(smaller) == bucket) {
      --smaller;
    }
    bucket = smaller;
  }
  return batches;
}

void GpuBackend::RunStep(const std::function<void()>& operations) {
  // Collectives through main memory make the host wait for the device.
  if (!step_.is_replayable || staged_ != nullptr) {
    operations();
  } else {
    RunReplayable([&] {
      operations();
      SampleAhead();
    });
  }
  if (nccl_ != nullptr) {
    nccl_->Finish();  // else a later wait for the device would hang if a rank is lost
  }
  if (samples_ahead_) {
    sampler_.MarkAhead();
  }
}

void GpuBackend::RunReplayable(const std::function<void()>& operations) {
  const uint64_t name = DigestOf(operations);
  if (gpu::Graph graph = graphs_.Find(name); graph != nullptr) {
    Launch(graph);
  } else if (graphs_.can_record() && graphs_.HasRun(name)) {
    RecordAndLaunch(name, operations);
  } else {
    operations();
  }
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
    // The group is broken, so nobody reads the step's results.
    graphs_.AbandonRecording(stream_);
    nccl_->EndRecording();
    return;
  }
  const gpu::Graph graph = graphs_.EndRecording(name, stream_);
  if (nccl_ != nullptr) {
    nccl_->EndRecording();
  }
  if (graph == nullptr) {
    decode_plans_.Clear();  // what was recorded did not run
    operations();
    return;
  }
  Launch(graph);
}

void GpuBackend::Embed(const EmbeddingParams& params) {
  if (IsOnlyNamed(params)) {
    return;
  }
  Require(api_.embed(params, stream_), "embed");
}

void GpuBackend::Norm(const NormParams& params) {
  if (IsOnlyNamed(params)) {
    return;
  }
  Require(api_.norm(params, dtype_, stream_), "norm");
}

void GpuBackend::Linear(const LinearParams& params) {
  const auto& linear = static_cast<const GpuLinear&>(*params.weight);
  if (params.f32_out) {
    logits_ = {.data = static_cast<float*>(params.y),
               .num_rows = static_cast<int32_t>(params.num_tokens),
               .vocab_size = static_cast<int32_t>(linear.out_features())};
  }
  if (IsOnlyNamed(params) || params.num_tokens == 0) {
    return;
  }
  gpu::GemmArgs product = {.rows = params.num_tokens,
                           .out_features = linear.out_features(),
                           .in_features = linear.in_features(),
                           .x = params.x,
                           .weight = linear.weight(),
                           .bias = linear.bias(),
                           .y = params.y,
                           .dtype = dtype_,
                           .y_dtype = params.f32_out ? DType::kF32 : dtype_,
                           .weight_scales = linear.scales()};
  if (linear.scales() != nullptr) {
    QuantizeInput(&product);
  }
  if (nccl_ != nullptr) {
    bool is_planned = false;
    Require(api_.is_gemm_planned(gemm_, product, &is_planned), "product");
    if (!is_planned) {
      nccl_->Finish();  // planning waits for the device, which hangs if a rank is lost
    }
  }
  Require(api_.run_gemm(gemm_, product, stream_), "product");
}

void GpuBackend::QuantizeInput(gpu::GemmArgs* product) {
  const int64_t bytes = product->rows * product->in_features;
  const int64_t scale_bytes = product->rows * int64_t{sizeof(float)};
  GpuScratch& rows = memory_.fp8_rows();
  GpuScratch& scales = memory_.fp8_scales();
  if (bytes > rows.capacity_bytes() || scale_bytes > scales.capacity_bytes()) {
    // A product beyond the bounds, outside of any step.
    graphs_.Clear();
    RequireMemory(rows.Reserve(bytes));
    RequireMemory(scales.Reserve(scale_bytes));
  }
  Require(api_.quantize_rows({.num_rows = product->rows,
                              .width = static_cast<int32_t>(product->in_features),
                              .in = product->x,
                              .dtype = dtype_,
                              .out = rows.data(),
                              .scales = static_cast<float*>(scales.data())},
                             stream_),
          "quantize rows");
  product->x = rows.data();
  product->x_scales = static_cast<const float*>(scales.data());
  product->dtype = DType::kF8E4M3;
}

void GpuBackend::Activate(const ActivationParams& params) {
  if (IsOnlyNamed(params)) {
    return;
  }
  Require(api_.activate(params, dtype_, stream_), "activation");
}

void GpuBackend::PrepareAttention(const PrepareAttentionParams& params) {
  if (IsOnlyNamed(params)) {
    return;
  }
  Require(api_.prepare_attention(params, dtype_, stream_), "prepare attention");
  last_prepared_ = {.qkv = params.qkv, .launch = launches_.value()};
}

void GpuBackend::PagedAttention(const PagedAttentionParams& params) {
  if (IsOnlyNamed(params)) {
    return;
  }
  const bool is_prepared =
      last_prepared_.qkv == params.q && last_prepared_.launch == launches_.value();
  for (size_t group = 0; group < step_.groups.size(); ++group) {
    const gpu::DecodePlan plan = decode_plans_.PlanOf(step_, group, params, is_prepared);
    Require(api_.decode(params, plan, dtype_, stream_), "decode attention");
  }
  if (step_.num_items > 0) {
    Require(
        api_.prefill(params, {.items = step_.items, .num_items = step_.num_items}, dtype_, stream_),
        "prefill attention");
  }
}

void GpuBackend::CopyBlocks(const CopyBlocksParams& params) {
  QUIRE_CHECK(!digest_.has_value());
  constexpr auto kCopiesPerPass = size_t{StepMemory::kCopiesPerPass};
  RequireMemory(memory_.ReserveBlockPairs());
  for (size_t first = 0; first < params.src.size(); first += kCopiesPerPass) {
    const size_t count = std::min(kCopiesPerPass, params.src.size() - first);
    const auto src = params.src.subspan(first, count);
    const auto dst = params.dst.subspan(first, count);
    std::vector<BlockId> ids(src.begin(), src.end());
    ids.insert(ids.end(), dst.begin(), dst.end());
    const size_t bytes = ids.size() * sizeof(BlockId);
    Require(api_.copy_to_device(memory_.block_pairs(), ids.data(), bytes, stream_),
            "upload block copies");
    const auto* on_device = static_cast<const BlockId*>(memory_.block_pairs());
    Require(
        api_.copy_blocks(
            {.cache = params.cache, .src = {on_device, count}, .dst = {on_device + count, count}},
            stream_),
        "copy blocks");
  }
}

}  // namespace

absl::StatusOr<std::unique_ptr<KernelBackend>> CreateGpuBackend(const GpuLibrary& library,
                                                                const GpuBackendOptions& options) {
  if (options.dtype.has_value() && options.dtype != DType::kBF16 && options.dtype != DType::kF16) {
    return InvalidArgument("DEVICE", "dtype: must be bfloat16 or float16 on a GPU");
  }
  if (const int error = library.api().set_device(library.device().index); error != 0) {
    return DeviceError(library.api().error_text(error));
  }
  void* gemm = nullptr;
  const std::string& cache = options.gemm_cache_path;
  const int error =
      library.api().create_gemm({.batch_invariant = options.batch_invariant ? 1 : 0,
                                 .cache_path = cache.empty() ? nullptr : cache.c_str(),
                                 .device_name = library.device().name,
                                 .warn = [](const char* sentence) { LogWarning(sentence); }},
                                &gemm);
  if (error != 0) {
    return DeviceError(std::string("matrix products: ") + library.api().error_text(error));
  }
  return std::unique_ptr<KernelBackend>(std::make_unique<GpuBackend>(library, options, gemm));
}

}  // namespace quire
