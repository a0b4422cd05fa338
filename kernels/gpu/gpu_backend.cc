#include "kernels/gpu/gpu_backend.h"

#include <algorithm>
#include <array>
#include <memory>
#include <set>
#include <string>
#include <utility>

#include "common/base/clock.h"
#include "common/base/error.h"
#include "common/base/log.h"
#include "common/base/status_macros.h"
#include "kernels/gpu/gpu_backend_class.h"

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

}  // namespace

GpuBackend::GpuBackend(const GpuLibrary& library, const GpuBackendOptions& options, void* gemm)
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

GpuBackend::~GpuBackend() {
  LeaveGroup();
  graphs_.Clear();
  api_.destroy_gemm(gemm_);
  api_.destroy_stream(stream_);
}

std::string GpuBackend::name() const {
  return std::string(api_.name) + "-" + std::string(NameOf(dtype_)) + "-sm" +
         std::to_string(library_.device().compute_capability) +
         (options_.quantization == GpuQuantization::kFp8 ? "-fp8" : "") +
         (options_.batch_invariant ? "-batch-invariant" : "") +
         (num_ranks_ > 1 ? "-tp" + std::to_string(num_ranks_) : "");
}

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

absl::Status GpuBackend::JoinGroup(std::shared_ptr<Communicator> group) {
  LeaveGroup();
  memory_.ClearCounters(stream_);  // a step of the group before may have been given up
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
