#include "kernels/cuda/gemm_cache.h"

#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "gtest/gtest.h"

namespace quire::gpu {
namespace {

GemmKey Key() {
  return {.device = "NVIDIA H200",
          .version = 130100,
          .rows = 64,
          .out_features = 6144,
          .in_features = 4096,
          .dtype = DType::kF8E4M3,
          .y_dtype = DType::kBF16};
}

constexpr GemmAlgorithm kAlgorithm = {0, 1, 0xFFFFFFFFFFFFFFFF, 3, 4, 5, 0x0123456789ABCDEF, 7};
constexpr char kLine[] =
    "130100\t64\t6144\t4096\t0\tfloat8_e4m3\tbfloat16\t"
    "00000000000000000000000000000001ffffffffffffffff0000000000000003"
    "000000000000000400000000000000050123456789abcdef0000000000000007\tNVIDIA H200\n";
std::string Text() { return std::string("quire-gemm-cache 1\n") + kLine; }

TEST(RowRangeTest, RangesGrowWithTheRows) {
  EXPECT_EQ(RowRange(1), 1);
  EXPECT_EQ(RowRange(8), 8);
  EXPECT_EQ(RowRange(9), 16);
  EXPECT_EQ(RowRange(64), 64);
  EXPECT_EQ(RowRange(65), 96);
  EXPECT_EQ(RowRange(256), 256);
  EXPECT_EQ(RowRange(257), 384);
  EXPECT_EQ(RowRange(1024), 1024);
  EXPECT_EQ(RowRange(1025), 1536);
  EXPECT_EQ(RowRange(8192), 8192);
}

TEST(GemmCacheTest, IsWrittenAsDocumented) {
  GemmCache cache;
  cache.Insert(Key(), kAlgorithm);

  EXPECT_EQ(cache.Format(), Text());
}

TEST(GemmCacheTest, ReadsWhatItWrote) {
  const auto cache = GemmCache::Parse(Text());

  ASSERT_TRUE(cache.has_value());
  EXPECT_EQ(cache->size(), 1U);
  EXPECT_EQ(cache->Find(Key()), kAlgorithm);
  EXPECT_EQ(cache->Format(), Text());
  EXPECT_EQ(GemmCache::Parse(GemmCache().Format())->size(), 0U);
}

TEST(GemmCacheTest, EveryPartOfTheKeyCounts) {
  GemmCache cache;
  cache.Insert(Key(), kAlgorithm);
  std::vector<GemmKey> others(8, Key());
  others[0].device = "NVIDIA H100";
  others[1].version = 130000;
  others[2].rows = 65;
  others[3].out_features = 6160;
  others[4].in_features = 4112;
  others[5].has_bias = true;
  others[6].dtype = DType::kBF16;
  others[7].y_dtype = DType::kF32;
  for (size_t i = 0; i < others.size(); ++i) {
    EXPECT_EQ(cache.Find(others[i]), std::nullopt) << i;
    cache.Insert(others[i], {i});
  }

  const auto read = GemmCache::Parse(cache.Format());

  ASSERT_TRUE(read.has_value());
  EXPECT_EQ(read->Find(Key()), kAlgorithm);
  for (size_t i = 0; i < others.size(); ++i) {
    EXPECT_EQ(read->Find(others[i]), GemmAlgorithm{i}) << i;
  }
}

TEST(GemmCacheTest, MergingKeepsBothAndPrefersTheOther) {
  GemmKey second = Key();
  second.rows = 1;
  GemmCache cache;
  cache.Insert(Key(), {1});
  cache.Insert(second, {2});
  GemmCache other;
  other.Insert(Key(), {3});

  cache.Merge(other);

  EXPECT_EQ(cache.Find(Key()), GemmAlgorithm{3});
  EXPECT_EQ(cache.Find(second), GemmAlgorithm{2});
}

std::string Replaced(std::string text, const std::string& from, const std::string& to) {
  const size_t at = text.find(from);
  EXPECT_NE(at, std::string::npos) << from;
  return text.replace(at, from.size(), to);
}

TEST(GemmCacheTest, WhatIsNoCacheIsRefusedWhole) {
  const std::vector<std::string> texts = {
      "",
      "\n",
      "junk",
      "quire-gemm-cache 1",
      Replaced(Text(), "cache 1", "cache 2"),
      Text().substr(0, Text().size() - 1),
      Text() + "\n",
      Text() + std::string(kLine).substr(0, 40),
      Replaced(Text(), "\tNVIDIA H200", ""),
      Replaced(Text(), "NVIDIA H200", "NVIDIA\tH200"),
      Replaced(Text(), "130100", "-1"),
      Replaced(Text(), "130100", "99999999999999999999"),
      Replaced(Text(), "\t64\t", "\t0\t"),
      Replaced(Text(), "\t64\t", "\t-64\t"),
      Replaced(Text(), "\t64\t", "\t64x\t"),
      Replaced(Text(), "\t64\t", "\t\t"),
      Replaced(Text(), "\t0\t", "\t2\t"),
      Replaced(Text(), "bfloat16", "bfloat"),
      Replaced(Text(), "ffff", "fffg"),
      Replaced(Text(), "ffff", "fff"),
  };
  for (size_t i = 0; i < texts.size(); ++i) {
    EXPECT_FALSE(GemmCache::Parse(texts[i]).has_value()) << i;
  }
}

// Cut anywhere, or with any byte changed, it is refused or read, and never more than it was.
TEST(GemmCacheTest, DamagedTextDoesNoHarm) {
  for (size_t i = 0; i < Text().size(); ++i) {
    const bool is_first_line = i == Text().find('\n') + 1;
    EXPECT_EQ(GemmCache::Parse(Text().substr(0, i)).has_value(), is_first_line) << i;
    for (const char byte : {'\0', '\t', '\n', '0', '\xFF'}) {
      std::string damaged = Text();
      damaged[i] = byte;
      const auto cache = GemmCache::Parse(damaged);
      EXPECT_LE(cache.has_value() ? cache->size() : 0, 1U);
    }
  }
}

class GemmCacheFileTest : public testing::Test {
 protected:
  void TearDown() override { std::filesystem::remove_all(folder_); }

