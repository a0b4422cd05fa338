// ReorderingApi is a GpuApi whose streams are queues: what is enqueued runs later, in any order
// that CUDA allows, streams among each other as well as streams and the host. Where something
// depends on an order that nobody asked for, it comes out wrong here.
//
// Kernels and products come from a library below, which runs them when it is called. Copies from
// pinned memory read it when they run. Other host memory is read when the copy is enqueued.
//
// Thread safety: one object at a time, one caller at a time.
// Source:        CUDA C++ Programming Guide, "Streams" and "Events".
#ifndef QUIRE_TESTS_KERNELS_GPU_REORDERING_API_H_
#define QUIRE_TESTS_KERNELS_GPU_REORDERING_API_H_

#include <cstdint>

#include "kernels/cuda/gpu_api.h"

namespace quire {

// The first stream that is created computes, the others copy.
enum class StreamOrder : uint8_t {
  kCopiesLate,   // the computing stream runs at once, the others when they are waited for
  kCopiesEarly,  // the others run as soon as events let them, the computing stream when waited for
  kRandom,
};

class ReorderingApi {
 public:
  ReorderingApi(const gpu::GpuApi& below, StreamOrder order, uint64_t seed);
  // REQUIRES: everything that was created has been destroyed.
  ~ReorderingApi();
  ReorderingApi(const ReorderingApi&) = delete;
  ReorderingApi& operator=(const ReorderingApi&) = delete;

  const gpu::GpuApi& api() const { return api_; }

 private:
  gpu::GpuApi api_;
};

}  // namespace quire

#endif  // QUIRE_TESTS_KERNELS_GPU_REORDERING_API_H_
