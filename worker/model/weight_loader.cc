#include "worker/model/weight_loader.h"

#include <bit>
#include <cstring>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"

#include "common/base/error.h"
#include "common/base/status_macros.h"
#include "worker/model/host_buffer.h"
#include "worker/model/load_error.h"

namespace quire {
namespace {

std::string WeightOf(const std::string& name) { return absl::StrCat(name, ".weight"); }
std::string BiasOf(const std::string& name) { return absl::StrCat(name, ".bias"); }

// Compares what the files hold with what the layout names.
class FileChecker {
 public:
  explicit FileChecker(const WeightFiles& files) : files_(files) {}

  absl::Status Check(const WeightLayout& layout) {
    QUIRE_RETURN_IF_ERROR(Check(layout.token_table));
    if (layout.position_table.has_value()) {
      QUIRE_RETURN_IF_ERROR(Check(*layout.position_table));
    }
    for (const auto* linear : {&layout.project_in, &layout.project_out}) {
      if (linear->has_value()) {
        QUIRE_RETURN_IF_ERROR(Check(**linear));
      }
    }
    for (const LayerLayout& layer : layout.layers) {
      QUIRE_RETURN_IF_ERROR(Check(layer));
    }
    if (layout.final_norm.has_value()) {
      QUIRE_RETURN_IF_ERROR(Check(*layout.final_norm));
    }
    return Check(layout.lm_head);
  }

  // Every tensor of the files was asked for, or is known to decide nothing.
  absl::Status CheckExtras(const ModelConfig& config) const {
    for (const auto& [name, weight] : files_.tensors()) {
      if (!seen_.contains(name) && !IsHarmlessExtra(config, name)) {
        return TensorError(weight.file->name(), name, "is not part of this model");
      }
    }
    return absl::OkStatus();
  }

 private:
  absl::Status Check(const TableLayout& table) {
    return CheckTensor(WeightOf(table.name), {table.rows, table.width}).status();
  }

  absl::Status Check(const NormLayout& norm) {
    if (norm.has_weight) {
      QUIRE_RETURN_IF_ERROR(CheckTensor(WeightOf(norm.name), {norm.width}).status());
    }
    return norm.has_bias ? CheckTensor(BiasOf(norm.name), {norm.width}).status() : absl::OkStatus();
  }

  absl::Status Check(const LinearLayout& linear) {
    std::string dtype_name;
    for (const LinearPart& part : linear.parts) {
      QUIRE_ASSIGN_OR_RETURN(WeightRef weight,
                             CheckTensor(WeightOf(part.name), {part.rows, linear.cols}));
      const std::string& name = weight.tensor->dtype_name;
      if (!dtype_name.empty() && dtype_name != name) {
        return TensorError(weight.file->name(),
                           weight.tensor->name,
                           absl::StrCat("must have the dtype of ",
                                        linear.parts.front().name,
                                        ".weight (got ",
                                        name,
                                        ", need ",
                                        dtype_name,
                                        ")"));
      }
      dtype_name = name;
      if (linear.has_bias) {
        QUIRE_RETURN_IF_ERROR(CheckTensor(BiasOf(part.name), {part.rows}).status());
      }
    }
    return absl::OkStatus();
  }

  absl::Status Check(const LayerLayout& layer) {
    for (const NormLayout* norm : {&layer.attention_norm, &layer.mlp_norm}) {
      QUIRE_RETURN_IF_ERROR(Check(*norm));
    }
    for (const auto* norm : {&layer.q_norm, &layer.k_norm}) {
      if (norm->has_value()) {
        QUIRE_RETURN_IF_ERROR(Check(**norm));
      }
    }
    for (const LinearLayout* linear :
         {&layer.qkv, &layer.attention_out, &layer.mlp_in, &layer.mlp_out}) {
      QUIRE_RETURN_IF_ERROR(Check(*linear));
    }
    return absl::OkStatus();
  }

  absl::StatusOr<WeightRef> CheckTensor(const std::string& name,
                                        const std::vector<int64_t>& shape) {
    WeightRef weight = files_.Find(name);
    if (weight.file == nullptr) {
      return TensorError(files_.name(), name, "is missing");
    }
    if (weight.tensor->shape != shape) {
      return TensorError(weight.file->name(),
                         name,
                         absl::StrCat("has the wrong shape (got ",
                                      ShapeToString(weight.tensor->shape),
                                      ", config.json needs ",
                                      ShapeToString(shape),
                                      ")"));
    }
    if (!weight.tensor->dtype.has_value()) {
      return TensorError(weight.file->name(),
                         name,
                         absl::StrCat("has a dtype that weights cannot have (got ",
                                      weight.tensor->dtype_name,
                                      ", need F32, F16 or BF16)"));
    }
    seen_.insert(name);
    return weight;
  }

