#include "kernels/api/row_gather.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "kernels/api/sampling.h"
#include "tests/support/random.h"
#include "tests/support/rank_group.h"

namespace quire {
namespace {

using testing::ElementsAreArray;

constexpr float kNotSent = std::numeric_limits<float>::lowest();

// Rows of a vocabulary that the ranks share out unevenly.
class RowGatherTest : public testing::TestWithParam<int32_t> {
 protected:
  int32_t size() const { return GetParam(); }

  void SetUp() override {
    for (int32_t rank = 0; rank < size(); ++rank) {
      widths_.push_back(300 + 7 * rank);
    }
    width_ = std::accumulate(widths_.begin(), widths_.end(), int64_t{0});
  }

  // Small whole numbers, so that many are equal.
  std::vector<float> RandomRows(int64_t num_rows) {
    Random random(5);
    std::vector<float> rows(static_cast<size_t>(num_rows * width_));
    for (float& value : rows) {
      value = static_cast<float>(random.Between(-200, 200));
    }
    return rows;
  }

  // Gathers the ranks' parts of the rows and returns the rows that rank 0 has then.
  std::vector<float> Gather(const std::vector<float>& rows,
                            const std::vector<int32_t>& num_candidates) {
    const auto num_rows = static_cast<int64_t>(num_candidates.size());
    const auto group = ConnectRanks(size());
    std::vector<float> whole(rows.size());
    OnAllRanks(size(), [&](int32_t rank) {
      const auto r = static_cast<size_t>(rank);
      const int64_t begin = std::accumulate(widths_.begin(), widths_.begin() + rank, int64_t{0});
      std::vector<float> part;
      for (int64_t row = 0; row < num_rows; ++row) {
        const auto first = rows.begin() + row * width_ + begin;
        part.insert(part.end(), first, first + widths_[r]);
      }
      RowGather gather;
      for (int twice = 0; twice < 2; ++twice) {  // what it keeps does no harm
        gather.Gather({.num_rows = num_rows,
                       .widths = widths_,
                       .num_candidates = num_candidates,
                       .part = part.data(),
                       .whole = rank == 0 ? whole.data() : nullptr},
                      *group[r]);
      }
    });
    return whole;
  }

  std::vector<float> Row(const std::vector<float>& rows, int64_t row) const {
    return {rows.begin() + row * width_, rows.begin() + (row + 1) * width_};
  }

  std::vector<int64_t> widths_;
  int64_t width_ = 0;
};

// The row with all but its `count` greatest values left out, ties to the lowest index.
std::vector<float> Greatest(const std::vector<float>& row, size_t count) {
  std::vector<size_t> order(row.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) { return row[a] > row[b]; });
  std::vector<float> kept(row.size(), kNotSent);
  for (size_t i = 0; i < count; ++i) {
    kept[order[i]] = row[order[i]];
  }
  return kept;
}

TEST_P(RowGatherTest, TheGreatestOfEachRowAreThereAndTheirNumberIsTheRanks) {
  const std::vector<int32_t> num_candidates = {1, 0, 5, 40, 0, 2};
  const std::vector<float> rows = RandomRows(6);

  const std::vector<float> whole = Gather(rows, num_candidates);

  for (size_t i = 0; i < num_candidates.size(); ++i) {
    SCOPED_TRACE(num_candidates[i]);
    const std::vector<float> row = Row(rows, static_cast<int64_t>(i));
    const std::vector<float> got = Row(whole, static_cast<int64_t>(i));
    const auto count = static_cast<size_t>(num_candidates[i]);
    if (count == 0) {
      EXPECT_THAT(got, ElementsAreArray(row));
      continue;
    }
    EXPECT_THAT(Greatest(got, count), ElementsAreArray(Greatest(row, count)));
    const auto num_left_out = static_cast<size_t>(std::count(got.begin(), got.end(), kNotSent));
    EXPECT_EQ(got.size() - num_left_out, count * widths_.size());
  }
}

TEST_P(RowGatherTest, WholeRowsAreSentWhereCandidatesWouldBeMost) {
  const std::vector<float> rows = RandomRows(2);

  EXPECT_THAT(Gather(rows, {76, 301}), ElementsAreArray(rows));
  EXPECT_THAT(Gather(rows, {0, 0}), ElementsAreArray(rows));
}

TEST_P(RowGatherTest, WhatIsNotFiniteSpoilsItsRowAlone) {
  for (const float spoiled : {std::nanf(""),
                              std::numeric_limits<float>::infinity(),
                              -std::numeric_limits<float>::infinity()}) {
    std::vector<float> rows = RandomRows(3);
    rows[static_cast<size_t>(2 * width_ - 1)] = spoiled;  // the last rank's, in the second row

    const std::vector<float> whole = Gather(rows, {1, 3, 1});

    const auto num_spoiled = [&](int64_t row) {
      const std::vector<float> values = Row(whole, row);
      return std::count_if(
          values.begin(), values.end(), [](float value) { return !std::isfinite(value); });
    };
    EXPECT_EQ(num_spoiled(0), 0);
    EXPECT_GE(num_spoiled(1), 1);
    EXPECT_EQ(num_spoiled(2), 0);
  }
}

TEST(NumCandidatesTest, AreThoseThatCanDecideTheRow) {
  SamplingParams params;
  const auto num_candidates = [&params] { return SamplingRow{.params = &params}.num_candidates(); };
  params.temperature = 1.0F;
  EXPECT_EQ(num_candidates(), 0);
  params.top_k = 7;
  EXPECT_EQ(num_candidates(), 7);
  params.top_k = -1;  // off, as the sampler takes it
  EXPECT_EQ(num_candidates(), 0);
  params.temperature = 0.0F;
  EXPECT_EQ(num_candidates(), 1);
  params.logit_bias = {{3, 1.0F}};
  EXPECT_EQ(num_candidates(), 0);
  params.logit_bias.clear();
  params.num_logprobs = 0;
  EXPECT_EQ(num_candidates(), 0);
}

INSTANTIATE_TEST_SUITE_P(Sizes, RowGatherTest, testing::Values(2, 4, 8));

}  // namespace
}  // namespace quire
