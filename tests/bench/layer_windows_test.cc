#include "tests/bench/layer_windows.h"

#include <algorithm>
#include <cstddef>
#include <memory>
#include <string>

#include "gtest/gtest.h"

#include "common/base/error.h"
#include "kernels/api/host_windows.h"

namespace quire {
namespace {

using Kind = LayerWindows::Kind;

// Two layers, pages of two tokens.
LayerWindowsShape SmallShape() {
  return {.num_layers = 2,
          .block_size_tokens = 2,
          .token_bytes = HostPageBytes() / 2,
          .num_blocks = 4,
          .num_seqs = 2,
          .blocks_per_seq = 3};
}

class LayerWindowsTest : public testing::Test {
 protected:
  LayerWindowsTest() {
    auto made = LayerWindows::Create(SmallShape());
    EXPECT_TRUE(made.ok()) << made.status();
    windows_ = *std::move(made);
    for (BlockId block = 0; block < 4; ++block) {
      for (int32_t layer = 0; layer < 2; ++layer) {
        for (const Kind kind : {Kind::kKeys, Kind::kValues}) {
          std::fill_n(windows_->Page(block, layer, kind),
                      SmallShape().page_bytes(),
                      std::byte(Letter(block, layer, kind)));
        }
      }
    }
  }

  // 'a' to 'p': keys and values of layer 0, of layer 1, then the next block.
  static char Letter(BlockId block, int32_t layer, Kind kind) {
    return static_cast<char>('a' + 4 * block + 2 * layer + (kind == Kind::kValues ? 1 : 0));
  }

  // Reads the first `count` tokens of a sequence, one letter each.
  std::string Tokens(int64_t seq, int32_t layer, Kind kind, int64_t count) const {
    const auto* bytes = reinterpret_cast<const char*>(windows_->Window(seq, layer, kind));
    std::string letters;
    for (; count > 0; --count, bytes += SmallShape().token_bytes) {
      letters += *bytes;
    }
    return letters;
  }

  std::unique_ptr<LayerWindows> windows_;
};

TEST_F(LayerWindowsTest, TokensOfALayerFollowOneAnotherWhateverBlocksTheyAreIn) {
  ASSERT_TRUE(windows_->Map(1, 0, 3).ok());
  ASSERT_TRUE(windows_->Map(1, 1, 0).ok());

  EXPECT_EQ(Tokens(1, 0, Kind::kKeys, 4), "mmaa");
  EXPECT_EQ(Tokens(1, 0, Kind::kValues, 4), "nnbb");
  EXPECT_EQ(Tokens(1, 1, Kind::kKeys, 4), "oocc");
  EXPECT_EQ(Tokens(1, 1, Kind::kValues, 4), "ppdd");
}

TEST_F(LayerWindowsTest, ABlockIsSharedByShowingItTwice) {
  ASSERT_TRUE(windows_->Map(0, 0, 1, 2).ok());
  ASSERT_TRUE(windows_->Map(1, 1, 1).ok());
  ASSERT_TRUE(windows_->Map(1, 0, 2).ok());

  EXPECT_EQ(Tokens(0, 1, Kind::kValues, 4), "hhll");
  EXPECT_EQ(Tokens(1, 1, Kind::kValues, 4), "llhh");
}

TEST(LayerWindowsLimitTest, ShapesBeyondTheLimitOfLinuxAreRefusedWithTheNumbers) {
  LayerWindowsShape shape = SmallShape();
  shape.blocks_per_seq = MaxWindowMappings() / 8;  // of two sequences, two layers, keys and values

  const auto made = LayerWindows::Create(shape);

  ASSERT_EQ(made.status().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(ReasonOf(made.status()), "MAPPINGS");
  EXPECT_NE(std::string(made.status().message()).find(std::to_string(NumMappings(shape))),
            std::string::npos);
}

TEST(LayerWindowsLimitTest, ABlockTakesAMappingForKeysAndOneForValuesOfEachLayer) {
  LayerWindowsShape shape = SmallShape();
  const int64_t before = NumMappings(shape);

  ++shape.blocks_per_seq;

  EXPECT_EQ(NumMappings(shape) - before, 4 * shape.num_seqs);
}

}  // namespace
}  // namespace quire
