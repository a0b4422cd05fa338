// Two ranks, which are threads on two emulated devices, over a fake of NCCL (fake_nccl.h).
#include "kernels/gpu/nccl_group.h"

#include <chrono>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "common/base/error.h"
#include "common/base/exit_codes.h"
#include "kernels/cuda/device/element.h"
#include "kernels/gpu/gpu_library.h"
#include "tests/support/fake_nccl_api.h"
#include "tests/support/rank_group.h"

namespace quire {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

constexpr int32_t kSize = 2;
constexpr int64_t kLong = 20 * kNanosPerSecond;
constexpr auto kMoment = std::chrono::milliseconds(20);

gpu::DeviceInfo DeviceOf(int32_t index) {
  gpu::DeviceInfo info;
  EXPECT_EQ(FakeNcclApi().query_device(index, &info), 0);
  return info;
}

// The objects of a rank, used on its own thread.
struct Rank {
  int32_t number = 0;
  gpu::Stream stream = nullptr;
  std::unique_ptr<NcclGroup> nccl;
  absl::Status joined;
  int num_ends = 0;  // calls of before_end
};

// Floats of a rank on its device.
class OnDevice {
 public:
  OnDevice(gpu::Stream stream, const std::vector<float>& values)
      : stream_(stream), size_(values.size()) {
    EXPECT_EQ(FakeNcclApi().allocate(&data_, bytes()), 0);
    EXPECT_EQ(FakeNcclApi().copy_to_device(data_, values.data(), bytes(), stream_), 0);
  }
  ~OnDevice() { EXPECT_EQ(FakeNcclApi().free(data_), 0); }
  OnDevice(const OnDevice&) = delete;
  OnDevice& operator=(const OnDevice&) = delete;

  float* data() { return static_cast<float*>(data_); }
  AllReduceParams Sum() {
    return {.num_rows = 1, .width = static_cast<int64_t>(size_), .data = data_};
  }
  std::vector<float> Read() {
    std::vector<float> values(size_);
    EXPECT_EQ(FakeNcclApi().copy_to_host(values.data(), data_, bytes(), stream_), 0);
    EXPECT_EQ(FakeNcclApi().synchronize(stream_), 0);
    return values;
  }

 private:
  size_t bytes() const { return size_ * sizeof(float); }

  gpu::Stream stream_;
  size_t size_;
  void* data_ = nullptr;
};

class NcclGroupTest : public testing::Test {
 protected:
  void SetUp() override { Reset(); }
  void TearDown() override {
    EXPECT_THAT(fake_.take_mistakes(), IsEmpty());
    Reset();
  }

  void Reset() {
    fake_.connects = true;
    fake_.operations_left = -1;
    fake_.failing_rank = -1;
    fake_.num_connected = 0;
    fake_.num_ended = 0;
    fake_.most_under_way = 0;
    ranks_ = ConnectRanks(kSize);
  }

  // Joins the ranks and calls fn on a thread for each. `apis` and `devices` have one entry a rank.
  void OnRanks(const std::function<void(Rank&)>& fn,
               const std::vector<const gpu::GpuApi*>& apis = {&FakeNcclApi(), &FakeNcclApi()},
               const std::vector<int32_t>& devices = {0, 1},
               int64_t timeout_ns = kLong) {
    OnAllRanks(kSize, [&](int32_t number) {
      const auto i = static_cast<size_t>(number);
      Rank rank = {.number = number};
      EXPECT_EQ(apis[i]->set_device(devices[i]), 0);
      EXPECT_EQ(apis[i]->create_stream(&rank.stream), 0);
      GpuScratch parts(*apis[i]);
      auto nccl = NcclGroup::Join(
          {*apis[i], DeviceOf(devices[i])},
          rank.stream,
          ranks_[i],
          parts,
          [&rank] { ++rank.num_ends; },
          timeout_ns);
      rank.joined = nccl.status();
      rank.nccl = nccl.ok() ? *std::move(nccl) : nullptr;
      fn(rank);
      rank.nccl.reset();
      EXPECT_EQ(apis[i]->destroy_stream(rank.stream), 0);
    });
  }