  const std::filesystem::path folder_ =
      std::filesystem::temp_directory_path() / ("quire_gemm_cache_" + std::to_string(getpid()));
  const std::string path_ = folder_ / "a" / "cache";
};

TEST_F(GemmCacheFileTest, ASavedFileIsRead) {
  GemmCache cache;
  cache.Insert(Key(), kAlgorithm);

  ASSERT_TRUE(SaveGemmCache(path_, cache));
  GemmCache read;

  EXPECT_EQ(LoadGemmCache(path_, &read), GemmCacheState::kRead);
  EXPECT_EQ(read.Find(Key()), kAlgorithm);
}

TEST_F(GemmCacheFileTest, SavingReplacesTheFileAndLeavesNothingBeside) {
  GemmCache cache;
  ASSERT_TRUE(SaveGemmCache(path_, cache));
  cache.Insert(Key(), kAlgorithm);
  ASSERT_TRUE(SaveGemmCache(path_, cache));

  const std::filesystem::directory_iterator files(std::filesystem::path(path_).parent_path());

  EXPECT_EQ(std::distance(begin(files), end(files)), 1);
}

TEST_F(GemmCacheFileTest, WhatIsNotThereIsMissingAndLeavesTheCacheAlone) {
  GemmCache cache;
  cache.Insert(Key(), kAlgorithm);

  EXPECT_EQ(LoadGemmCache(path_, &cache), GemmCacheState::kMissing);
  EXPECT_EQ(cache.size(), 1U);
}

TEST_F(GemmCacheFileTest, WhatCannotBeReadSaysSo) {
  std::filesystem::create_directories(path_);  // a folder
  GemmCache cache;
  EXPECT_EQ(LoadGemmCache(path_, &cache), GemmCacheState::kUnreadable);

  std::filesystem::remove(path_);
  std::ofstream(path_) << "junk";
  EXPECT_EQ(LoadGemmCache(path_, &cache), GemmCacheState::kUnreadable);

  std::filesystem::resize_file(path_, uintmax_t{1} << 40);  // sparse
  EXPECT_EQ(LoadGemmCache(path_, &cache), GemmCacheState::kUnreadable);
}

TEST_F(GemmCacheFileTest, AFileThatCannotBeWrittenLeavesNothingBehind) {
  std::filesystem::create_directories(folder_);
  std::ofstream(folder_ / "a") << "a file where a folder should be";

  EXPECT_FALSE(SaveGemmCache(path_, GemmCache()));

  std::filesystem::remove(folder_ / "a");
  std::filesystem::create_directories(folder_ / "a" / "cache" / "full");
  EXPECT_FALSE(SaveGemmCache(path_, GemmCache()));
  const std::filesystem::directory_iterator files(folder_ / "a");
  EXPECT_EQ(std::distance(begin(files), end(files)), 1);
}

}  // namespace
}  // namespace quire::gpu
