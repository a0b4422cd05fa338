#include "common/model/gguf_header.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <optional>
#include <string_view>
#include <utility>

#include "absl/strings/str_cat.h"

#include "common/base/math.h"
#include "common/base/status_macros.h"
#include "common/base/string_view.h"
#include "common/model/gguf_cursor.h"
#include "common/model/load_error.h"

namespace quire {
namespace {

constexpr uint32_t kMagic = 0x46554747;  // "GGUF"
constexpr int64_t kDefaultAlignment = 32;

// Bytes of the shortest possible key with its value, and of the shortest description of a tensor.
// No file has more keys or tensors than its size divided by these.
constexpr int64_t kMinKeyBytes = 8 + 1 + 4 + 1;
constexpr int64_t kMinTensorBytes = 8 + 1 + 4 + 4 + 8;

absl::Status CheckVersion(GgufCursor& cursor, const std::string& file) {
  cursor.set_subject("magic and version");
  QUIRE_ASSIGN_OR_RETURN(const uint32_t magic, cursor.Read<uint32_t>());
  if (magic != kMagic) {
    return LoadError(file, "is not a GGUF file (does not start with 'GGUF')");
  }
  QUIRE_ASSIGN_OR_RETURN(const uint32_t version, cursor.Read<uint32_t>());
  if (version == 2 || version == 3) {
    return absl::OkStatus();
  }
  if (version != 0 && version % 65'536 == 0) {
    return LoadError(file, "is a big-endian GGUF file; only little-endian ones are read");
  }
  return LoadError(file, absl::StrCat("has GGUF version ", version, "; only 2 and 3 are read"));
}

// Reads a number of keys or tensors.
absl::StatusOr<int64_t> ReadCount(GgufCursor& cursor,
                                  const std::string& file,
                                  std::string_view what,
                                  int64_t max_count) {
  cursor.set_subject(absl::StrCat("number of ", ToAbsl(what)));
  QUIRE_ASSIGN_OR_RETURN(const uint64_t count, cursor.Read<uint64_t>());
  if (count > static_cast<uint64_t>(max_count)) {
    return LoadError(
        file,
        absl::StrCat("has too many ", ToAbsl(what), " (got ", count, ", limit ", max_count, ")"));
  }
  return static_cast<int64_t>(count);
}

// Fails if the bytes that are left cannot hold `count` keys or tensors of min_bytes each.
absl::Status CheckRoom(const GgufCursor& cursor,
                       const std::string& file,
                       std::string_view what,
                       int64_t count,
                       int64_t min_bytes) {
  const int64_t limit = cursor.bytes_left() / min_bytes;
  if (count > limit) {
    return LoadError(file,
                     absl::StrCat("has fewer bytes than its ",
                                  ToAbsl(what),
                                  " need (got ",
                                  count,
                                  " ",
                                  ToAbsl(what),
                                  ", room for ",
                                  limit,
                                  ")"));
  }
  return absl::OkStatus();
}

absl::Status CheckBools(const GgufCursor& cursor, const GgufValue& value) {
  for (std::byte byte : value.bytes) {
    if (byte > std::byte{1}) {
      return cursor.Error(
          absl::StrCat("a bool must be 0 or 1 (got ", std::to_integer<int>(byte), ")"));
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<GgufValueType> ReadValueType(GgufCursor& cursor) {
  QUIRE_ASSIGN_OR_RETURN(const uint32_t number, cursor.Read<uint32_t>());
  const std::optional<GgufValueType> type = GgufValueTypeFromNumber(number);
  if (!type.has_value()) {
    return cursor.Error(absl::StrCat("unknown type of value (got ", number, ")"));
  }
  return *type;
}

absl::Status ReadStrings(GgufCursor& cursor, GgufValue& value) {
  for (int64_t i = 0; i < value.num_elements; ++i) {
    QUIRE_ASSIGN_OR_RETURN(const uint64_t length, cursor.Read<uint64_t>());
    QUIRE_RETURN_IF_ERROR(cursor.CheckLeft(length, "string"));
    QUIRE_RETURN_IF_ERROR(cursor.Append(length, value.bytes));
    if (value.is_array()) {
      value.ends.push_back(static_cast<uint32_t>(value.bytes.size()));
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<GgufValue> ReadValue(GgufCursor& cursor) {
  GgufValue value;
  QUIRE_ASSIGN_OR_RETURN(value.type, ReadValueType(cursor));
  value.element_type = value.type;
  if (value.is_array()) {
    QUIRE_ASSIGN_OR_RETURN(value.element_type, ReadValueType(cursor));
    if (value.element_type == GgufValueType::kArray) {
      return cursor.Error("an array of arrays is not supported");
    }
    QUIRE_ASSIGN_OR_RETURN(const uint64_t num_elements, cursor.Read<uint64_t>());
    if (num_elements > uint64_t{kMaxGgufArrayElements}) {
      return cursor.Error(absl::StrCat("array has too many elements (got ",
                                       num_elements,
                                       ", limit ",
                                       kMaxGgufArrayElements,
                                       ")"));
    }
    value.num_elements = static_cast<int64_t>(num_elements);
  }
  const std::string_view what = value.is_array() ? "array" : "value";
  if (value.element_type == GgufValueType::kString) {
    constexpr uint64_t kLengthBytes = 8;
    QUIRE_RETURN_IF_ERROR(
        cursor.CheckLeft(static_cast<uint64_t>(value.num_elements) * kLengthBytes, what));
    QUIRE_RETURN_IF_ERROR(ReadStrings(cursor, value));
    return value;
  }
  const auto bytes = static_cast<uint64_t>(value.num_elements * SizeOf(value.element_type));
  QUIRE_RETURN_IF_ERROR(cursor.CheckLeft(bytes, what));
  QUIRE_RETURN_IF_ERROR(cursor.Append(bytes, value.bytes));
  if (value.element_type == GgufValueType::kBool) {
    QUIRE_RETURN_IF_ERROR(CheckBools(cursor, value));
  }
  return value;
}

absl::StatusOr<GgufMetadata> ReadMetadata(GgufCursor& cursor,
                                          const std::string& file,
                                          int64_t num_keys) {
  GgufMetadata metadata(file);
  for (int64_t i = 0; i < num_keys; ++i) {
    cursor.set_subject(absl::StrCat("key ", i));
    QUIRE_ASSIGN_OR_RETURN(std::string key, cursor.ReadString(kMaxGgufKeyBytes, "name"));
    if (key.empty()) {
      return cursor.Error("has no name");
    }
    cursor.set_subject(key);
    QUIRE_ASSIGN_OR_RETURN(GgufValue value, ReadValue(cursor));
    if (!metadata.Add(std::move(key), std::move(value))) {
      return cursor.Error("this key is there twice");
    }
  }
  return metadata;
}

absl::StatusOr<int64_t> AlignmentOf(const GgufMetadata& metadata) {
  QUIRE_ASSIGN_OR_RETURN(
      const int64_t alignment,
      IfMissing(metadata.GetInteger(kGgufAlignmentKey, kMinGgufAlignment, kMaxGgufAlignment),
                kDefaultAlignment));
  if ((alignment & (alignment - 1)) != 0) {
    return metadata.KeyError(kGgufAlignmentKey,
                             absl::StrCat("must be a power of two (got ", alignment, ")"));
  }
  return alignment;
}

absl::Status ReadShape(GgufCursor& cursor, GgufTensor& tensor) {
  QUIRE_ASSIGN_OR_RETURN(const uint32_t rank, cursor.Read<uint32_t>());
  if (rank > kMaxGgufRank) {
    return cursor.Error(
        absl::StrCat("has too many dimensions (got ", rank, ", limit ", kMaxGgufRank, ")"));
  }
  for (uint32_t i = 0; i < rank; ++i) {
    QUIRE_ASSIGN_OR_RETURN(const uint64_t size, cursor.Read<uint64_t>());
    if (size == 0 || size > uint64_t{INT64_MAX}) {
      return cursor.Error(absl::StrCat("dimensions must be in [1, 2^63) (got ", size, ")"));
    }
    tensor.shape.push_back(static_cast<int64_t>(size));
  }
  std::reverse(tensor.shape.begin(), tensor.shape.end());
  return absl::OkStatus();
}

absl::Status ReadType(GgufCursor& cursor, GgufTensor& tensor) {
  QUIRE_ASSIGN_OR_RETURN(const uint32_t number, cursor.Read<uint32_t>());
  const std::optional<GgmlType> type = GgmlTypeFromNumber(number);
  if (type.has_value()) {
    tensor.type = *type;
    return absl::OkStatus();
  }
  const std::string_view removed = RemovedGgmlType(number);
  if (!removed.empty()) {
    return cursor.Error(absl::StrCat("has type ",
                                     ToAbsl(removed),
                                     " (",
                                     number,
                                     "), which ggml removed; convert the model again"));
  }
  return cursor.Error(absl::StrCat("has an unknown type (got ", number, ")"));
}

// Sets the tensor's size in bytes.
absl::Status ComputeBytes(const GgufCursor& cursor, GgufTensor& tensor) {
  const GgmlTypeInfo& info = InfoOf(tensor.type);
  const int64_t row_size = tensor.shape.empty() ? 1 : tensor.shape.back();
  if (row_size % info.block_size != 0) {
    return cursor.Error(absl::StrCat("rows of ",
                                     row_size,
                                     " elements are not whole blocks of ",
                                     info.block_size,
                                     " (type ",
                                     ToAbsl(info.name),
                                     ")"));
  }
  std::optional<int64_t> num_elements = 1;
  for (size_t i = 0; i < tensor.shape.size() && num_elements.has_value(); ++i) {
    num_elements = CheckedMultiply(*num_elements, tensor.shape[i]);
  }
  if (!num_elements.has_value()) {
    return cursor.Error("the product of the dimensions overflows");
  }
  const std::optional<int64_t> bytes =
      CheckedMultiply(*num_elements / info.block_size, info.block_bytes);
  if (!bytes.has_value()) {
    return cursor.Error("the size in bytes overflows");
  }
  tensor.bytes = *bytes;
  return absl::OkStatus();
}

// Reads one description of a tensor. Leaves tensor.offset relative to the start of the data.
absl::StatusOr<GgufTensor> ReadTensor(GgufCursor& cursor, int64_t index, int64_t alignment) {
  GgufTensor tensor;
  cursor.set_subject(absl::StrCat("tensor ", index));
  QUIRE_ASSIGN_OR_RETURN(tensor.name, cursor.ReadString(kMaxGgufTensorNameBytes, "name"));
  if (tensor.name.empty()) {
    return cursor.Error("has no name");
  }
  cursor.set_subject(tensor.name);
  QUIRE_RETURN_IF_ERROR(ReadShape(cursor, tensor));
  QUIRE_RETURN_IF_ERROR(ReadType(cursor, tensor));
  QUIRE_RETURN_IF_ERROR(ComputeBytes(cursor, tensor));
  QUIRE_ASSIGN_OR_RETURN(const uint64_t offset, cursor.Read<uint64_t>());
  if (offset > uint64_t{INT64_MAX}) {
    return cursor.Error(absl::StrCat("offset must be in [0, 2^63) (got ", offset, ")"));
  }
  tensor.offset = static_cast<int64_t>(offset);
  if (tensor.offset % alignment != 0) {
    return cursor.Error(
        absl::StrCat("offset is not a multiple of ", alignment, " (got ", offset, ")"));
  }
  return tensor;
}

// Makes the offset of each tensor relative to the start of the file, and sorts the tensors by it.
absl::Status PlaceTensors(const RegularFile& file, int64_t data_start, GgufHeader& header) {
  for (GgufTensor& tensor : header.tensors) {
    const std::optional<int64_t> begin = CheckedAdd(data_start, tensor.offset);
    const std::optional<int64_t> end =
        begin.has_value() ? CheckedAdd(*begin, tensor.bytes) : std::nullopt;
    if (!end.has_value()) {
      return TensorError(file.name(), tensor.name, "offset and size overflow");
    }
    if (*end > file.bytes()) {
      return TensorError(
          file.name(),
          tensor.name,
          absl::StrCat("ends beyond the file (got ", *end, ", limit ", file.bytes(), ")"));
    }
    tensor.offset = *begin;
  }
  std::sort(header.tensors.begin(),
            header.tensors.end(),
            [](const GgufTensor& a, const GgufTensor& b) { return a.offset < b.offset; });
  for (size_t i = 1; i < header.tensors.size(); ++i) {
    const GgufTensor& before = header.tensors[i - 1];
    if (header.tensors[i].offset < before.offset + before.bytes) {
      return TensorError(file.name(),
                         header.tensors[i].name,
                         absl::StrCat("overlaps tensor ", PrintableName(before.name)));
    }
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<GgufHeader> ReadGgufHeader(const RegularFile& file, int64_t max_bytes) {
  GgufCursor cursor(file, max_bytes);
  QUIRE_RETURN_IF_ERROR(CheckVersion(cursor, file.name()));
  QUIRE_ASSIGN_OR_RETURN(const int64_t num_tensors,
                         ReadCount(cursor, file.name(), "tensors", kMaxGgufTensors));
  QUIRE_ASSIGN_OR_RETURN(const int64_t num_keys,
                         ReadCount(cursor, file.name(), "keys", kMaxGgufKeys));
  QUIRE_RETURN_IF_ERROR(CheckRoom(cursor, file.name(), "keys", num_keys, kMinKeyBytes));

  GgufHeader header;
  QUIRE_ASSIGN_OR_RETURN(header.metadata, ReadMetadata(cursor, file.name(), num_keys));
  QUIRE_ASSIGN_OR_RETURN(const int64_t alignment, AlignmentOf(header.metadata));
  QUIRE_RETURN_IF_ERROR(CheckRoom(cursor, file.name(), "tensors", num_tensors, kMinTensorBytes));
  header.tensors.reserve(static_cast<size_t>(num_tensors));
  for (int64_t i = 0; i < num_tensors; ++i) {
    QUIRE_ASSIGN_OR_RETURN(GgufTensor tensor, ReadTensor(cursor, i, alignment));
    header.tensors.push_back(std::move(tensor));
  }
  header.bytes = cursor.position();
  QUIRE_RETURN_IF_ERROR(PlaceTensors(file, RoundUp(header.bytes, alignment), header));
  return header;
}

}  // namespace quire
