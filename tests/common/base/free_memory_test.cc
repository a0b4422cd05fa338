// Counts the pages of freed buffers that are still resident in the process.
#include "common/base/free_memory.h"

#include <unistd.h>

#include <cstdint>
#include <cstring>
#include <memory>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include <sys/mman.h>

namespace quire {
namespace {

constexpr size_t kKiB = 1024;
constexpr size_t kMiB = 1024 * kKiB;

// An address range. It outlives its buffer, so it is kept as a number, not as a pointer.
struct Region {
  uintptr_t begin;
  size_t num_bytes;
};

// Resident pages among those that lie wholly in the region. An unmapped page is not resident.
size_t NumResidentPages(const Region& region) {
  const auto page_bytes = static_cast<size_t>(::sysconf(_SC_PAGESIZE));
  size_t num_resident = 0;
  for (uintptr_t page = (region.begin + page_bytes - 1) / page_bytes * page_bytes;
       page + page_bytes <= region.begin + region.num_bytes;
       page += page_bytes) {
    unsigned char is_resident = 0;
    // NOLINTNEXTLINE(performance-no-int-to-ptr)
    if (::mincore(reinterpret_cast<void*>(page), page_bytes, &is_resident) == 0) {
      num_resident += is_resident & 1;
    }
  }
  return num_resident;
}

class Buffer {
 public:
  explicit Buffer(size_t num_bytes) : bytes_(new char[num_bytes]), num_bytes_(num_bytes) {
    std::memset(bytes_.get(), 1, num_bytes);
  }
  Region region() const { return {reinterpret_cast<uintptr_t>(bytes_.get()), num_bytes_}; }

 private:
  std::unique_ptr<char[]> bytes_;
  size_t num_bytes_;
};

class FreeMemoryTest : public testing::Test {
 protected:
  void SetUp() override {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
    GTEST_SKIP() << "a sanitizer has an allocator of its own";
#endif
  }
};

TEST_F(FreeMemoryTest, ALargeBufferGoesBackAtOnceHoweverLargeOnesWereBefore) {
  ConfigureMalloc();
  { const Buffer largest(16 * kMiB); }
  auto large = std::make_unique<Buffer>(kMiB);
  const Buffer behind(64 * kKiB);  // keeps an arena from ending before it
  const Region region = large->region();
  ASSERT_GT(NumResidentPages(region), 200);

  large.reset();

  EXPECT_EQ(NumResidentPages(region), 0);
}

TEST_F(FreeMemoryTest, WhatIsFreeBetweenBuffersOfAnyThreadGoesBack) {
  std::thread([] {
    std::vector<std::unique_ptr<Buffer>> buffers;
    std::vector<Region> regions;
    for (int i = 0; i < 100; ++i) {
      buffers.push_back(std::make_unique<Buffer>(64 * kKiB));
      regions.push_back(buffers.back()->region());
    }
    for (size_t i = 0; i < buffers.size(); ++i) {
      if (i % 10 != 9) {
        buffers[i].reset();
      }
    }
    const auto num_resident = [&](bool is_kept) {
      size_t num_pages = 0;
      for (size_t i = 0; i < buffers.size(); ++i) {
        num_pages += (buffers[i] != nullptr) == is_kept ? NumResidentPages(regions[i]) : 0;
      }
      return num_pages;
    };
    ASSERT_GT(num_resident(/*is_kept=*/false), 1000);
    const size_t num_kept = num_resident(/*is_kept=*/true);

    ReturnFreeMemory();

    // The allocator's own data may stay in the pages at both ends of the freed range.
    EXPECT_LE(num_resident(/*is_kept=*/false), 20);
    EXPECT_EQ(num_resident(/*is_kept=*/true), num_kept);
  }).join();
}

}  // namespace
}  // namespace quire
