#include <algorithm>
#include <array>
#include <cstddef>
#include <span>
#include <string_view>

#include "common/base/status_macros.h"
#include "common/model/digest.h"
#include "worker/model/model.h"
#include "worker/model/weight_files.h"

namespace quire {
namespace {

constexpr int64_t kSampleBytes = 64;
constexpr int64_t kSamplesPerTensor = 16;

// Adds samples of the tensor: its first bytes, its last bytes, and evenly spaced samples between.
absl::Status AddSample(const WeightRef& weight, Digest& digest) {
  const int64_t bytes = weight.tensor->bytes;
  const int64_t size = std::min(bytes, kSampleBytes);
  std::array<std::byte, kSampleBytes> buffer = {};
  const auto sample = std::span(buffer).first(static_cast<size_t>(size));
  for (int64_t i = 0; i < kSamplesPerTensor; ++i) {
    // Divides first: the size of a tensor may be near 2^63, and a product would overflow.
    const int64_t begin =
        i + 1 == kSamplesPerTensor ? bytes - size : (bytes - size) / (kSamplesPerTensor - 1) * i;
    QUIRE_RETURN_IF_ERROR(weight.Read(begin, sample));
    digest.AddBytes(std::string_view(reinterpret_cast<const char*>(sample.data()), sample.size()));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<uint64_t> HashModelFiles(const std::string& model_path) {
  QUIRE_ASSIGN_OR_RETURN(ModelConfig config, LoadModelConfig(model_path));
  QUIRE_ASSIGN_OR_RETURN(WeightFiles files, WeightFiles::Open(model_path));
  Digest digest;
  digest.AddInt(HashOf(config));
  for (const RegularFile* file : files.files()) {
    digest.AddInt(file->bytes());
  }
  for (const auto& [name, weight] : files.tensors()) {  // sorted by name
    digest.AddBytes(name);
    digest.AddBytes(weight.tensor->type_name);
    for (int64_t size : weight.tensor->shape) {
      digest.AddInt(size);
    }
    QUIRE_RETURN_IF_ERROR(AddSample(weight, digest));
  }
  return digest.value();
}

}  // namespace quire
