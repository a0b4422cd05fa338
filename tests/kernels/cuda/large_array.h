// LargeArray is device memory of more than 4 GiB, of which a test touches a few pages. An address
// that is computed in 32 bits anywhere shows.
//
// In the emulated build it is a mapping without memory behind it. Pages exist once they are
// written, and other pages are zero. It begins kLeadBytes before data(). So a 32-bit offset that
// turned negative gives a wrong number in the test and does not end the program. In the CUDA build
// it is memory of the device, filled with 0xFF.
//
// Usage:
//  LargeArray pool(kBytes);
//  if (!pool.why_not().empty()) { GTEST_SKIP() << pool.why_not(); }
//
// Errors: Write and Read end the process with a message when a copy fails.
#ifndef QUIRE_TESTS_KERNELS_CUDA_LARGE_ARRAY_H_
#define QUIRE_TESTS_KERNELS_CUDA_LARGE_ARRAY_H_

#include <cerrno>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <string_view>
#include <system_error>
#include <vector>

#include "kernels/cuda/runtime.h"

#include <sys/mman.h>

namespace quire::gpu {

class LargeArray {
 public:
  explicit LargeArray(int64_t bytes) : bytes_(static_cast<size_t>(bytes)) {
    DeviceInfo device;
    Check(QueryDevice(0, &device));
    is_mapping_ = std::string_view(device.name) == "emulator";
    if (is_mapping_) {
      Map();
    } else if (device.free_bytes < bytes + bytes / 8) {
      why_not_ = "the device has too little free memory";
    } else {
      constexpr int kPoison = 0xFF;
      Check(Allocate(&data_, bytes_));
      Check(FillBytes(data_, kPoison, bytes_, nullptr));
    }
  }
  LargeArray(const LargeArray&) = delete;
  LargeArray& operator=(const LargeArray&) = delete;
  ~LargeArray() {
    if (data_ == nullptr) {
      return;
    }
    if (is_mapping_) {
      munmap(static_cast<uint8_t*>(data_) - kLeadBytes, kLeadBytes + bytes_);
    } else {
      Check(Free(data_));
    }
  }

  // Why there is no memory; empty: there is.
  const std::string& why_not() const { return why_not_; }
  void* data() { return data_; }

  // offset: in bytes.
  template <typename T>
  void Write(int64_t offset, const std::vector<T>& values) {
    Check(CopyToDevice(At(offset), values.data(), values.size() * sizeof(T), nullptr));
    Check(Synchronize(nullptr));
  }
  template <typename T>
  std::vector<T> Read(int64_t offset, size_t count) const {
    std::vector<T> values(count);
    Check(CopyToHost(values.data(), At(offset), count * sizeof(T), nullptr));
    Check(Synchronize(nullptr));
    return values;
  }

 private:
  static constexpr size_t kLeadBytes = size_t{8} << 30;

  void Map() {
    void* begin = mmap(nullptr,
                       kLeadBytes + bytes_,
                       PROT_READ | PROT_WRITE,
                       MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE,
                       -1,
                       0);
    if (begin == MAP_FAILED) {
      why_not_ = "mmap: " + std::generic_category().message(errno);
      return;
    }
    data_ = static_cast<uint8_t*>(begin) + kLeadBytes;
  }

  uint8_t* At(int64_t offset) const { return static_cast<uint8_t*>(data_) + offset; }

  static void Check(int error) {
    if (error != 0) {
      fprintf(stderr, "LargeArray: error %d: %s\n", error, ErrorText(error));
      abort();
    }
  }

  size_t bytes_;
  bool is_mapping_ = false;
  void* data_ = nullptr;
  std::string why_not_;
};

}  // namespace quire::gpu

#endif  // QUIRE_TESTS_KERNELS_CUDA_LARGE_ARRAY_H_
