// GgufDir is a temporary folder for GGUF files of a test.
//
// Thread safety: one caller at a time.
#ifndef QUIRE_TESTS_COMMON_MODEL_GGUF_DIR_H_
#define QUIRE_TESTS_COMMON_MODEL_GGUF_DIR_H_

#include <stdlib.h>
#include <unistd.h>

#include <cstddef>
#include <filesystem>
#include <fstream>
#include <span>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"

#include "common/base/check.h"
#include "common/model/gguf_file.h"

namespace quire {

class GgufDir {
 public:
  // The folder is in memory if the system has such a place, because some tests write many files.
  GgufDir() {
    const bool has_memory = ::access("/dev/shm", W_OK) == 0;
    const std::filesystem::path parent =
        has_memory ? "/dev/shm" : std::filesystem::temp_directory_path();
    std::string name = (parent / "quire_gguf_XXXXXX").string();
    QUIRE_CHECK(::mkdtemp(name.data()) != nullptr);
    path_ = name;
  }
  ~GgufDir() { std::filesystem::remove_all(path_); }
  GgufDir(const GgufDir&) = delete;
  GgufDir& operator=(const GgufDir&) = delete;

  std::string path(std::string_view name) const { return (path_ / name).string(); }
  void Write(std::string_view name, std::string_view bytes) const {
    std::ofstream(path(name), std::ios::binary).write(bytes.data(), std::ssize(bytes));
  }
  absl::StatusOr<GgufFile> Open(std::string_view name) const { return GgufFile::Open(path(name)); }

 private:
  std::filesystem::path path_;
};

// Returns the tensor's bytes, or the error's message.
inline std::string BytesOf(const GgufFile& file, const GgufTensor& tensor) {
  std::string bytes(static_cast<size_t>(tensor.bytes), '\0');
  const absl::Status status = file.Read(tensor, 0, std::as_writable_bytes(std::span<char>(bytes)));
  return status.ok() ? bytes : std::string(status.message());
}

}  // namespace quire

#endif  // QUIRE_TESTS_COMMON_MODEL_GGUF_DIR_H_
