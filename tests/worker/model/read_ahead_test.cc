#include "worker/model/read_ahead.h"

#include <atomic>
#include <cstddef>
#include <map>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"

#include "kernels/reference/reference_backend.h"
#include "tests/support/random.h"

namespace quire {
namespace {

// Tensors of bf16 whose every byte follows from the tensor's name and the byte's place.
class PatternSource final : public TensorSource {
 public:
  int64_t num_tensors() const override { return 0; }
  int64_t num_bytes() const override { return 0; }
  WeightFormat format(const std::string& /*name*/) const override { return WeightFormat::kBF16; }

  absl::Status Read(const TensorShape& tensor,
                    int64_t begin,
                    std::span<std::byte> out) const override {
    const int read = ++num_reads;
    while (waits_for_ticks && num_ticks < read) {
      std::this_thread::yield();
    }
    if (tensor.name == missing) {
      return absl::DataLossError(tensor.name);
    }
    for (size_t i = 0; i < out.size(); ++i) {
      out[i] = At(tensor.name, static_cast<size_t>(begin) + i);
    }
    return absl::OkStatus();
  }

  static std::byte At(const std::string& name, size_t place) {
    size_t hash = place * 0x9E3779B97F4A7C15ULL;
    for (const char letter : name) {
      hash = (hash ^ static_cast<size_t>(letter)) * 0x100000001B3ULL;
    }
    return static_cast<std::byte>(hash >> 40);
  }

  std::string missing;
  mutable std::atomic<int> num_reads = 0;
  // The n-th read ends after the n-th tick.
  bool waits_for_ticks = false;
  std::atomic<int> num_ticks = 0;
};

std::vector<TensorGroup> RandomGroups(uint64_t seed, int32_t count, int32_t max_elements) {
  Random random(seed);
  std::vector<TensorGroup> groups(static_cast<size_t>(count));
  int32_t number = 0;
  for (TensorGroup& group : groups) {
    for (int32_t i = random.Below(4); i > 0; --i) {
      group.push_back({.name = absl::StrCat("t", number++),
                       .rows = random.Below(2),  // a matrix of one row or a vector
                       .cols = random.Between(1, max_elements)});
    }
  }
  return groups;
}

void Nothing(int64_t /*bytes*/) {}

void ExpectPattern(const TensorGroup& group, const std::vector<std::span<const std::byte>>& spans) {
  ASSERT_EQ(spans.size(), group.size());
  for (size_t i = 0; i < group.size(); ++i) {
    ASSERT_EQ(static_cast<int64_t>(spans[i].size()), 2 * group[i].num_elements());
    for (size_t at = 0; at < spans[i].size(); ++at) {
      ASSERT_EQ(spans[i][at], PatternSource::At(group[i].name, at))
          << group[i].name << " at " << at;
    }
  }
}

TEST(ReadAheadTest, GivesEveryGroupInOrderWhateverTheBufferHolds) {
  const auto backend = CreateReferenceBackend();
  for (const int64_t ring_bytes : {int64_t{0}, int64_t{5000}, ReadAhead::kMinRingBytes}) {
    for (uint64_t seed = 1; seed <= 5; ++seed) {
      SCOPED_TRACE(testing::Message() << "ring " << ring_bytes << ", seed " << seed);
      const PatternSource source;
      const auto groups = RandomGroups(seed, 60, 700);
      auto reader = ReadAhead::Start(source, groups, *backend, ring_bytes);
      ASSERT_TRUE(reader.ok()) << reader.status();
      for (const TensorGroup& group : groups) {
        auto spans = (*reader)->Next(Nothing);
        ASSERT_TRUE(spans.ok()) << spans.status();
        ExpectPattern(group, *spans);
      }
    }
  }
}

TEST(ReadAheadTest, LargeTensorsAreReadInPieces) {
  const auto backend = CreateReferenceBackend();
  const PatternSource source;
  constexpr int64_t kElements = TensorSource::kPieceBytes / 2;
  const std::vector<TensorGroup> groups = {
      {{.name = "a", .rows = 2, .cols = kElements + 1}, {.name = "b", .cols = 3}},
      {{.name = "c", .rows = 1, .cols = kElements}}};
  auto reader = ReadAhead::Start(source, groups, *backend, /*min_ring_bytes=*/0);
  ASSERT_TRUE(reader.ok()) << reader.status();
  for (const TensorGroup& group : groups) {
    auto spans = (*reader)->Next(Nothing);
    ASSERT_TRUE(spans.ok()) << spans.status();
    ExpectPattern(group, *spans);
  }
  EXPECT_EQ(source.num_reads, 3 + 1 + 1);
}

// Hangs when it fails: every piece waits until the one before was told.
TEST(ReadAheadTest, WhoWaitsIsToldOfEachPiece) {
  const auto backend = CreateReferenceBackend();
  PatternSource source;
  source.waits_for_ticks = true;
  constexpr int64_t kPieces = 3;
  const std::vector<TensorGroup> groups = {
      {{.name = "large", .rows = 1, .cols = kPieces * TensorSource::kPieceBytes / 2}}};
  auto reader = ReadAhead::Start(source, groups, *backend);
  ASSERT_TRUE(reader.ok()) << reader.status();

  std::vector<int64_t> told;
  auto spans = (*reader)->Next([&](int64_t bytes) {
    told.push_back(bytes);
    ++source.num_ticks;
  });

  ASSERT_TRUE(spans.ok()) << spans.status();
  EXPECT_EQ(source.num_reads, kPieces);
  EXPECT_EQ(told,
            std::vector<int64_t>({0, TensorSource::kPieceBytes, 2 * TensorSource::kPieceBytes}));
}

TEST(ReadAheadTest, AnErrorComesWithItsGroup) {
  const auto backend = CreateReferenceBackend();
  PatternSource source;
  source.missing = "second";
  const std::vector<TensorGroup> groups = {
      {{.name = "first", .cols = 5}},
      {{.name = "fine", .cols = 7}, {.name = "second", .cols = 9}},
      {{.name = "third", .cols = 5}}};
  auto reader = ReadAhead::Start(source, groups, *backend);
  ASSERT_TRUE(reader.ok()) << reader.status();
  auto spans = (*reader)->Next(Nothing);
  ASSERT_TRUE(spans.ok()) << spans.status();
  ExpectPattern(groups[0], *spans);
  EXPECT_EQ((*reader)->Next(Nothing).status(), absl::DataLossError("second"));
}

TEST(ReadAheadTest, MayBeGivenUp) {
  const auto backend = CreateReferenceBackend();
  const PatternSource source;
  const auto groups = RandomGroups(3, 60, 700);
  auto reader = ReadAhead::Start(source, groups, *backend, /*min_ring_bytes=*/0);
  ASSERT_TRUE(reader.ok()) << reader.status();
  ASSERT_TRUE((*reader)->Next(Nothing).ok());
}

TEST(ReadAheadTest, NothingToRead) {
  const auto backend = CreateReferenceBackend();
  const PatternSource source;
  auto reader = ReadAhead::Start(source, {{}}, *backend);
  ASSERT_TRUE(reader.ok()) << reader.status();
  auto spans = (*reader)->Next(Nothing);
  ASSERT_TRUE(spans.ok()) << spans.status();
  EXPECT_TRUE(spans->empty());
}

}  // namespace
}  // namespace quire
