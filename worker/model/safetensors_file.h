// SafetensorsFile is an open .safetensors file whose header was checked completely. Every tensor
// lies inside the file, tensors neither overlap nor leave holes, and nothing follows the last
// tensor. Tensor data is read on demand, through a WeightRef.
//
// Thread safety: reading is const and safe from any thread.
// Units:         offsets and sizes in bytes.
// Errors:        see load_error.h; kNotFound if the file is missing.
// Cost:          Open reads only the header and allocates in proportion to the header's size,
//                never to a number in the header.
// Source:        the format description of the safetensors project: 8 bytes little-endian header
//                length, JSON header, data.
#ifndef QUIRE_WORKER_MODEL_SAFETENSORS_FILE_H_
#define QUIRE_WORKER_MODEL_SAFETENSORS_FILE_H_

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

#include "common/model/regular_file.h"
#include "worker/model/stored_tensor.h"

namespace quire {

// The format's own limit on the size of the header.
inline constexpr int64_t kMaxSafetensorsHeaderBytes = 100'000'000;
// Upper bound on the tensors of a file; published models have at most some tens of thousands.
inline constexpr int64_t kMaxSafetensorsTensors = 100'000;

// Returns "[2, 3]" for {2, 3}.
std::string ShapeToString(std::span<const int64_t> shape);

class SafetensorsFile {
 public:
  // `name`: name of the file in error messages.
  static absl::StatusOr<SafetensorsFile> Open(const std::string& path, std::string name);

  const RegularFile& file() const { return file_; }
  const std::string& name() const { return file_.name(); }
  int64_t file_bytes() const { return file_.bytes(); }
  const std::vector<StoredTensor>& tensors() const { return tensors_; }  // sorted by offset

 private:
  SafetensorsFile() = default;

  absl::Status ReadHeader();
  absl::Status ParseHeader(std::string_view header);
  absl::Status CheckLayout();

  RegularFile file_;
  int64_t data_start_ = 0;
  std::vector<StoredTensor> tensors_;
};

}  // namespace quire

#endif  // QUIRE_WORKER_MODEL_SAFETENSORS_FILE_H_