  const WeightFiles& files_;
  std::set<std::string> seen_;
};

absl::Status OutOfMemory(int64_t bytes) {
  return Error(absl::StatusCode::kResourceExhausted,
               "MODEL_MEMORY",
               absl::StrCat("load: no memory for weights (wanted ", bytes, " bytes)"));
}

float HalfToFloat(uint16_t half) {
  const uint32_t sign = static_cast<uint32_t>(half & 0x8000U) << 16;
  const uint32_t exponent = (half >> 10) & 0x1FU;
  const uint32_t fraction = half & 0x3FFU;
  if (exponent == 0) {  // zero or subnormal: fraction * 2^-24, exact in fp32
    const float value = static_cast<float>(fraction) * 0x1p-24F;
    return std::bit_cast<float>(sign | std::bit_cast<uint32_t>(value));
  }
  const uint32_t wide = exponent == 0x1FU ? 0xFFU : exponent + (127 - 15);
  return std::bit_cast<float>(sign | (wide << 23) | (fraction << 13));
}

float ToFloat(const std::byte* data, DType dtype) {
  if (dtype == DType::kF32) {
    float value = 0.0F;
    std::memcpy(&value, data, sizeof(value));
    return value;
  }
  uint16_t bits = 0;
  std::memcpy(&bits, data, sizeof(bits));
  return dtype == DType::kF16 ? HalfToFloat(bits)
                              : std::bit_cast<float>(static_cast<uint32_t>(bits) << 16);
}

// Reads tensors into the memory of a backend.
class WeightReader {
 public:
  WeightReader(TensorSource& source, KernelBackend& backend, const LoadProgressFn& progress)
      : source_(source), backend_(backend), progress_(progress) {
    state_.tensors_total = source.num_tensors();
    state_.bytes_total = source.num_bytes();
  }

  // Returns the table in host memory, where it stays until the next tensor is read.
  absl::StatusOr<MatrixView> Read(const TableLayout& layout, TableWeights& table) {
    const std::string name = WeightOf(layout.name);
    table.dtype = source_.dtype(name);
    table.rows = layout.rows;
    table.width = layout.width;
    const int64_t bytes = layout.rows * layout.width * SizeOf(table.dtype);
    if (!staging_.Reserve(bytes)) {
      return OutOfMemory(bytes);
    }
    const std::span<std::byte> staged(staging_.data(), static_cast<size_t>(bytes));
    QUIRE_RETURN_IF_ERROR(ReadInto(name, layout.width, staged));
    QUIRE_RETURN_IF_ERROR(table.data.Assign<std::byte>(backend_, staged));
    bytes_ += bytes;
    return MatrixView{
        .data = staged.data(), .dtype = table.dtype, .rows = table.rows, .cols = table.width};
  }

  absl::Status Read(const NormLayout& layout, NormWeights& norm) {
    if (!layout.has_weight) {
      const std::vector<float> ones(static_cast<size_t>(layout.width), 1.0F);
      QUIRE_RETURN_IF_ERROR(norm.weight.Assign<float>(backend_, ones));
    } else {
      QUIRE_RETURN_IF_ERROR(ReadFloats(WeightOf(layout.name), layout.width, norm.weight));
    }
    return layout.has_bias ? ReadFloats(BiasOf(layout.name), layout.width, norm.bias)
                           : absl::OkStatus();
  }

  absl::Status ReadFloats(const std::string& name, int64_t width, DeviceBuffer& out) {
    std::vector<float> values(static_cast<size_t>(width));
    QUIRE_RETURN_IF_ERROR(ReadFloats(name, values));
    return out.Assign<float>(backend_, values);
  }

  absl::Status Read(const LinearLayout& layout, std::unique_ptr<PackedLinear>& packed) {
    // All parts have the type of the first.
    const DType dtype = source_.dtype(WeightOf(layout.parts.front().name));
    int64_t rows = 0;
    for (const LinearPart& part : layout.parts) {
      rows += part.rows;
    }
    const int64_t bytes = rows * layout.cols * SizeOf(dtype);
    if (!staging_.Reserve(bytes)) {
      return OutOfMemory(bytes);
    }
    std::vector<MatrixView> views;
    std::vector<float> bias(layout.has_bias ? static_cast<size_t>(rows) : 0);
    std::byte* next = staging_.data();
    std::span<float> bias_left(bias);
    for (const LinearPart& part : layout.parts) {
      const auto part_bytes = static_cast<size_t>(part.rows * layout.cols * SizeOf(dtype));
      QUIRE_RETURN_IF_ERROR(
          ReadInto(WeightOf(part.name), layout.cols, std::span(next, part_bytes)));
      views.push_back({.data = next, .dtype = dtype, .rows = part.rows, .cols = layout.cols});
      next += part_bytes;
      if (layout.has_bias) {
        const auto part_rows = static_cast<size_t>(part.rows);
        QUIRE_RETURN_IF_ERROR(ReadFloats(BiasOf(part.name), bias_left.first(part_rows)));
        bias_left = bias_left.subspan(part_rows);
      }
    }
    return Pack({.parts = views, .bias = bias, .reduction = layout.reduction}, packed);
  }

  absl::Status Pack(const LinearSource& source, std::unique_ptr<PackedLinear>& packed) {
    QUIRE_ASSIGN_OR_RETURN(packed, backend_.PackLinear(source));
    bytes_ += packed->bytes();
    return absl::OkStatus();
  }

