// WindowedAttention brings a problem's inputs to the device as DeviceAttention does, except that
// windows show the blocks and there are no block tables. Null entries of the tables become unmapped
// places.
#ifndef QUIRE_TESTS_KERNELS_CUDA_WINDOWED_ATTENTION_H_
#define QUIRE_TESTS_KERNELS_CUDA_WINDOWED_ATTENTION_H_

#include <cstdint>
#include <vector>

#include "gtest/gtest.h"

#include "kernels/cuda/runtime.h"
#include "kernels/cuda/windows.h"
#include "tests/kernels/cuda/attention_data.h"
#include "tests/kernels/cuda/device_array.h"

namespace quire::gpu {

class WindowedAttention {
 public:
  explicit WindowedAttention(const AttentionData& data)
      : device_(data), params_(device_.params()), first_places_(FirstPlaces(data)) {
    size_t page_bytes = 0;
    EXPECT_EQ(WindowPageBytes(&page_bytes), 0);
    KvCacheView& cache = params_.cache;
    const auto block_bytes = static_cast<size_t>(cache.layout.block_bytes());
    cache.layout = PadBlocks(cache.layout, static_cast<int64_t>(page_bytes));
    const auto padded_bytes = static_cast<size_t>(cache.layout.block_bytes());
    const auto num_places = static_cast<int64_t>(data.block_tables().size());
    EXPECT_EQ(
        CreateWindows(
            {.block_bytes = padded_bytes, .num_blocks = cache.num_blocks, .num_places = num_places},
            &windows_),
        0);
    auto* pool = static_cast<uint8_t*>(windows_.pool);
    for (int64_t block = 0; block < cache.num_blocks; ++block) {
      const auto at = static_cast<size_t>(block);
      EXPECT_EQ(CopyToDevice(pool + at * padded_bytes,
                             data.pool().data() + at * block_bytes,
                             block_bytes,
                             nullptr),
                0);
    }
    EXPECT_EQ(Synchronize(nullptr), 0);
    for (int64_t place = 0; place < num_places; ++place) {
      const BlockId block = data.block_tables()[static_cast<size_t>(place)];
      if (block != kNullBlockId) {
        EXPECT_EQ(MapPlaces(windows_.handle, place, block, 1), 0);
      }
    }
    cache.base = windows_.pool;
    cache.windows = windows_.places;
    params_.block_tables = nullptr;
    params_.first_places = first_places_.data();
  }
  ~WindowedAttention() { EXPECT_EQ(DestroyWindows(windows_.handle), 0); }
  WindowedAttention(const WindowedAttention&) = delete;
  WindowedAttention& operator=(const WindowedAttention&) = delete;

  const PagedAttentionParams& params() const { return params_; }
  const Windows& windows() const { return windows_; }
  std::vector<uint16_t> Out() const { return device_.Out(); }

 private:
  static std::vector<int64_t> FirstPlaces(const AttentionData& data) {
    std::vector<int64_t> places;
    const size_t num_seqs = data.seq_lens().size();
    for (size_t i = 0; i < num_seqs; ++i) {
      places.push_back(static_cast<int64_t>(i * data.block_tables().size() / num_seqs));
    }
    return places;
  }

  DeviceAttention device_;
  PagedAttentionParams params_;
  DeviceArray<int64_t> first_places_;
  Windows windows_;
};

}  // namespace quire::gpu

#endif  // QUIRE_TESTS_KERNELS_CUDA_WINDOWED_ATTENTION_H_
