// The reference's attention against Hugging Face's (testdata/attention.txt): sinks, soft caps and
// windows.
#include <cstdint>
#include <fstream>
#include <sstream>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "common/model/kv_cache_spec.h"
#include "kernels/reference/reference_ops.h"

namespace quire {
namespace {

struct Golden {
  std::string name;
  int32_t num_heads = 0;
  int32_t num_kv_heads = 0;
  int32_t head_dim = 0;
  int32_t query_len = 0;
  int32_t seq_len = 0;
  int32_t sliding_window = 0;
  float scale = 0.0F;
  float soft_cap = 0.0F;
  std::vector<float> sinks;
  std::vector<float> q;
  std::vector<float> keys_and_values;
  std::vector<float> out;
};

std::vector<float> ReadNumbers(std::istream& file) {
  std::string line;
  std::getline(file, line);
  std::istringstream text(line);
  std::vector<float> numbers;
  for (float number = 0.0F; text >> number;) {
    numbers.push_back(number);
  }
  return numbers;
}

std::vector<Golden> ReadGoldens() {
  std::ifstream file("tests/kernels/testdata/attention.txt");
  std::vector<Golden> goldens;
  Golden golden;
  while (std::getline(file, golden.name)) {
    std::string line;
    std::getline(file, line);
    std::istringstream(line) >> golden.num_heads >> golden.num_kv_heads >> golden.head_dim >>
        golden.query_len >> golden.seq_len >> golden.sliding_window >> golden.scale >>
        golden.soft_cap;
    golden.sinks = ReadNumbers(file);
    golden.q = ReadNumbers(file);
    golden.keys_and_values = ReadNumbers(file);
    golden.out = ReadNumbers(file);
    goldens.push_back(golden);
  }
  return goldens;
}

// Returns the index of the dim in a pool of one layer.
int64_t PlaceOf(const KvCacheLayout& layout, int32_t position, int32_t head, bool is_value) {
  const BlockId block = position / layout.block_size_tokens;
  return (is_value ? layout.ValueOffset(block, 0, head) : layout.KeyOffset(block, 0, head)) +
         position % layout.block_size_tokens * int64_t{layout.head_dim};
}

std::vector<float> Attended(const Golden& golden) {
  constexpr int32_t kBlockSize = 4;
  const KvCacheLayout layout = TokenMajorKeys({.num_layers = 1,
                                               .num_kv_heads = golden.num_kv_heads,
                                               .head_dim = golden.head_dim,
                                               .block_size_tokens = kBlockSize,
                                               .dtype = DType::kF32});
  const int32_t num_blocks = (golden.seq_len + kBlockSize - 1) / kBlockSize;
  std::vector<float> pool(static_cast<size_t>(layout.block_bytes() * num_blocks) / sizeof(float));
  auto from = golden.keys_and_values.begin();
  for (const bool is_value : {false, true}) {
    for (int32_t position = 0; position < golden.seq_len; ++position) {
      for (int32_t head = 0; head < golden.num_kv_heads; ++head, from += golden.head_dim) {
        std::copy_n(
            from, golden.head_dim, pool.begin() + PlaceOf(layout, position, head, is_value));
      }
    }
  }
  std::vector<BlockId> blocks;
  for (BlockId block = 0; block < num_blocks; ++block) {
    blocks.push_back(block);
  }
  const std::vector<int32_t> query_start = {0, golden.query_len};
  std::vector<float> out(golden.q.size());
  reference::PagedAttention({.num_seqs = 1,
                             .num_heads = golden.num_heads,
                             .q = golden.q.data(),
                             .q_row_stride = int64_t{golden.num_heads} * golden.head_dim,
                             .out = out.data(),
                             .scale = golden.scale,
                             .sliding_window = golden.sliding_window,
                             .soft_cap = golden.soft_cap,
                             .sinks = golden.sinks.empty() ? nullptr : golden.sinks.data(),
                             .query_start = query_start.data(),
                             .seq_lens = &golden.seq_len,
                             .block_tables = blocks.data(),
                             .max_blocks_per_seq = num_blocks,
                             .cache = {pool.data(), num_blocks, layout}});
  return out;
}

TEST(AttentionGoldenTest, TheReferenceAgreesWithHuggingFace) {
  const std::vector<Golden> goldens = ReadGoldens();
  ASSERT_EQ(goldens.size(), 8U);
  for (const Golden& golden : goldens) {
    SCOPED_TRACE(golden.name);
    ASSERT_FALSE(golden.out.empty());
    EXPECT_THAT(Attended(golden), testing::Pointwise(testing::FloatNear(2e-6F), golden.out));
  }
}

}  // namespace
}  // namespace quire