  // Tensors may be of any of the three types; norms and biases are kept as fp32.
  absl::Status ReadFloats(const std::string& name, std::span<float> out) {
    const DType dtype = source_.dtype(name);
    const auto size = static_cast<size_t>(SizeOf(dtype));
    std::vector<std::byte> raw(out.size() * size);
    QUIRE_RETURN_IF_ERROR(ReadInto(name, static_cast<int64_t>(out.size()), raw));
    for (size_t i = 0; i < out.size(); ++i) {
      out[i] = ToFloat(raw.data() + i * size, dtype);
    }
    bytes_ += static_cast<int64_t>(out.size_bytes());
    return absl::OkStatus();
  }

  // Extras were not read, but the bar should end full.
  void Finish() {
    state_.tensors_done = state_.tensors_total;
    state_.bytes_done = state_.bytes_total;
    Report();
  }

  int64_t bytes() const { return bytes_; }

 private:
  absl::Status ReadInto(const std::string& name, int64_t cols, std::span<std::byte> out) {
    QUIRE_RETURN_IF_ERROR(source_.Read(name, cols, out));
    ++state_.tensors_done;
    state_.bytes_done += static_cast<int64_t>(out.size());
    Report();
    return absl::OkStatus();
  }

  void Report() const {
    if (progress_) {
      progress_(state_);
    }
  }

  TensorSource& source_;
  KernelBackend& backend_;
  const LoadProgressFn& progress_;
  HostBuffer staging_;
  LoadProgress state_;
  int64_t bytes_ = 0;
};

absl::Status ReadLayer(WeightReader& reader, const LayerLayout& layout, LayerWeights& layer) {
  QUIRE_RETURN_IF_ERROR(reader.Read(layout.attention_norm, layer.attention_norm));
  QUIRE_RETURN_IF_ERROR(reader.Read(layout.qkv, layer.qkv));
  if (layout.q_norm.has_value()) {
    for (const auto& [norm, buffer] :
         {std::pair(&*layout.q_norm, &layer.q_norm), std::pair(&*layout.k_norm, &layer.k_norm)}) {
      QUIRE_RETURN_IF_ERROR(reader.ReadFloats(WeightOf(norm->name), norm->width, *buffer));
    }
  }
  QUIRE_RETURN_IF_ERROR(reader.Read(layout.attention_out, layer.attention_out));
  QUIRE_RETURN_IF_ERROR(reader.Read(layout.mlp_norm, layer.mlp_norm));
  QUIRE_RETURN_IF_ERROR(reader.Read(layout.mlp_in, layer.mlp_in));
  return reader.Read(layout.mlp_out, layer.mlp_out);
}

}  // namespace

absl::StatusOr<WeightLayout> CheckWeightFiles(const ModelConfig& config, const WeightFiles& files) {
  std::vector<std::string> prefixes = NamePrefixes(config);
  std::string prefix = prefixes.front();
  for (const std::string& candidate : prefixes) {
    if (files.Find(candidate + "embed_tokens.weight").file != nullptr) {
      prefix = candidate;
      break;
    }
  }
  WeightLayout layout = MakeWeightLayout(config, prefix);
  FileChecker checker(files);
  QUIRE_RETURN_IF_ERROR(checker.Check(layout));
  QUIRE_RETURN_IF_ERROR(checker.CheckExtras(config));
  return layout;
}

absl::StatusOr<DecoderWeights> LoadWeights(const ModelConfig& config,
                                           const WeightLayout& layout,
                                           TensorSource& source,
                                           KernelBackend& backend,
                                           const LoadProgressFn& progress) {
  WeightReader reader(source, backend, progress);
  DecoderWeights weights;
  QUIRE_ASSIGN_OR_RETURN(const MatrixView table,
                         reader.Read(layout.token_table, weights.token_table));
  if (config.tie_word_embeddings) {
    // The output matrix of a tied model is the token table, now that it is at hand.
    QUIRE_RETURN_IF_ERROR(
        reader.Pack({.parts = std::span(&table, 1), .bias = {}}, weights.lm_head));
  }
  if (layout.position_table.has_value()) {
    QUIRE_RETURN_IF_ERROR(reader.Read(*layout.position_table, weights.position_table).status());
  }
  if (layout.project_in.has_value()) {
    QUIRE_RETURN_IF_ERROR(reader.Read(*layout.project_in, weights.project_in));
    QUIRE_RETURN_IF_ERROR(reader.Read(*layout.project_out, weights.project_out));
  }
  for (const LayerLayout& layer : layout.layers) {
    QUIRE_RETURN_IF_ERROR(ReadLayer(reader, layer, weights.layers.emplace_back()));
  }
  if (layout.final_norm.has_value()) {
    QUIRE_RETURN_IF_ERROR(reader.Read(*layout.final_norm, weights.final_norm));
  }
  if (!config.tie_word_embeddings) {
    QUIRE_RETURN_IF_ERROR(reader.Read(layout.lm_head, weights.lm_head));
  }
  reader.Finish();
  weights.bytes = reader.bytes();
  return weights;
}

}  // namespace quire
