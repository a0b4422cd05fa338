// GgufCursor reads the header of a GGUF file from front to back, in pieces, little endian. Every
// length is compared with the bytes that are left before memory is taken.
//
// Thread safety: one caller at a time.
// Errors:        kInvalidArgument, reason MODEL_FILE, message "load: <file>: <subject>: <rule>".
// Cost:          one read of the file per 64 KiB.
#ifndef QUIRE_COMMON_MODEL_GGUF_CURSOR_H_
#define QUIRE_COMMON_MODEL_GGUF_CURSOR_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

#include "common/base/status_macros.h"
#include "common/model/regular_file.h"

namespace quire {

class GgufCursor {
 public:
  // The file must outlive the cursor. max_bytes: limit of the header.
  GgufCursor(const RegularFile& file, int64_t max_bytes) : file_(file), max_bytes_(max_bytes) {}

  // Names the key, the tensor or the field that the next bytes belong to, for error messages.
  void set_subject(std::string subject) { subject_ = std::move(subject); }

  int64_t position() const { return position_; }
  // Bytes that the file and the limit leave.
  int64_t bytes_left() const;

  template <typename T>
  absl::StatusOr<T> Read() {
    static_assert(std::is_unsigned_v<T>);
    std::array<std::byte, sizeof(T)> bytes = {};
    QUIRE_RETURN_IF_ERROR(ReadBytes(bytes));
    T number = 0;
    for (size_t i = 0; i < sizeof(T); ++i) {
      number = static_cast<T>(number | (static_cast<T>(bytes[i]) << (8 * i)));
    }
    return number;
  }

  // Reads a string's length and the string. `what` ("name") is for messages.
  absl::StatusOr<std::string> ReadString(uint64_t max_bytes, std::string_view what);

  // Fails if fewer than `bytes` bytes are left. `what` ("string") is for messages.
  absl::Status CheckLeft(uint64_t bytes, std::string_view what) const;
  // Appends so many bytes. REQUIRES: CheckLeft accepted the number.
  absl::Status Append(uint64_t bytes, std::vector<std::byte>& out);

  // Returns an error about the subject.
  absl::Status Error(std::string_view rule) const;

 private:
  absl::Status ReadBytes(std::span<std::byte> out);
  // Reads the next piece if all bytes of the last one were used. REQUIRES: bytes_left() > 0.
  absl::Status ReadAhead();

  const RegularFile& file_;
  const int64_t max_bytes_;
  std::string subject_;
  int64_t position_ = 0;
  // Bytes of the file that were read ahead, of which the first `used_` are behind position_.
  std::vector<std::byte> piece_;
  size_t used_ = 0;
};

}  // namespace quire

#endif  // QUIRE_COMMON_MODEL_GGUF_CURSOR_H_
