#include "worker/kv_cache/kv_cache_storage.h"

#include <algorithm>
#include <cstdint>
#include <fstream>
#include <limits>
#include <memory>

#include <gtest/gtest.h>

#include "common/base/error.h"
#include "kernels/reference/reference_backend.h"

namespace quire {
namespace {

constexpr KvCacheSpec kSpec = {.num_layers = 2,
                               .num_kv_heads = 3,
                               .head_dim = 8,
                               .block_size_tokens = 4,
                               .dtype = DType::kF32};

class KvCacheStorageTest : public testing::Test {
 protected:
  std::unique_ptr<KernelBackend> backend_ = CreateReferenceBackend();
};

TEST_F(KvCacheStorageTest, ThePoolIsAlignedAndZeroToItsLastByte) {
  auto storage = KvCacheStorage::Create(*backend_, DimMajorKeys(kSpec), 5);

  ASSERT_TRUE(storage.ok()) << storage.status();
  const KvCacheView& view = (*storage)->view();
  EXPECT_EQ((*storage)->size_bytes(), 5 * kSpec.block_bytes());
  EXPECT_EQ(view.num_blocks, 5);
  EXPECT_EQ(reinterpret_cast<uintptr_t>(view.base) % 64, 0U);
  const auto* bytes = static_cast<const char*>(view.base);
  for (int64_t i = 0; i < (*storage)->size_bytes(); ++i) {
    ASSERT_EQ(bytes[i], 0) << i;
  }
}

TEST_F(KvCacheStorageTest, ClearMakesEveryByteZeroAgain) {
  auto storage = KvCacheStorage::Create(*backend_, DimMajorKeys(kSpec), 5);
  ASSERT_TRUE(storage.ok()) << storage.status();
  auto* bytes = static_cast<char*>((*storage)->view().base);
  int64_t size = (*storage)->size_bytes();
  std::fill_n(bytes, size, 'x');

  ASSERT_TRUE((*storage)->Clear().ok());

  EXPECT_EQ(std::count(bytes, bytes + size, 0), size);
}

TEST_F(KvCacheStorageTest, APoolLargerThanMemoryIsTakenLazily) {
  if (std::ifstream("/proc/sys/vm/overcommit_memory").get() == '2') {
    GTEST_SKIP() << "this machine reserves memory for every mapping";
  }

  auto storage = KvCacheStorage::Create(*backend_, DimMajorKeys(kSpec), 100'000'000);  // 154 GB

  ASSERT_TRUE(storage.ok()) << storage.status();
  const KvCacheView& view = (*storage)->view();
  auto* last = static_cast<float*>(view.base) + view.layout.ValueOffset(99'999'999, 1, 2);
  *last = 1.0F;
  EXPECT_EQ(*last, 1.0F);
}

TEST_F(KvCacheStorageTest, WithoutPlacesThereAreNoWindows) {
  auto storage = KvCacheStorage::Create(*backend_, DimMajorKeys(kSpec), 5);

  ASSERT_TRUE(storage.ok()) << storage.status();
  EXPECT_EQ((*storage)->windows(), nullptr);
  EXPECT_EQ((*storage)->view().windows, nullptr);
  EXPECT_EQ((*storage)->num_places(), 0);
}

// Blocks that fill pages, as windows need them.
class WindowedStorageTest : public KvCacheStorageTest {
 protected:
  WindowedStorageTest() : layout_(PadBlocks(DimMajorKeys(kSpec), backend_->window_page_bytes())) {}

  KvCacheLayout layout_;
};

TEST_F(WindowedStorageTest, PlacesShowBlocksOfThePool) {
  auto storage = KvCacheStorage::Create(*backend_, layout_, 5, 3);
  ASSERT_TRUE(storage.ok()) << storage.status();
  const KvCacheView& view = (*storage)->view();
  static_cast<float*>(view.base)[layout_.ValueOffset(4, 1, 2)] = 7.0F;

  ASSERT_TRUE((*storage)->windows()->Map(2, 4, 1).ok());

  EXPECT_EQ(static_cast<const float*>(view.windows)[layout_.ValueOffset(2, 1, 2)], 7.0F);
  EXPECT_EQ((*storage)->num_places(), 3);
  EXPECT_EQ((*storage)->size_bytes(), 5 * layout_.block_bytes());
}

TEST_F(WindowedStorageTest, ClearMakesEveryByteZeroAgain) {
  auto storage = KvCacheStorage::Create(*backend_, layout_, 5, 3);
  ASSERT_TRUE(storage.ok()) << storage.status();
  auto* bytes = static_cast<char*>((*storage)->view().base);
  const int64_t size = (*storage)->size_bytes();
  std::fill_n(bytes, size, 'x');

  ASSERT_TRUE((*storage)->Clear().ok());

  EXPECT_EQ(std::count(bytes, bytes + size, 0), size);
}

TEST_F(WindowedStorageTest, APoolLargerThanMemoryIsTakenLazily) {
  constexpr int32_t kNumBlocks = 40'000'000;
  auto storage = KvCacheStorage::Create(*backend_, layout_, kNumBlocks, 3);  // 164 GB
  ASSERT_TRUE(storage.ok()) << storage.status();
  const KvCacheView& view = (*storage)->view();

  static_cast<float*>(view.base)[layout_.ValueOffset(kNumBlocks - 1, 1, 2)] = 1.0F;
  ASSERT_TRUE((*storage)->windows()->Map(0, kNumBlocks - 1, 1).ok());

  EXPECT_EQ(static_cast<const float*>(view.windows)[layout_.ValueOffset(0, 1, 2)], 1.0F);
}

TEST_F(WindowedStorageTest, RefusesPlacesThatCannotBe) {
  constexpr int64_t kMost = std::numeric_limits<int64_t>::max();

  EXPECT_EQ(ReasonOf(KvCacheStorage::Create(*backend_, layout_, 5, kMost).status()), "MEMORY");
  EXPECT_EQ(ReasonOf(KvCacheStorage::Create(*backend_, layout_, 0, 3).status()), "MEMORY");
}

TEST_F(KvCacheStorageTest, RefusesPoolsThatCannotBe) {
  KvCacheLayout empty = DimMajorKeys({.num_layers = 0});
  KvCacheLayout huge = DimMajorKeys(kSpec);
  huge.block_stride = std::numeric_limits<int64_t>::max() / 8;

  EXPECT_EQ(ReasonOf(KvCacheStorage::Create(*backend_, empty, 5).status()), "MEMORY");
  EXPECT_EQ(ReasonOf(KvCacheStorage::Create(*backend_, DimMajorKeys(kSpec), 0).status()), "MEMORY");
  EXPECT_EQ(ReasonOf(KvCacheStorage::Create(*backend_, DimMajorKeys(kSpec), -1).status()),
            "MEMORY");
  EXPECT_EQ(ReasonOf(KvCacheStorage::Create(*backend_, huge, 1 << 30).status()), "MEMORY");
}

}  // namespace
}  // namespace quire