  // Checks that new ranks, or the same ones anew, can join and compute.
  void ExpectWorksAnew() {
    Reset();
    OnRanks([](Rank& rank) {
      ASSERT_NE(rank.nccl, nullptr);
      OnDevice data(rank.stream, {1.0F, 2.0F});
      rank.nccl->AllReduce(data.Sum());
      rank.nccl->Finish();
      EXPECT_THAT(data.Read(), ElementsAre(2.0F, 4.0F));
    });
  }

  std::string StatusOf(int32_t rank) const {
    const absl::Status status = ranks_[static_cast<size_t>(rank)]->status();
    EXPECT_EQ(ReasonOf(status), "GROUP_BROKEN");
    return std::string(status.message());
  }

  gpu::FakeNccl& fake_ = FakeNcclLibrary();
  std::vector<std::shared_ptr<Communicator>> ranks_;
};

TEST_F(NcclGroupTest, RanksWithGpusOfTheirOwnAddUp) {
  OnRanks([](Rank& rank) {
    ASSERT_NE(rank.nccl, nullptr) << rank.joined;
    const auto own = static_cast<float>(rank.number);
    OnDevice data(rank.stream, {own, 10.0F + own, 100.0F});
    rank.nccl->AllReduce(data.Sum());
    rank.nccl->AllReduce(data.Sum());
    rank.nccl->Finish();
    EXPECT_THAT(data.Read(), ElementsAre(2.0F, 42.0F, 400.0F));
  });
  EXPECT_EQ(fake_.num_connected, kSize);
  EXPECT_EQ(fake_.num_ended, kSize);
}

TEST_F(NcclGroupTest, SumsAreOfTheActivationsType) {
  for (const DType dtype : {DType::kBF16, DType::kF16}) {
    OnRanks([&](Rank& rank) {
      // A float holds the bits of two 16-bit numbers.
      const auto two = [&](float value) {
        const uint16_t bits = dtype == DType::kF16 ? gpu::FromFloat<gpu::F16>(value).bits
                                                   : gpu::FromFloat<gpu::Bf16>(value).bits;
        const uint32_t both = bits | static_cast<uint32_t>(bits) << 16;
        float pair = 0.0F;
        std::memcpy(&pair, &both, sizeof(pair));
        return pair;
      };
      OnDevice data(rank.stream, {two(1.5F), two(3.0F)});
      rank.nccl->AllReduce({.num_rows = 2, .width = 2, .dtype = dtype, .data = data.data()});
      rank.nccl->Finish();
      EXPECT_THAT(data.Read(), ElementsAre(two(3.0F), two(6.0F)));
    });
    Reset();
  }
}

TEST_F(NcclGroupTest, RowsThatOneRankHasKeepTheirBits) {
  OnRanks([](Rank& rank) {
    OnDevice data(
        rank.stream,
        rank.number == 1 ? std::vector<float>{-0.0F, 5.0F} : std::vector<float>{0.0F, 0.0F});
    rank.nccl->AllReduce({.num_rows = 2,
                          .width = 2,
                          .merge = Merge::kDisjoint,
                          .dtype = DType::kBF16,
                          .data = data.data()});
    rank.nccl->Finish();
    const std::vector<float> read = data.Read();
    EXPECT_TRUE(std::signbit(read[0]));
    EXPECT_THAT(read, ElementsAre(-0.0F, 5.0F));
  });
}

TEST_F(NcclGroupTest, GatherPutsColumnsTogetherOnRankZero) {
  OnRanks([](Rank& rank) {
    const std::vector<int64_t> widths = {2, 3};
    OnDevice part(rank.stream,
                  rank.number == 0 ? std::vector<float>{1, 2, 11, 12}
                                   : std::vector<float>{3, 4, 5, 13, 14, 15});
    OnDevice whole(rank.stream, std::vector<float>(10));
    for (int i = 0; i < 2; ++i) {
      rank.nccl->Gather({.num_rows = 2,
                         .widths = widths,
                         .part = part.data(),
                         .whole = rank.number == 0 ? whole.data() : nullptr});
    }
    rank.nccl->Finish();
    if (rank.number == 0) {
      EXPECT_THAT(whole.Read(), ElementsAre(1, 2, 3, 4, 5, 11, 12, 13, 14, 15));
    }
  });
}

// The emulated device ends a test that frees memory, which waits for the device, while an operation
// waits for another rank.
TEST_F(NcclGroupTest, AGatherThatNeedsMoreMemoryWaitsWithAWayOutFirst) {
  OnRanks([](Rank& rank) {
    OnDevice data(rank.stream, std::vector<float>(64, 1.0F));
    OnDevice whole(rank.stream, std::vector<float>(128));
    for (const int64_t width : {1, 64}) {
      const std::vector<int64_t> widths = {width, width};
      if (rank.number == 1) {
        std::this_thread::sleep_for(kMoment);
      }
      rank.nccl->AllReduce(data.Sum());
      rank.nccl->Gather({.num_rows = 1,
                         .widths = widths,
                         .part = data.data(),
                         .whole = rank.number == 0 ? whole.data() : nullptr});
    }
    rank.nccl->Finish();
    if (rank.number == 0) {
      EXPECT_THAT(whole.Read(), testing::Each(4.0F));
    }
  });
}

TEST_F(NcclGroupTest, AStreamIsNotFilledWithOperationsThatWait) {
  OnRanks([](Rank& rank) {
    OnDevice data(rank.stream, {0.0F});
    for (int i = 0; i < 300; ++i) {
      rank.nccl->AllReduce(data.Sum());
    }
    rank.nccl->Finish();
  });
  EXPECT_LE(fake_.most_under_way, kSize * 64);
  EXPECT_GE(fake_.most_under_way, 64) << "it does not wait for each one either";
}

// Records n sums on the rank's stream. Returns null if the group breaks meanwhile.
gpu::Graph RecordSums(Rank& rank, OnDevice& data, int count) {
  gpu::Graph graph = nullptr;
  EXPECT_EQ(FakeNcclApi().begin_graph(rank.stream), 0);
  rank.nccl->BeginRecording();
  for (int i = 0; i < count; ++i) {
    rank.nccl->AllReduce(data.Sum());
  }
  const bool is_whole = rank.nccl->is_whole();
  EXPECT_EQ(rank.num_ends, 0) << "a recording forbids to wait for the stream";
  EXPECT_EQ(FakeNcclApi().end_graph(rank.stream, &graph), 0);
  rank.nccl->EndRecording();
  if (!is_whole) {
    EXPECT_EQ(FakeNcclApi().destroy_graph(graph), 0);
    return nullptr;
  }
  return graph;
}

// There are more sums than may be under way on a stream, for which nothing waits in a recording.
TEST_F(NcclGroupTest, RecordedSumsAreMadeAtEachLaunch) {
  constexpr int kSums = 70;
  OnRanks([](Rank& rank) {
    OnDevice data(rank.stream, {0x1p-70F});
    rank.nccl->AllReduce(data.Sum());
    rank.nccl->Finish();
    const gpu::Graph graph = RecordSums(rank, data, kSums);
    ASSERT_NE(graph, nullptr);
    EXPECT_THAT(data.Read(), ElementsAre(0x1p-69F)) << "a recording runs nothing";

    for (int launch = 0; launch < 2; ++launch) {
      OnDevice one(rank.stream, {1.0F});
      EXPECT_EQ(FakeNcclApi().launch_graph(graph, rank.stream), 0);
      rank.nccl->CountLaunch();
      rank.nccl->AllReduce(one.Sum());
      rank.nccl->Finish();
      EXPECT_THAT(data.Read(), ElementsAre(std::ldexp(0x1p-69F, kSums * (launch + 1))));
      EXPECT_THAT(one.Read(), ElementsAre(2.0F));
    }
    EXPECT_EQ(FakeNcclApi().destroy_graph(graph), 0);
  });
}

// Rank 1 launches nothing.
TEST_F(NcclGroupTest, ALostRankReleasesALaunchedGraph) {
  OnRanks([this](Rank& rank) {
    OnDevice data(rank.stream, {1.0F});
    const gpu::Graph graph = RecordSums(rank, data, 2);
    ASSERT_NE(graph, nullptr);
    if (rank.number == 1) {
      std::this_thread::sleep_for(kMoment);
      ranks_[1]->Abort();
    } else {
      EXPECT_EQ(FakeNcclApi().launch_graph(graph, rank.stream), 0);
      rank.nccl->CountLaunch();
      rank.nccl->Finish();
      EXPECT_THAT(StatusOf(0), HasSubstr("rank 1: the other end has closed"));
      EXPECT_EQ(rank.num_ends, 1) << "graphs must go before the communicator";
    }
    EXPECT_EQ(FakeNcclApi().destroy_graph(graph), 0);
  });
  EXPECT_EQ(fake_.num_ended, kSize);
  ExpectWorksAnew();
}

// To end the communicator the host asks the stream, which a recording forbids.
TEST_F(NcclGroupTest, AGroupThatBreaksInARecordingEndsAfterIt) {
  OnRanks([this](Rank& rank) {
    OnDevice data(rank.stream, {1.0F});
    rank.nccl->AllReduce(data.Sum());
    rank.nccl->Finish();
    if (rank.number == 1) {
      fake_.failing_rank = 1;
    }
    const gpu::Graph graph = RecordSums(rank, data, 2);
    if (rank.number == 1) {
      EXPECT_EQ(graph, nullptr);
      EXPECT_EQ(rank.num_ends, 1);
      EXPECT_FALSE(rank.nccl->is_whole());
      data.Read();  // the stream is released
      StatusOf(1);
    } else if (graph != nullptr) {
      EXPECT_EQ(FakeNcclApi().launch_graph(graph, rank.stream), 0);
      rank.nccl->CountLaunch();
      rank.nccl->Finish();
      StatusOf(0);
      EXPECT_EQ(FakeNcclApi().destroy_graph(graph), 0);
    }
  });
  EXPECT_EQ(fake_.num_ended, kSize);
  ExpectWorksAnew();
}

TEST_F(NcclGroupTest, RanksThatShareAGpuDoWithoutIt) {
  OnRanks(
      [](Rank& rank) {
        EXPECT_TRUE(rank.joined.ok()) << rank.joined;
        EXPECT_EQ(rank.nccl, nullptr);
      },
      {&FakeNcclApi(), &FakeNcclApi()},
      {1, 1});
  EXPECT_EQ(fake_.num_connected, 0);
}

TEST_F(NcclGroupTest, WhereOneRankHasNoneNobodyUsesIt) {
  OnRanks(
      [](Rank& rank) {
        EXPECT_TRUE(rank.joined.ok()) << rank.joined;
        EXPECT_EQ(rank.nccl, nullptr);
      },
      {&FakeNcclApi(), &ApiWithoutNccl()});
  EXPECT_EQ(fake_.num_connected, 0);
}

TEST_F(NcclGroupTest, ConnectingEndsInTime) {
  fake_.connects = false;
  OnRanks([](Rank& rank) { EXPECT_EQ(ReasonOf(rank.joined), "GROUP_BROKEN") << rank.joined; },
          {&FakeNcclApi(), &FakeNcclApi()},
          {0, 1},
          /*timeout_ns=*/50 * kNanosPerMilli);
  EXPECT_THAT(StatusOf(0) + StatusOf(1), HasSubstr("NCCL: connect: timed out"));
  EXPECT_EQ(fake_.num_ended, kSize);
  ExpectWorksAnew();
}

// Rank 1 never comes to the operation.
TEST_F(NcclGroupTest, ALostRankReleasesTheStreamThatWaitsForIt) {
  OnRanks([this](Rank& rank) {
    if (rank.number == 1) {
      std::this_thread::sleep_for(kMoment);
      ranks_[1]->Abort();
      return;
    }
    OnDevice data(rank.stream, {1.0F});
    rank.nccl->AllReduce(data.Sum());
    rank.nccl->Finish();
    EXPECT_THAT(StatusOf(0), HasSubstr("rank 1: the other end has closed"));
    rank.nccl->AllReduce(data.Sum());  // nothing
    rank.nccl->Finish();
    data.Read();
  });
  EXPECT_EQ(fake_.num_ended, kSize);
  ExpectWorksAnew();
}

TEST_F(NcclGroupTest, AbortFromAnotherThreadReleasesTheStream) {
  fake_.operations_left = 0;
  OnRanks([this](Rank& rank) {
    OnDevice data(rank.stream, {1.0F});
    std::thread aborts([&] {
      std::this_thread::sleep_for(kMoment);
      ranks_[0]->Abort();
    });
    rank.nccl->AllReduce(data.Sum());
    rank.nccl->Finish();
    aborts.join();
    StatusOf(rank.number);
  });
  EXPECT_EQ(fake_.num_ended, kSize);
  ExpectWorksAnew();
}

TEST_F(NcclGroupTest, AnAsynchronousErrorOfOneRankBreaksTheGroupOnAll) {
  OnRanks([this](Rank& rank) {
    uint32_t is_here = 1;  // no rank goes on before both are connected
    ranks_[static_cast<size_t>(rank.number)]->AllReduceBits({&is_here, 1});
    fake_.failing_rank = 1;
    OnDevice data(rank.stream, {1.0F});
    rank.nccl->AllReduce(data.Sum());
    rank.nccl->Finish();
    StatusOf(rank.number);
  });
  EXPECT_THAT(StatusOf(1), HasSubstr("rank 1: NCCL: AllReduce: NCCL failed"));
  EXPECT_THAT(StatusOf(0), HasSubstr("rank 1"));
  EXPECT_EQ(fake_.num_ended, kSize);
  ExpectWorksAnew();
}

// A waiting rank publishes which rank it waits for, so that a rank that does not wait is found at
// the end.
TEST_F(NcclGroupTest, WhoWaitsSaysSo) {
  const auto waits_for = std::make_shared<std::atomic<int32_t>>(-1);
  auto [first, second] = ConnectLinks(Transport::kShared);
  std::vector<PeerLink> links;
  links.push_back(std::move(first));
  ranks_[0] = std::make_shared<Communicator>(0, std::move(links), waits_for);
  links.clear();
  links.push_back(std::move(second));
  ranks_[1] = std::make_shared<Communicator>(1, std::move(links));
  OnRanks([&](Rank& rank) {
    OnDevice data(rank.stream, {1.0F});
    if (rank.number == 1) {
      while (*waits_for != 1) {
        std::this_thread::yield();
      }
    }
    rank.nccl->AllReduce(data.Sum());
    rank.nccl->Finish();
    EXPECT_THAT(data.Read(), ElementsAre(2.0F));
  });
  EXPECT_EQ(*waits_for, -1);
}

// Checks that the fake of NCCL finds mistakes that the real one would punish.
class FakeNcclTest : public testing::Test {
 protected:
  void SetUp() override {
    EXPECT_EQ(api_.set_device(0), 0);
    EXPECT_EQ(api_.create_stream(&stream_), 0);
    EXPECT_EQ(api_.open_nccl(nullptr), 0);
    EXPECT_EQ(api_.make_device_group_id(&id_), 0);
    for (int32_t rank = 0; rank < kSize; ++rank) {
      EXPECT_EQ(api_.begin_device_group(id_, rank, kSize, &group_[rank]), 0);
    }
    for (void* group : group_) {
      Settle(group);
    }
  }
  void TearDown() override {
    for (void* group : group_) {
      api_.end_device_group(group);
    }
    fake_.take_mistakes();
    EXPECT_EQ(api_.destroy_stream(stream_), 0);
  }

