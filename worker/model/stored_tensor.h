// StoredTensor describes a tensor in a safetensors or GGUF file of a model.
//
// Thread safety: a value type; Read is safe from any thread.
#ifndef QUIRE_WORKER_MODEL_STORED_TENSOR_H_
#define QUIRE_WORKER_MODEL_STORED_TENSOR_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"

#include "common/base/check.h"
#include "common/model/regular_file.h"
#include "kernels/api/weight_format.h"

namespace quire {

struct StoredTensor {
  std::string name;                    // in the file
  std::string type_name;               // "F32", "BF16", "I64", "Q4_K", ...
  std::optional<WeightFormat> format;  // nullopt: a legal type, but not of weights
  std::vector<int64_t> shape;          // row-major
  int64_t offset = 0;                  // from the start of the file
  int64_t bytes = 0;
};

// A tensor and its file; null pointers: no tensor.
struct WeightRef {
  const RegularFile* file = nullptr;
  const StoredTensor* tensor = nullptr;

  // Fills `out` with the tensor's bytes from `begin` on. Errors: those of RegularFile::ReadAt.
  // REQUIRES: the range lies inside the tensor.
  absl::Status Read(int64_t begin, std::span<std::byte> out) const {
    QUIRE_CHECK(begin >= 0 && static_cast<int64_t>(out.size()) <= tensor->bytes - begin);
    return file->ReadAt(tensor->offset + begin, out);
  }
};

}  // namespace quire

#endif  // QUIRE_WORKER_MODEL_STORED_TENSOR_H_
