#include "kernels/cpu/cpu_backend.h"

#include <string>

#include "gtest/gtest.h"

#include "kernels/cpu/kernel_table.h"

namespace quire {
namespace {

TEST(CpuBackendTest, EveryTableIsComplete) {
  for (const KernelTable& table : KernelTables()) {
    EXPECT_GT(table.panel.lanes, 0) << table.isa;
    EXPECT_EQ(table.panel.panel % table.panel.lanes, 0) << table.isa;
    EXPECT_NE(table.embed, nullptr) << table.isa;
    EXPECT_NE(table.norm, nullptr) << table.isa;
    EXPECT_NE(table.linear, nullptr) << table.isa;
    EXPECT_NE(table.activate, nullptr) << table.isa;
    EXPECT_NE(table.prepare_attention, nullptr) << table.isa;
    EXPECT_NE(table.paged_attention, nullptr) << table.isa;
    EXPECT_NE(table.copy_blocks, nullptr) << table.isa;
    EXPECT_NE(table.sample, nullptr) << table.isa;
  }
}

TEST(CpuBackendTest, ThePortablePathRunsEverywhere) {
  const auto backend = CreateCpuBackend({.num_threads = 1, .isa = "portable"});

  ASSERT_TRUE(backend.ok()) << backend.status();
  EXPECT_EQ((*backend)->name(), "cpu-portable");
}

TEST(CpuBackendTest, TheNameSaysThePath) {
  for (const KernelTable& table : KernelTables()) {
    const auto backend = CreateCpuBackend({.num_threads = 1, .isa = table.isa});

    if (IsSupported(table)) {
      ASSERT_TRUE(backend.ok()) << backend.status();
      EXPECT_EQ((*backend)->name(), std::string("cpu-") + table.isa);
    } else {
      EXPECT_EQ(backend.status().code(), absl::StatusCode::kFailedPrecondition);
    }
  }
}

TEST(CpuBackendTest, ChoosesTheFirstPathThatTheMachineCanRun) {
  std::string expected;
  for (const KernelTable& table : KernelTables()) {
    if (expected.empty() && IsSupported(table)) {
      expected = std::string("cpu-") + table.isa;
    }
  }

  const auto backend = CreateCpuBackend({});

  ASSERT_TRUE(backend.ok()) << backend.status();
  EXPECT_EQ((*backend)->name(), expected);
}

TEST(CpuBackendTest, RefusesAnUnknownPathAndListsTheKnownOnes) {
  const auto backend = CreateCpuBackend({.num_threads = 1, .isa = "mmx"});

  EXPECT_EQ(backend.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_NE(backend.status().message().find("portable"), absl::string_view::npos);
}

TEST(CpuBackendTest, RefusesNumbersOfThreadsThatMakeNoSense) {
  for (const int num_threads : {-1, ThreadTeam::kMaxThreads + 1}) {
    const auto backend = CreateCpuBackend({.num_threads = num_threads, .isa = "portable"});

    EXPECT_EQ(backend.status().code(), absl::StatusCode::kInvalidArgument) << num_threads;
  }
}

TEST(CpuBackendTest, KeysLieDimMajor) {
  const auto backend = CreateCpuBackend({.num_threads = 1});
  ASSERT_TRUE(backend.ok()) << backend.status();

  const KvCacheLayout layout = (*backend)->LayoutFor({.num_layers = 3,
                                                      .num_kv_heads = 2,
                                                      .head_dim = 64,
                                                      .block_size_tokens = 16,
                                                      .dtype = DType::kBF16});

  EXPECT_EQ(layout.key_slot_stride, 1);
  EXPECT_EQ(layout.key_dim_stride, 16);
  EXPECT_EQ(layout.block_bytes(), 3 * 2 * 2 * 16 * 64 * 2);
  EXPECT_FALSE(layout.has_scales());
}

TEST(PadBlocksTest, ABlockEndsWithItsPageAndKeepsItsOrder) {
  constexpr int64_t kPage = 4096;
  for (const DType dtype : {DType::kF32, DType::kF16, DType::kBF16, DType::kF8E4M3, DType::kInt8}) {
    const KvCacheLayout layout = WithScales(DimMajorKeys({.num_layers = 3,
                                                          .num_kv_heads = 2,
                                                          .head_dim = 12,
                                                          .block_size_tokens = 16,
                                                          .dtype = dtype}));

    const KvCacheLayout padded = PadBlocks(layout, kPage);

    EXPECT_EQ(padded.block_bytes() % kPage, 0) << NameOf(dtype);
    EXPECT_GE(padded.block_bytes(), layout.block_bytes()) << NameOf(dtype);
    EXPECT_LT(padded.block_bytes(), layout.block_bytes() + kPage) << NameOf(dtype);
    EXPECT_EQ(padded.KeyOffset(0, 2, 1), layout.KeyOffset(0, 2, 1)) << NameOf(dtype);
    EXPECT_EQ(padded.ValueOffset(0, 2, 1), layout.ValueOffset(0, 2, 1)) << NameOf(dtype);
    EXPECT_EQ(padded.KeyOffset(5, 0, 0) * SizeOf(dtype), 5 * padded.block_bytes());
    EXPECT_EQ(padded.value_scale_offset, layout.value_scale_offset) << NameOf(dtype);
  }
}

TEST(PadBlocksTest, ABlockThatFillsItsPagesStaysAsItIs) {
  const KvCacheLayout layout = DimMajorKeys({.num_layers = 1,
                                             .num_kv_heads = 4,
                                             .head_dim = 64,
                                             .block_size_tokens = 16,
                                             .dtype = DType::kBF16});
  ASSERT_EQ(layout.block_bytes(), 16384);

  EXPECT_EQ(PadBlocks(layout, 4096).block_bytes(), 16384);
}

TEST(CpuBackendTest, ScalesOfEightBitsLieBehindTheirHead) {
  const auto backend = CreateCpuBackend({.num_threads = 1});
  ASSERT_TRUE(backend.ok()) << backend.status();
  for (const DType dtype : {DType::kF8E4M3, DType::kInt8}) {
    const KvCacheLayout layout = (*backend)->LayoutFor({.num_layers = 3,
                                                        .num_kv_heads = 2,
                                                        .head_dim = 3,
                                                        .block_size_tokens = 5,
                                                        .dtype = dtype});

    EXPECT_EQ(layout.value_offset, 3 * 5);
    EXPECT_EQ(layout.key_scale_offset, 32);  // 30 bytes of keys and values, aligned for fp32
    EXPECT_EQ(layout.value_scale_offset, 32 + 5 * 4);
    EXPECT_EQ(layout.KeyOffset(0, 0, 1), 32 + 2 * 5 * 4);
    EXPECT_EQ(layout.KeyOffset(0, 1, 0), 2 * (32 + 2 * 5 * 4));
    EXPECT_EQ(layout.block_bytes(), 3 * 2 * (32 + 2 * 5 * 4));
    EXPECT_TRUE((*backend)->CanStoreKvAs(dtype));
  }
}

}  // namespace
}  // namespace quire
