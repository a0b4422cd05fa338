// DeviceArray owns an array on the device that the kernels run on: the heap in the emulated build,
// GPU memory in the CUDA one. Made from a count it holds 0xFF bytes, which are NaN in every type.
//
// data() is what the operations take; ToHost waits for them and returns a copy.
//
// Errors: what fails ends the process with a message; ToHost reports what failed before it.
#ifndef QUIRE_TESTS_KERNELS_CUDA_DEVICE_ARRAY_H_
#define QUIRE_TESTS_KERNELS_CUDA_DEVICE_ARRAY_H_

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <type_traits>
#include <utility>
#include <vector>

#include "kernels/cuda/runtime.h"

namespace quire::gpu {

template <typename T>
class DeviceArray {
  static_assert(std::is_trivially_copyable_v<T> && !std::is_same_v<T, bool>);

 public:
  explicit DeviceArray(int64_t count) : size_(count) {
    constexpr int kPoison = 0xFF;
    Check(Allocate(&data_, bytes()));
    Check(FillBytes(data_, kPoison, bytes(), nullptr));
  }
  explicit DeviceArray(const std::vector<T>& values) : size_(static_cast<int64_t>(values.size())) {
    Check(Allocate(&data_, bytes()));
    FromHost(values);
  }
  DeviceArray(DeviceArray&& other) noexcept
      : data_(std::exchange(other.data_, nullptr)), size_(std::exchange(other.size_, 0)) {}
  DeviceArray& operator=(DeviceArray&& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(size_, other.size_);
    return *this;
  }
  DeviceArray(const DeviceArray&) = delete;
  DeviceArray& operator=(const DeviceArray&) = delete;
  ~DeviceArray() { Check(Free(data_)); }

  T* data() { return static_cast<T*>(data_); }
  const T* data() const { return static_cast<const T*>(data_); }
  int64_t size() const { return size_; }

  // REQUIRES: as many values as the array has.
  void FromHost(const std::vector<T>& values) {
    if (static_cast<int64_t>(values.size()) != size_) {
      fprintf(stderr,
              "DeviceArray: %zu values for %lld\n",
              values.size(),
              static_cast<long long>(size_));
      abort();
    }
    Check(CopyToDevice(data_, values.data(), bytes(), nullptr));
    Check(Synchronize(nullptr));
  }

  std::vector<T> ToHost() const {
    std::vector<T> values(static_cast<size_t>(size_));
    Check(CopyToHost(values.data(), data_, bytes(), nullptr));
    Check(Synchronize(nullptr));
    return values;
  }

 private:
  size_t bytes() const { return static_cast<size_t>(size_) * sizeof(T); }

  static void Check(int error) {
    if (error != 0) {
      fprintf(stderr, "DeviceArray: error %d: %s\n", error, ErrorText(error));
      abort();
    }
  }

  void* data_ = nullptr;
  int64_t size_ = 0;
};

}  // namespace quire::gpu

#endif  // QUIRE_TESTS_KERNELS_CUDA_DEVICE_ARRAY_H_
