#include "worker/model/quantized_matrices.h"

#include <algorithm>
#include <cstddef>
#include <string_view>
#include <utility>

#include "common/base/status_macros.h"
#include "common/model/load_error.h"

namespace quire {
namespace {

constexpr std::string_view kWeight = ".weight";

// Accepts a bias that the layout lacks if all its bytes are zero: AutoGPTQ writes such a bias for
// each module. A -0.0 fails, because its sign bit is set; AutoGPTQ writes 0.0.
absl::Status CheckZeroBias(const WeightRef& bias, int64_t rows) {
  const StoredTensor& tensor = *bias.tensor;
  if (tensor.shape != std::vector<int64_t>{rows} || !tensor.format.has_value()) {
    return TensorError(bias.file->name(), tensor.name, "is not part of this model");
  }
  std::vector<std::byte> bytes(static_cast<size_t>(tensor.bytes));
  QUIRE_RETURN_IF_ERROR(bias.Read(0, bytes));
  const bool is_zero =
      std::ranges::all_of(bytes, [](std::byte byte) { return byte == std::byte{0}; });
  return is_zero ? absl::OkStatus()
                 : TensorError(bias.file->name(),
                               tensor.name,
                               "is not part of this model, and is not all zeros");
}

bool Contains(const TensorGroup& group, const std::string& name) {
  return std::ranges::any_of(group, [&](const TensorShape& shape) { return shape.name == name; });
}

}  // namespace

absl::StatusOr<QuantizedMatrices> QuantizedMatrices::Open(const QuantizationConfig& config,
                                                          const WeightLayout& layout,
                                                          const WeightFiles& files) {
  QuantizedMatrices matrices;
  if (config.groups.empty()) {
    return matrices;
  }
  for (const TensorGroup& group : TensorGroups(layout)) {
    for (const TensorShape& tensor : group) {
      if (tensor.rows > 0) {
        QUIRE_RETURN_IF_ERROR(matrices.Add(config, group, tensor, files));
      }
    }
  }
  for (const std::string& name : matrices.names_) {
    matrices.file_bytes_ += files.tensors().find(name)->second.tensor->bytes;
  }
  return matrices;
}

absl::Status QuantizedMatrices::Add(const QuantizationConfig& config,
                                    const TensorGroup& group,
                                    const TensorShape& tensor,
                                    const WeightFiles& files) {
  const std::string module = tensor.name.substr(0, tensor.name.size() - kWeight.size());
  const WeightRef sign = QuantizedMatrix::FindIn(files, module);
  if (sign.file == nullptr) {
    return absl::OkStatus();
  }
  const std::string_view class_name = tensor.use == TensorUse::kTable ? "Embedding" : "Linear";
  QUIRE_ASSIGN_OR_RETURN(const WeightScheme* scheme, config.SchemeFor(module, class_name));
  if (scheme == nullptr) {
    return TensorError(sign.file->name(),
                       sign.tensor->name,
                       "is quantized, but quantization_config leaves the module out");
  }
  QUIRE_ASSIGN_OR_RETURN(QuantizedMatrix matrix,
                         QuantizedMatrix::Open(files, module, *scheme, tensor.rows, tensor.cols));
  const std::vector<std::string> names = matrix.names();
  names_.insert(names_.end(), names.begin(), names.end());
  const WeightRef bias = files.Find(module + ".bias");
  if (bias.file != nullptr && !Contains(group, bias.tensor->name)) {
    QUIRE_RETURN_IF_ERROR(CheckZeroBias(bias, tensor.rows));
    names_.push_back(bias.tensor->name);
  }
  matrices_.emplace(tensor.name, std::move(matrix));
  return absl::OkStatus();
}

const QuantizedMatrix* QuantizedMatrices::Find(const std::string& tensor) const {
  const auto it = matrices_.find(tensor);
  return it == matrices_.end() ? nullptr : &it->second;
}

int64_t QuantizedMatrices::decoded_bytes() const {
  int64_t bytes = 0;
  for (const auto& [name, matrix] : matrices_) {
    bytes += matrix.rows() * matrix.cols() * SizeOf(DType::kBF16);
  }
  return bytes;
}

}  // namespace quire
