#include "common/model/gguf_cursor.h"

#include <algorithm>

#include "absl/strings/str_cat.h"

#include "common/base/string_view.h"
#include "common/model/load_error.h"

namespace quire {
namespace {

constexpr int64_t kPieceBytes = 64 << 10;

}  // namespace

int64_t GgufCursor::bytes_left() const {
  return std::max<int64_t>(0, std::min(file_.bytes(), max_bytes_) - position_);
}

absl::Status GgufCursor::Error(std::string_view rule) const {
  return TensorError(file_.name(), subject_, rule);
}

absl::Status GgufCursor::CheckLeft(uint64_t bytes, std::string_view what) const {
  if (bytes <= static_cast<uint64_t>(bytes_left())) {
    return absl::OkStatus();
  }
  const int64_t left_in_file = file_.bytes() - position_;
  if (bytes > static_cast<uint64_t>(left_in_file)) {
    return Error(absl::StrCat(
        ToAbsl(what), " ends beyond the file (got ", bytes, " bytes, limit ", left_in_file, ")"));
  }
  return Error(absl::StrCat("the header is too long (limit ", max_bytes_, ")"));
}

absl::StatusOr<std::string> GgufCursor::ReadString(uint64_t max_bytes, std::string_view what) {
  QUIRE_ASSIGN_OR_RETURN(const uint64_t length, Read<uint64_t>());
  if (length > max_bytes) {
    return Error(
        absl::StrCat(ToAbsl(what), " is too long (got ", length, " bytes, limit ", max_bytes, ")"));
  }
  QUIRE_RETURN_IF_ERROR(CheckLeft(length, what));
  std::string text(static_cast<size_t>(length), '\0');
  QUIRE_RETURN_IF_ERROR(ReadBytes(std::as_writable_bytes(std::span<char>(text))));
  return text;
}

absl::Status GgufCursor::Append(uint64_t bytes, std::vector<std::byte>& out) {
  const size_t begin = out.size();
  out.resize(begin + static_cast<size_t>(bytes));
  return ReadBytes(std::span(out).subspan(begin));
}

absl::Status GgufCursor::ReadBytes(std::span<std::byte> out) {
  QUIRE_RETURN_IF_ERROR(CheckLeft(out.size(), "header"));
  while (!out.empty()) {
    QUIRE_RETURN_IF_ERROR(ReadAhead());
    const size_t taken = std::min(out.size(), piece_.size() - used_);
    std::memcpy(out.data(), piece_.data() + used_, taken);
    used_ += taken;
    position_ += static_cast<int64_t>(taken);
    out = out.subspan(taken);
  }
  return absl::OkStatus();
}

absl::Status GgufCursor::ReadAhead() {
  if (used_ < piece_.size()) {
    return absl::OkStatus();
  }
  piece_.resize(static_cast<size_t>(std::min(kPieceBytes, bytes_left())));
  used_ = 0;
  return file_.ReadAt(position_, piece_);
}

}  // namespace quire
