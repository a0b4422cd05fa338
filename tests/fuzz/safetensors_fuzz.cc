// Bytes as a .safetensors file and as an index of shards: refused with one line, or each tensor
// lies inside the file and can be read, and each shard is a plain file name.
#include <algorithm>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "common/base/check.h"
#include "tests/fuzz/fuzz_verdict.h"
#include "tests/fuzz/fuzzed_file.h"
#include "worker/model/safetensors_file.h"
#include "worker/model/weight_index.h"

namespace {

void CheckShape(const quire::StoredTensor& tensor) {
  QUIRE_CHECK_LE(tensor.shape.size(), size_t{16});
  int64_t num_values = 1;
  for (int64_t size : tensor.shape) {
    QUIRE_CHECK(size >= 0);
    const bool is_huge = size > 0 && num_values > INT64_MAX / size;
    num_values = is_huge ? INT64_MAX : num_values * size;
  }
  if (tensor.format.has_value()) {
    const int64_t value_bytes = quire::InfoOf(*tensor.format).block_bytes;
    QUIRE_CHECK(tensor.bytes / value_bytes == num_values && tensor.bytes % value_bytes == 0);
  }
}

void OpenFile(std::string_view bytes) {
  const auto file = quire::SafetensorsFile::Open(quire::FuzzedFile(bytes), "fuzz");
  if (!file.ok()) {
    quire::CheckRefusal(file.status());
    return;
  }
  uint64_t header_bytes = 0;
  std::memcpy(&header_bytes, bytes.data(), sizeof(header_bytes));
  auto end = static_cast<int64_t>(sizeof(header_bytes) + header_bytes);
  for (const quire::StoredTensor& tensor : file->tensors()) {
    QUIRE_CHECK(tensor.offset == end && tensor.bytes >= 0);
    QUIRE_CHECK(tensor.bytes <= file->file_bytes() - tensor.offset);
    end = tensor.offset + tensor.bytes;
    std::vector<std::byte> data(static_cast<size_t>(tensor.bytes));
    QUIRE_CHECK((quire::WeightRef{&file->file(), &tensor}.Read(0, data).ok()));
    QUIRE_CHECK(std::equal(
        data.begin(), data.end(), std::as_bytes(std::span(bytes)).begin() + tensor.offset));
    CheckShape(tensor);
  }
  QUIRE_CHECK_EQ(end, file->file_bytes());
  quire::is_accepted = true;
}

void ParseIndex(std::string_view bytes) {
  const auto index = quire::ParseWeightIndex(std::string(bytes));
  if (!index.ok()) {
    quire::CheckRefusal(index.status());
    return;
  }
  QUIRE_CHECK(!index->shards.empty() && std::ranges::is_sorted(index->shards));
  QUIRE_CHECK(index->total_bytes.value_or(0) >= 0 && index->total_bytes.value_or(0) <= int64_t{1}
                                                                                           << 53);
  for (const std::string& shard : index->shards) {
    QUIRE_CHECK(!shard.empty() && shard != "." && shard.find("..") == std::string::npos);
    QUIRE_CHECK(shard.find_first_of(std::string_view("/\0", 2)) == std::string::npos);
  }
  for (const auto& [tensor, shard] : index->shard_of) {
    QUIRE_CHECK(std::ranges::binary_search(index->shards, shard));
  }
  quire::is_accepted = true;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view bytes(reinterpret_cast<const char*>(data), size);
  ParseIndex(bytes);
  OpenFile(bytes);
  return 0;
}
