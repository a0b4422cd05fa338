// FileDescriptor owns an open file, or none.
//
// Thread safety: const methods from any thread; other methods from one thread at a time.
#ifndef QUIRE_COMMON_BASE_FILE_DESCRIPTOR_H_
#define QUIRE_COMMON_BASE_FILE_DESCRIPTOR_H_

#include <unistd.h>

#include <utility>

namespace quire {

class FileDescriptor {
 public:
  FileDescriptor() = default;
  explicit FileDescriptor(int fd) : fd_(fd) {}
  ~FileDescriptor() { Close(); }
  FileDescriptor(FileDescriptor&& other) noexcept : fd_(other.Release()) {}
  FileDescriptor& operator=(FileDescriptor&& other) noexcept {
    if (this != &other) {
      Close();
      fd_ = other.Release();
    }
    return *this;
  }

  int fd() const { return fd_; }
  bool is_open() const { return fd_ >= 0; }
  int Release() { return std::exchange(fd_, -1); }
  void Close() {
    if (fd_ >= 0) {
      ::close(Release());
    }
  }

 private:
  int fd_ = -1;
};

}  // namespace quire

#endif  // QUIRE_COMMON_BASE_FILE_DESCRIPTOR_H_
