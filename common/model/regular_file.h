// RegularFile is an open regular file that is read by pread. If the file shrinks or the disk fails,
// ReadAt returns an error; a mapping would end the process with SIGBUS. pread costs one copy more
// than a mapping, from the page cache into a buffer that stays in the processor's cache.
//
// Thread safety: const methods from any thread.
// Units:         offsets and sizes in bytes.
// Errors:        see load_error.h; kNotFound if the file is missing.
#ifndef QUIRE_COMMON_MODEL_REGULAR_FILE_H_
#define QUIRE_COMMON_MODEL_REGULAR_FILE_H_

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

#include "common/base/file_descriptor.h"

namespace quire {

class RegularFile {
 public:
  // No file, of no bytes.
  RegularFile() = default;

  // `name`: name of the file in error messages. Refuses any other kind of file at once: opening a
  // FIFO, for example, does not wait for a writer.
  static absl::StatusOr<RegularFile> Open(const std::string& path, std::string name);

  const std::string& name() const { return name_; }
  // Size when the file was opened.
  int64_t bytes() const { return bytes_; }

  // Fills `out` with the bytes from `offset`. REQUIRES: offset >= 0.
  absl::Status ReadAt(int64_t offset, std::span<std::byte> out) const;

  // Tells the kernel that the file will be read from front to back.
  void ExpectSequentialReads() const;
  // Tells the kernel that these bytes need not stay in its page cache.
  void DropCached(int64_t offset, int64_t bytes) const;

 private:
  std::string name_;
  FileDescriptor fd_;
  int64_t bytes_ = 0;
};

}  // namespace quire

#endif  // QUIRE_COMMON_MODEL_REGULAR_FILE_H_
