// PlaceMapper maps blocks to places of a WindowMemory on its own thread, while the executor works.
// A place is an address range as long as a block (kv_windows.h).
//
// Thread safety: one caller at a time (the executor thread).
// Source:        vAttention, Prabhu et al. 2024, section 6.2.1 (overlapping memory allocation).
#ifndef QUIRE_WORKER_KV_CACHE_PLACE_MAPPER_H_
#define QUIRE_WORKER_KV_CACHE_PLACE_MAPPER_H_

#include <cstdint>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"

#include "common/base/ids.h"
#include "common/base/mutex.h"
#include "kernels/api/kernel_backend.h"

namespace quire {

// Maps blocks [block, block + count) to places [place, place + count).
struct MapOrder {
  int64_t place = 0;
  BlockId block = kNullBlockId;
  int64_t count = 1;
};

class PlaceMapper {
 public:
  // The backend and the memory must outlive the mapper.
  PlaceMapper(KernelBackend& backend, WindowMemory& memory);
  // Waits for the orders that were started.
  ~PlaceMapper();
  PlaceMapper(const PlaceMapper&) = delete;
  PlaceMapper& operator=(const PlaceMapper&) = delete;

  // Starts mapping the orders. REQUIRES: Wait was called since the last Start.
  void Start(const std::vector<MapOrder>& orders);
  // Waits until all orders were tried. Returns false if any order failed. It is then unknown which
  // orders failed, so treat all their places as unmapped.
  bool Wait();

 private:
  void Loop();

  KernelBackend& backend_;
  WindowMemory& memory_;
  std::vector<MapOrder> orders_;  // owned by thread_ while is_under_way_, else by the caller

  Mutex mutex_;
  CondVar changed_;
  bool is_under_way_ ABSL_GUARDED_BY(mutex_) = false;
  bool has_failed_ ABSL_GUARDED_BY(mutex_) = false;
  bool is_over_ ABSL_GUARDED_BY(mutex_) = false;
  std::thread thread_;  // last member: the thread uses the members above
};

}  // namespace quire

#endif  // QUIRE_WORKER_KV_CACHE_PLACE_MAPPER_H_
