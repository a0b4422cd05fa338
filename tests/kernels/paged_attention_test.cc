#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstring>
#include <limits>
#include <map>
#include <sstream>
#include <string>
#include <vector>

#include "gtest/gtest.h"

#include "tests/kernels/attention_case.h"
#include "tests/kernels/cpu_backends.h"

namespace quire {
namespace {

// Kernel and reference read the same stored numbers, so the storage type adds no difference between
// them: what is left is fp32 arithmetic. A score is a sum of head_dim terms with a relative error
// of about sqrt(head_dim) * 2^-24, which the softmax turns into a relative error of the weight; at
// head_dim 256 that is 1e-6. A lost position in a context of 1,000 is 1e-3, a lost one in 16 more.
constexpr double kMaxError = 5e-6;

// Products of bf16 round queries and weights to 8 bits, each by up to 2^-9 of itself and half of
// that on average. Numbers of both signs add up as their errors do, so that the error stays about
// that part of the sum, and grows with the scores.
constexpr double kMaxErrorOfPairs = 3e-3;

using Sequences = std::vector<CaseSequence>;

constexpr DType kAllTypes[] = {
    DType::kF32, DType::kF16, DType::kBF16, DType::kF8E4M3, DType::kInt8};

std::string Describe(const AttentionCase& c) {
  std::ostringstream text;
  text << "heads " << c.num_heads << "/" << c.num_kv_heads << " dim " << c.head_dim << " block "
       << c.block_size_tokens << " " << NameOf(c.dtype) << " window " << c.sliding_window
       << (c.alibi ? " alibi" : "") << " sequences";
  for (const CaseSequence& s : c.sequences) {
    text << " " << s.query_len << "/" << s.seq_len;
  }
  return text.str();
}

bool SameBits(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

// Every path asks for the same cases, and the reference takes its time. For cases without changed
// elements, which the description does not tell apart.
const std::vector<float>& ReferenceOf(const AttentionCase& c) {
  static auto* const known = new std::map<std::string, std::vector<float>>;
  auto [at, is_new] = known->try_emplace(Describe(c));
  if (is_new) {
    at->second = ReferenceAttention(c);
  }
  return at->second;
}

class PagedAttentionTest : public CpuBackendTest {
 protected:
  void ExpectMatchesReference(const AttentionCase& c) {
    auto backend = MakeBackend(2);
    std::vector<float> out = RunAttention(*backend, c);
    const bool rounds = RoundsToBF16(GetParam()) && c.dtype == DType::kBF16;
    EXPECT_LT(NormalisedError(out, ReferenceOf(c)), rounds ? kMaxErrorOfPairs : kMaxError)
        << Describe(c);
  }

  // The outputs of positions [0, seq_len) of one sequence, computed chunk tokens at a time. Later
  // positions are not in the cache yet when a chunk is computed.
  std::vector<float> InChunks(AttentionCase c, int32_t seq_len, int32_t chunk, int num_threads) {
    auto backend = MakeBackend(num_threads);
    std::vector<float> all;
    for (int32_t done = 0; done < seq_len; done += chunk) {
      int32_t end = std::min(done + chunk, seq_len);
      c.sequences = Sequences{{end - done, end, 7}};
      std::vector<float> out = RunAttention(*backend, c);
      all.insert(all.end(), out.begin(), out.end());
    }
    return all;
  }
};

TEST_P(PagedAttentionTest, MatchesReferenceForEveryHeadDimAndType) {
  for (int32_t head_dim : {16, 32, 48, 64, 80, 96, 112, 128, 256}) {
    for (DType dtype : kAllTypes) {
      AttentionCase c;
      c.head_dim = head_dim;
      c.dtype = dtype;
      c.sequences = Sequences{{1, 300, 1}, {40, 290, 2}, {3, 17, 3}};

      ExpectMatchesReference(c);
    }
  }
}

TEST_P(PagedAttentionTest, MatchesReferenceForHeadDimsThatNoVectorDivides) {
  for (int32_t head_dim : {4, 10, 20, 21, 36, 100}) {
    for (DType dtype : {DType::kBF16, DType::kF8E4M3, DType::kInt8}) {
      AttentionCase c;
      c.head_dim = head_dim;
      c.dtype = dtype;
      c.sequences = Sequences{{1, 300, 1}, {40, 290, 2}, {3, 17, 3}};

      ExpectMatchesReference(c);
    }
  }
}

TEST_P(PagedAttentionTest, MatchesReferenceForEveryGroupSize) {
  // 5 to 7 query heads make every height of a row tile; 128 is more rows than a task usually has.
  for (int32_t heads_per_kv_head : {1, 2, 3, 4, 5, 6, 7, 8, 9, 12, 32, 128}) {
    AttentionCase c;
    c.num_kv_heads = heads_per_kv_head > 8 ? 1 : 2;
    c.num_heads = heads_per_kv_head * c.num_kv_heads;
    c.head_dim = 32;
    c.sequences = Sequences{{1, 270, 1}, {5, 270, 2}, {1, 1, 3}};

    ExpectMatchesReference(c);
  }
}

TEST_P(PagedAttentionTest, MatchesReferenceForEveryBlockSize) {
  for (int32_t block_size : {1, 5, 8, 12, 16, 32, 48, 128, 256, 300, 512}) {
    for (DType dtype : {DType::kF32, DType::kBF16, DType::kF8E4M3, DType::kInt8}) {
      AttentionCase c;
      c.block_size_tokens = block_size;
      c.dtype = dtype;
      c.head_dim = 48;
      c.sequences =
          Sequences{{1, 600, 1}, {33, 270, 2}, {2, block_size + 1, 3}, {1, 2 * block_size, 4}};

      ExpectMatchesReference(c);
    }
  }
}

TEST_P(PagedAttentionTest, EightBitsMeanTheStoredNumberTimesItsScale) {
  for (DType dtype : {DType::kF8E4M3, DType::kInt8}) {
    for (int32_t block_size : {5, 16}) {
      AttentionCase c;
      c.block_size_tokens = block_size;
      // Values of very different sizes, so that a scale of another slot cannot pass.
      c.change_value = [](int32_t position, float value) {
        return std::ldexp(value, position % 9 - 4);
      };
      c.sequences = Sequences{{1, 300, 1}, {40, 290, 2}};
      AttentionCase plain = c;
      c.dtype = dtype;
      plain.dtype = DType::kF32;
      plain.rounded_as = dtype;

      const std::vector<float> expected = ReferenceAttention(plain);

      EXPECT_LT(NormalisedError(RunAttention(*MakeBackend(2), c), expected), kMaxError)
          << Describe(c);
      EXPECT_LT(NormalisedError(ReferenceAttention(c), expected), kMaxError) << Describe(c);
    }
  }
}

TEST_P(PagedAttentionTest, MatchesReferenceAtTheEdgesOfBlocksAndChunks) {
  for (int32_t seq_len : {1, 2, 15, 16, 17, 31, 32, 33, 255, 256, 257, 511, 512, 513}) {
    AttentionCase c;
    c.head_dim = 32;
    c.sequences =
        Sequences{{1, seq_len, 1}, {std::min(seq_len, 5), seq_len, 2}, {seq_len, seq_len, 3}};

    ExpectMatchesReference(c);
  }
}

TEST_P(PagedAttentionTest, MatchesReferenceForSlidingWindows) {
  for (int32_t window : {1, 2, 16, 100, 255, 256, 257, 300, 1000}) {
    AttentionCase c;
    c.head_dim = 32;
    c.sliding_window = window;
    c.sequences = Sequences{{1, 700, 1}, {600, 600, 2}, {30, 530, 3}, {1, 1, 4}};

    ExpectMatchesReference(c);
  }
}

TEST_P(PagedAttentionTest, MatchesReferenceWithAlibi) {
  for (DType dtype : kAllTypes) {
    for (int32_t num_kv_heads : {1, 2, 6}) {
      AttentionCase c;
      c.num_heads = 6;
      c.num_kv_heads = num_kv_heads;
      c.head_dim = 32;
      c.dtype = dtype;
      c.alibi = true;
      // The second block size is one that no vector divides.
      for (int32_t block_size : {16, 5}) {
        c.block_size_tokens = block_size;
        c.sequences = Sequences{{1, 600, 1}, {40, 290, 2}, {3, 17, 3}, {1, 1, 4}};

        ExpectMatchesReference(c);
      }
      c.sliding_window = 100;

      ExpectMatchesReference(c);
    }
  }
}

TEST_P(PagedAttentionTest, MatchesReferenceForAMixedBatchOfTheServedShape) {
  AttentionCase c;
  c.num_heads = 16;
  c.num_kv_heads = 8;
  c.sequences =
      Sequences{{1, 1024, 1}, {64, 128, 2}, {1, 5, 3}, {17, 800, 4}, {1, 257, 5}, {1, 1, 6}};

  ExpectMatchesReference(c);
}

TEST_P(PagedAttentionTest, PrefillInChunksGivesTheBitsOfTheWholePrefill) {
  for (DType dtype : kAllTypes) {
    for (int32_t window : {0, 300}) {
      AttentionCase c;
      c.dtype = dtype;
      c.head_dim = 32;
      c.sliding_window = window;
      constexpr int32_t kSeqLen = 560;
      std::vector<float> whole = InChunks(c, kSeqLen, kSeqLen, 1);

      for (int32_t chunk : {7, 16, 64, 300}) {
        EXPECT_TRUE(SameBits(InChunks(c, kSeqLen, chunk, 2), whole))
            << "chunk " << chunk << " " << Describe(c);
      }
    }
  }
}

TEST_P(PagedAttentionTest, DecodeTokenByTokenGivesTheBitsOfThePrefill) {
  // A decode has as many rows as heads: every height of a row tile, and two tiles. The prefill's
  // tiles are as high as they can be.
  for (int32_t num_heads : {1, 2, 3, 4, 5, 6, 8}) {
    for (int32_t block_size : {5, 32}) {
      AttentionCase c;
      c.dtype = num_heads % 2 == 0 ? DType::kBF16 : DType::kInt8;
      c.head_dim = 48;
      c.num_heads = num_heads;
      c.num_kv_heads = 1;
      c.block_size_tokens = block_size;
      constexpr int32_t kSeqLen = 270;

      std::vector<float> whole = InChunks(c, kSeqLen, kSeqLen, 1);

      EXPECT_TRUE(SameBits(InChunks(c, kSeqLen, 1, 1), whole)) << Describe(c);
    }
  }
}

TEST_P(PagedAttentionTest, WithAlibiNeitherChunksNorThreadsChangeBits) {
  for (DType dtype : {DType::kF32, DType::kInt8}) {
    AttentionCase c;
    c.dtype = dtype;
    c.head_dim = 48;
    c.alibi = true;
    constexpr int32_t kSeqLen = 560;
    const std::vector<float> whole = InChunks(c, kSeqLen, kSeqLen, 1);

    for (int32_t chunk : {1, 7, 64, 300}) {
      for (int num_threads : {1, 3}) {
        EXPECT_TRUE(SameBits(InChunks(c, kSeqLen, chunk, num_threads), whole))
            << "chunk " << chunk << " " << num_threads << " threads, " << Describe(c);
      }
    }
  }
}

TEST_P(PagedAttentionTest, ThreadsDoNotChangeBits) {
  // The first is split by chunks as soon as there are two threads, the second is not.
  for (const Sequences& sequences :
       {Sequences{{1, 3000, 1}}, Sequences{{1, 900, 1}, {100, 700, 2}, {1, 30, 3}, {1, 256, 4}}}) {
    AttentionCase c;
    c.num_heads = 6;
    c.sequences = sequences;
    std::vector<float> alone = RunAttention(*MakeBackend(1), c);

    for (int num_threads : {2, 3, 8}) {
      EXPECT_TRUE(SameBits(RunAttention(*MakeBackend(num_threads), c), alone))
          << num_threads << " threads, " << Describe(c);
    }
  }
}

TEST_P(PagedAttentionTest, PhysicalBlocksAndTheirSizeDoNotChangeBits) {
  for (DType dtype : {DType::kBF16, DType::kF8E4M3, DType::kInt8}) {
    AttentionCase c;
    c.dtype = dtype;
    c.sequences = Sequences{{40, 600, 1}, {1, 700, 2}};
    std::vector<float> first = RunAttention(*MakeBackend(2), c);

    for (int32_t block_size : {1, 5, 8, 16, 32, 128}) {
      c.block_size_tokens = block_size;
      for (uint64_t seed : {2U, 3U}) {
        c.block_seed = seed;
        EXPECT_TRUE(SameBits(RunAttention(*MakeBackend(2), c), first)) << Describe(c);
      }
    }
  }
}

TEST_P(PagedAttentionTest, NeighboursDoNotChangeBits) {
  for (DType dtype : kAllTypes) {
    AttentionCase c;
    c.dtype = dtype;
    c.sequences = Sequences{{3, 530, 9}};
    std::vector<float> alone = RunAttention(*MakeBackend(2), c);

    c.sequences = Sequences{{1, 40, 1}, {3, 530, 9}, {200, 300, 2}, {1, 900, 3}};
    std::vector<float> together = RunAttention(*MakeBackend(2), c);

    auto width = std::ptrdiff_t{c.num_heads} * c.head_dim;
    std::vector<float> own(together.begin() + width, together.begin() + 4 * width);
    EXPECT_TRUE(SameBits(own, alone)) << NameOf(dtype);
  }
}

TEST_P(PagedAttentionTest, RepeatedCallsOnOneBackendGiveTheSameBits) {
  auto backend = MakeBackend(2);
  AttentionCase small;
  small.sequences = Sequences{{1, 40, 1}};
  AttentionCase large;
  large.num_heads = 24;
  large.head_dim = 128;
  large.dtype = DType::kF32;
  large.sequences = Sequences{{70, 600, 2}};
  std::vector<float> first = RunAttention(*backend, small);

  RunAttention(*backend, large);

  EXPECT_TRUE(SameBits(RunAttention(*backend, small), first));
}

TEST_P(PagedAttentionTest, AnInfiniteValueDoesNotReachQueriesThatMayNotSeeIt) {
  for (DType dtype : {DType::kF32, DType::kBF16, DType::kF8E4M3, DType::kInt8}) {
    for (int32_t window : {0, 100, 101}) {
      for (int32_t infinite : {170, 171}) {  // the first of a pair, and the second
        AttentionCase c;
        c.dtype = dtype;
        c.sliding_window = window;
        c.sequences = Sequences{{300, 300, 1}};
        c.change_value = [infinite](int32_t position, float value) {
          return position == infinite ? std::numeric_limits<float>::infinity() : value;
        };

        std::vector<float> out = RunAttention(*MakeBackend(2), c);

        auto width = static_cast<size_t>(c.num_heads) * static_cast<size_t>(c.head_dim);
        for (size_t i = 0; i < out.size(); ++i) {
          auto position = static_cast<int32_t>(i / width);
          bool sees_it = position >= infinite && (window == 0 || position - infinite < window);
          ASSERT_EQ(std::isfinite(out[i]), !sees_it) << "position " << position;
        }
      }
    }
  }
}

// Differences of scores so large leave nothing to all others.
TEST_P(PagedAttentionTest, TheHighestScoreHasTheWeightOneHoweverLargeItIs) {
  for (const float factor : {1e5F, 1e8F, 1e10F}) {
    AttentionCase c;
    c.dtype = DType::kBF16;
    c.sequences = Sequences{{40, 600, 1}, {1, 600, 2}};
    c.change_query = [factor](float value) { return value * factor; };
    c.change_value = [](int32_t /*position*/, float /*value*/) { return 1.0F; };
    for (const float out : RunAttention(*MakeBackend(2), c)) {
      ASSERT_NEAR(out, 1.0F, 1e-5F) << factor;
    }
  }
}

TEST_P(PagedAttentionTest, ASequenceWithoutQueriesIsPassedOver) {
  AttentionCase c;
  c.sequences = Sequences{{0, 40, 1}, {2, 50, 2}, {0, 10, 3}};

  ExpectMatchesReference(c);
}

INSTANTIATE_TEST_SUITE_P(Cpu,
                         PagedAttentionTest,
                         testing::Values("amx", "avx512bf16", "avx512", "avx2", "portable"),
                         IsaName);

}  // namespace
}  // namespace quire
