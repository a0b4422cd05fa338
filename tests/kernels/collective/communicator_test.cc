#include "kernels/collective/communicator.h"

#include <chrono>
#include <cmath>
#include <memory>
#include <span>
#include <string>
#include <thread>
#include <tuple>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "common/base/error.h"
#include "tests/support/random.h"
#include "tests/support/rank_group.h"

namespace quire {
namespace {

using testing::Each;
using testing::ElementsAreArray;
using testing::HasSubstr;

class CommunicatorTest : public testing::TestWithParam<std::tuple<Transport, int32_t>> {
 protected:
  int32_t size() const { return std::get<1>(GetParam()); }
  size_t num_ranks() const { return static_cast<size_t>(size()); }

  std::vector<std::shared_ptr<Communicator>> group_ = ConnectRanks(size(), std::get<0>(GetParam()));
};

// Numbers of very different size, so that another order of a sum has other bits.
std::vector<float> RoughNumbers(Random& random, size_t count) {
  std::vector<float> numbers;
  for (size_t i = 0; i < count; ++i) {
    numbers.push_back(
        static_cast<float>(std::ldexp(random.Between(-1000, 1000), random.Between(-20, 20))));
  }
  return numbers;
}

// The sum of neighbours, then of neighbouring sums, and so on.
float TreeSum(std::vector<float> values) {
  while (values.size() > 1) {
    for (size_t i = 0; i < values.size() / 2; ++i) {
      values[i] = values[2 * i] + values[2 * i + 1];
    }
    values.resize(values.size() / 2);
  }
  return values.front();
}

TEST_P(CommunicatorTest, SumsAreOneBinaryTree) {
  Random random(1);
  for (const size_t count : {size_t{0}, size_t{1}, size_t{1001}, size_t{300'001}}) {
    std::vector<std::vector<float>> data;
    std::vector<float> sums(count);
    for (size_t rank = 0; rank < num_ranks(); ++rank) {
      data.push_back(RoughNumbers(random, count));
    }
    for (size_t i = 0; i < count; ++i) {
      std::vector<float> values;
      for (const std::vector<float>& of_rank : data) {
        values.push_back(of_rank[i]);
      }
      sums[i] = TreeSum(values);
    }
    OnAllRanks(size(), [&](int32_t rank) {
      const auto i = static_cast<size_t>(rank);
      group_[i]->AllReduce(data[i]);
    });
    EXPECT_THAT(data, Each(sums)) << count;
  }
}

TEST_P(CommunicatorTest, BitsOfOneRankArriveAsTheyAre) {
  const std::vector<uint32_t> bits = {0x80000000, 0x7FC12345, 1, 0};
  std::vector<std::vector<uint32_t>> data(num_ranks(), std::vector<uint32_t>(bits.size()));
  data.back() = bits;
  OnAllRanks(size(), [&](int32_t rank) {
    const auto i = static_cast<size_t>(rank);
    group_[i]->AllReduceBits(data[i]);
  });
  EXPECT_THAT(data, Each(bits));
}

TEST_P(CommunicatorTest, GatherPutsColumnsOfAllRanksTogether) {
  constexpr int64_t kRows = 5;
  std::vector<int64_t> widths;
  int64_t width = 0;
  for (int64_t rank = 0; rank < size(); ++rank) {
    widths.push_back(rank == 1 ? 0 : 3 + rank);  // one has nothing
    width += widths.back();
  }
  std::vector<float> whole(static_cast<size_t>(kRows * width));
  OnAllRanks(size(), [&](int32_t rank) {
    std::vector<float> part;
    for (int64_t row = 0; row < kRows; ++row) {
      for (int64_t i = 0; i < widths[static_cast<size_t>(rank)]; ++i) {
        part.push_back(static_cast<float>(10000 * row + 100 * rank + i));
      }
    }
    group_[static_cast<size_t>(rank)]->Gather(
        kRows, widths, part.data(), rank == 0 ? whole.data() : nullptr);
  });
  std::vector<float> expected;
  for (int64_t row = 0; row < kRows; ++row) {
    for (int64_t rank = 0; rank < size(); ++rank) {
      for (int64_t i = 0; i < widths[static_cast<size_t>(rank)]; ++i) {
        expected.push_back(static_cast<float>(10000 * row + 100 * rank + i));
      }
    }
  }
  EXPECT_THAT(whole, ElementsAreArray(expected));
}

TEST_P(CommunicatorTest, BroadcastBringsTheBytesOfRankZero) {
  const std::string message(100'000, 'x');
  std::vector<std::string> data(num_ranks(), std::string(message.size(), ' '));
  data[0] = message;
  OnAllRanks(size(), [&](int32_t rank) {
    const auto i = static_cast<size_t>(rank);
    group_[i]->Broadcast(std::as_writable_bytes(std::span(data[i])));
  });
  EXPECT_THAT(data, Each(message));
}

TEST_P(CommunicatorTest, ADeadRankEndsTheOperationsOfAllOthers) {
  const size_t dead = num_ranks() - 1;
  group_[dead].reset();
  OnAllRanks(size() - 1, [&](int32_t rank) {
    std::vector<float> data(1000, 1.0F);
    Communicator& self = *group_[static_cast<size_t>(rank)];
    // A rank that is no neighbour of the dead one learns of its death from the others.
    self.AllReduce(data);
    self.AllReduce(data);
    EXPECT_EQ(ReasonOf(self.status()), "GROUP_BROKEN");
    EXPECT_THAT(std::string(self.status().message()), HasSubstr("rank "));
  });
}

TEST_P(CommunicatorTest, AbortEndsWhoWaits) {
  OnAllRanks(size(), [&](int32_t rank) {
    Communicator& self = *group_[static_cast<size_t>(rank)];
    if (rank == 0) {
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
      self.Abort();
      EXPECT_THAT(std::string(self.status().message()), HasSubstr("aborted"));
      return;
    }
    std::vector<float> data(1000, 1.0F);
    self.AllReduce(data);
    EXPECT_FALSE(self.status().ok());
  });
}

// CheckLinks serves callers that wait for the ranks elsewhere than in an operation.
TEST_P(CommunicatorTest, LinksTellThatARankIsDeadWithoutAnOperation) {
  for (const auto& rank : group_) {
    EXPECT_TRUE(rank->CheckLinks());
  }
  group_.back().reset();
  Communicator& neighbour = *group_[num_ranks() - 2];
  EXPECT_FALSE(neighbour.CheckLinks());
  EXPECT_EQ(ReasonOf(neighbour.status()), "GROUP_BROKEN");
  EXPECT_EQ(neighbour.status().message(),
            "rank " + std::to_string(size() - 1) + ": the other end has closed");
}

TEST_P(CommunicatorTest, BreakKeepsItsReasonAndReachesTheOthers) {
  group_[0]->Break(Error(absl::StatusCode::kUnavailable, "GROUP_BROKEN", "a reason"));
  group_[0]->Abort();
  EXPECT_EQ(group_[0]->status().message(), "a reason");
  EXPECT_FALSE(group_[1]->CheckLinks());
}

INSTANTIATE_TEST_SUITE_P(Groups,
                         CommunicatorTest,
                         testing::Combine(testing::Values(Transport::kSocket,
                                                          Transport::kShared,
                                                          Transport::kSharedSpinning,
                                                          Transport::kTls),
                                          testing::Values(2, 4, 8)),
                         [](const auto& param_info) {
                           return NameOf(std::get<0>(param_info.param)) +
                                  std::to_string(std::get<1>(param_info.param));
                         });

TEST(BrokenCommunicatorTest, BrokenGroupLeavesDataAsItIs) {
  for (const Transport transport : {Transport::kSocket, Transport::kShared, Transport::kTls}) {
    std::vector<std::shared_ptr<Communicator>> group = ConnectRanks(2, transport);
    group[1]->Abort();
    std::vector<float> data = {1.0F, 2.0F};
    group[0]->AllReduce(data);
    EXPECT_THAT(data, testing::ElementsAre(1.0F, 2.0F));
  }
}

}  // namespace
}  // namespace quire
