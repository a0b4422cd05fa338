// Bytes as a GGUF file, or as the two parts of a split one: refused with one line, or each tensor
// lies inside its file, overlaps no other, and can be read. Opening the same bytes again gives the
// same.
#include <fcntl.h>
#include <stdlib.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <limits>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/strings/match.h"

#include "common/base/check.h"
#include "common/base/error.h"
#include "common/model/gguf_file.h"
#include "tests/fuzz/fuzz_input.h"
#include "tests/fuzz/fuzz_verdict.h"
#include "tests/fuzz/fuzzed_file.h"

namespace {

void CheckRefusal(const absl::Status& status) {
  QUIRE_CHECK(quire::ReasonOf(status) == "MODEL_FILE");
  QUIRE_CHECK(absl::StartsWith(status.message(), "load: "));
  QUIRE_CHECK(!absl::StrContains(status.message(), '\n'));
  QUIRE_CHECK_LE(status.message().size(), size_t{2000});
}

// Two files in memory that all executions share, under the names of a split model's parts.
class TwoParts {
 public:
  TwoParts() {
    std::string name = (std::filesystem::temp_directory_path() / "quire_gguf_fuzz_XXXXXX").string();
    QUIRE_CHECK(::mkdtemp(name.data()) != nullptr);
    folder_ = name;
  }
  ~TwoParts() { std::filesystem::remove_all(folder_); }

  std::string path(int part) const {
    return folder_ / ("m-0000" + std::to_string(part) + "-of-00002.gguf");
  }
  void Write(int part, std::string_view bytes) const {
    const int fd = ::open(path(part).c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    QUIRE_CHECK(fd >= 0);
    QUIRE_CHECK_EQ(::write(fd, bytes.data(), bytes.size()), static_cast<ssize_t>(bytes.size()));
    ::close(fd);
  }

 private:
  std::filesystem::path folder_;
};

void CheckTensors(const quire::GgufFile& file, const std::vector<std::string_view>& parts) {
  QUIRE_CHECK_EQ(static_cast<size_t>(file.num_parts()), parts.size());
  int32_t part = 0;
  int64_t end = 0;
  for (const quire::GgufTensor& tensor : file.tensors()) {
    QUIRE_CHECK(tensor.part >= part && tensor.part < file.num_parts());
    end = tensor.part == part ? end : 0;
    part = tensor.part;
    const std::string_view bytes = parts[static_cast<size_t>(part)];
    QUIRE_CHECK(tensor.offset >= end && tensor.offset % quire::kMinGgufAlignment == 0);
    QUIRE_CHECK(tensor.bytes > 0 && tensor.bytes <= std::ssize(bytes) - tensor.offset);
    end = tensor.offset + tensor.bytes;
    QUIRE_CHECK(file.Find(tensor.name) == &tensor);

    const quire::GgmlTypeInfo& info = quire::InfoOf(tensor.type);
    __int128 num_elements = 1;
    QUIRE_CHECK_LE(tensor.shape.size(), size_t{4});
    for (int64_t size : tensor.shape) {
      QUIRE_CHECK(size > 0);
      num_elements *= size;
      QUIRE_CHECK_LE(num_elements, std::numeric_limits<int64_t>::max());
    }
    QUIRE_CHECK((tensor.shape.empty() ? 1 : tensor.shape.back()) % info.block_size == 0);
    QUIRE_CHECK(num_elements / info.block_size * info.block_bytes == tensor.bytes);

    std::vector<std::byte> data(static_cast<size_t>(tensor.bytes));
    QUIRE_CHECK(file.Read(tensor, 0, data).ok());
    QUIRE_CHECK(std::equal(
        data.begin(), data.end(), std::as_bytes(std::span(bytes)).begin() + tensor.offset));
  }
}

// Calls every getter for every key. Exactly one of them knows the value's type.
void CheckMetadata(const quire::GgufMetadata& metadata) {
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  for (const auto& [key, value] : metadata.values()) {
    const auto integer = metadata.GetInteger(key, INT64_MIN, INT64_MAX);
    const auto number = metadata.GetFloat(key, -kInfinity, kInfinity);
    const auto text = metadata.GetString(key);
    const auto integers = metadata.GetIntegers(key, INT64_MIN, INT64_MAX);
    const auto numbers = metadata.GetFloats(key, -kInfinity, kInfinity);
    const auto texts = metadata.GetStrings(key);
    const auto bools = metadata.GetBools(key);
    int num_known = 0;
    for (const absl::Status& status : {integer.status(),
                                       number.status(),
                                       text.status(),
                                       integers.status(),
                                       numbers.status(),
                                       texts.status(),
                                       bools.status(),
                                       metadata.GetBool(key).status()}) {
      if (!status.ok()) {
        CheckRefusal(status);
      }
      // An unsigned integer from 2^63 on and NaN are refused by their own getter, too.
      num_known += status.ok() || absl::StrContains(status.message(), "must be in [") ? 1 : 0;
    }
    QUIRE_CHECK(num_known == 1 || absl::StrContains(key, "must be in ["));
    if (texts.ok()) {
      QUIRE_CHECK_EQ(std::ssize(*texts), value.num_elements);
      size_t num_bytes = 0;
      for (std::string_view element : *texts) {
        num_bytes += element.size();
      }
      QUIRE_CHECK_EQ(num_bytes, value.bytes.size());
    }
  }
}

bool AreEqual(const quire::GgufFile& a, const quire::GgufFile& b) {
  return a.metadata().values() == b.metadata().values() &&
         std::equal(a.tensors().begin(),
                    a.tensors().end(),
                    b.tensors().begin(),
                    b.tensors().end(),
                    [](const quire::GgufTensor& x, const quire::GgufTensor& y) {
                      return x.name == y.name && x.type == y.type && x.shape == y.shape &&
                             x.part == y.part && x.offset == y.offset && x.bytes == y.bytes;
                    });
}

void Open(const std::string& path, const std::vector<std::string_view>& parts) {
  const auto file = quire::GgufFile::Open(path);
  const auto again = quire::GgufFile::Open(path);
  QUIRE_CHECK(file.status() == again.status());
  if (!file.ok()) {
    CheckRefusal(file.status());
    return;
  }
  CheckTensors(*file, parts);
  CheckMetadata(file->metadata());
  QUIRE_CHECK(AreEqual(*file, *again));
  quire::is_accepted = true;
}

}  // namespace

// A file begins with 'G'. Other bytes are two parts; the first byte is the number of 32-byte units
// in the first part.
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  constexpr size_t kUnitBytes = 32;
  if (size == 0 || data[0] == 'G') {
    const std::string_view bytes(reinterpret_cast<const char*>(data), size);
    Open(quire::FuzzedFile(bytes), {bytes});
    return 0;
  }
  static const TwoParts files;
  quire::FuzzInput input(data, size);
  const size_t first_bytes = input.TakeByte() * kUnitBytes;
  const std::string_view first = input.TakeBytes(first_bytes);
  const std::string_view second = input.TakeRest();
  files.Write(1, first);
  files.Write(2, second);
  Open(files.path(1), {first, second});
  return 0;
}