  void Settle(void* group) {
    bool is_settled = false;
    while (!is_settled) {
      ASSERT_EQ(api_.poll_device_group(group, &is_settled), 0);
    }
  }
  int Reduce(int32_t rank, int64_t count) {
    return api_.all_reduce_over_group(
        group_[rank], nullptr, count, DType::kF32, Merge::kSum, stream_);
  }
  void ExpectMistake(int error, const std::string& what) {
    EXPECT_LE(error, gpu::kNcclError);
    EXPECT_THAT(fake_.take_mistakes(), ElementsAre(HasSubstr(what)));
  }

  gpu::FakeNccl& fake_ = FakeNcclLibrary();
  const gpu::GpuApi& api_ = FakeNcclApi();
  gpu::Stream stream_ = nullptr;
  gpu::DeviceGroupId id_ = {};
  void* group_[kSize] = {};  // NOLINT(modernize-avoid-c-arrays)
};

TEST_F(FakeNcclTest, RanksThatDifferAreAMistake) {
  EXPECT_EQ(Reduce(0, 4), 0);
  ExpectMistake(Reduce(1, 5), "another count");
}

TEST_F(FakeNcclTest, ACallBeforeTheLastIsSettledIsAMistake) {
  EXPECT_EQ(Reduce(0, 4), 0);
  ExpectMistake(Reduce(0, 4), "in progress");
}

TEST_F(FakeNcclTest, ACallAfterTheEndIsAMistake) {
  EXPECT_EQ(api_.end_device_group(group_[1]), 0);
  ExpectMistake(Reduce(1, 4), "has ended");
  bool is_settled = false;
  ExpectMistake(api_.poll_device_group(group_[1], &is_settled), "has ended");
  ExpectMistake(api_.end_device_group(group_[1]), "has ended");
}

TEST_F(FakeNcclTest, ASecondRankOfOneNumberIsAMistake) {
  void* group = nullptr;
  ExpectMistake(api_.begin_device_group(id_, 1, kSize, &group), "a second rank");
}

TEST_F(FakeNcclTest, AnotherCountThanTheSendersIsAMistake) {
  OnDevice data(stream_, {1.0F, 2.0F});
  const int64_t counts[] = {0, 1};
  EXPECT_EQ(api_.send_to_group(group_[1], data.data(), 2, 0, stream_), 0);
  Settle(group_[1]);
  EXPECT_EQ(api_.receive_from_group(group_[0], data.data(), counts, kSize, stream_), 0);
  Settle(group_[0]);
  EXPECT_EQ(api_.synchronize(stream_), 0);
  EXPECT_THAT(fake_.take_mistakes(), ElementsAre(HasSubstr("another count than the sender's")));
}

// Makes a group of one rank and calls `before` before the group ends.
void EndAlone(const std::function<void(gpu::Stream)>& before) {
  gpu::Stream stream = nullptr;
  FakeNcclApi().create_stream(&stream);
  auto alone = std::make_shared<Communicator>(0, std::vector<PeerLink>());
  GpuScratch parts(FakeNcclApi());
  auto nccl = NcclGroup::Join(
      {FakeNcclApi(), DeviceOf(0)}, stream, alone, parts, [] {}, kLong);
  before(stream);
  nccl->reset();
}

TEST(NcclGroupDeathTest, AnEndThatHangsEndsTheProcess) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(EndAlone([](gpu::Stream) { FakeNcclLibrary().aborts = false; }),
              testing::ExitedWithCode(kExitDevice),
              "NCCL does not end");
}

TEST(NcclGroupDeathTest, AStreamThatIsNotReleasedEndsTheProcess) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  const auto put_what_never_ends = [](gpu::Stream stream) {
    FakeNcclLibrary().enqueue(
        stream, nullptr, [] { return false; }, [] { return 0; });
  };
  EXPECT_EXIT(
      EndAlone(put_what_never_ends), testing::ExitedWithCode(kExitDevice), "NCCL does not end");
}

}  // namespace
}  // namespace quire
