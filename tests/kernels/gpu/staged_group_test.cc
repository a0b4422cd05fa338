// Ranks are threads on two emulated devices; four ranks share them.
#include "kernels/gpu/staged_group.h"

#include <cstdint>
#include <cstring>
#include <span>
#include <vector>

#include "gtest/gtest.h"

#include "kernels/cuda/device/element.h"
#include "kernels/gpu/gpu_library.h"
#include "tests/support/locked_gpu_api.h"
#include "tests/support/rank_group.h"

namespace quire {
namespace {

constexpr int32_t kNumDevices = 2;

const gpu::GpuApi& Api() {
  static const gpu::GpuApi& api = LockedGpuApi((*GpuLibrary::Open("emu", 0)).api());
  return api;
}

// Bytes of a rank on its device, and back.
class OnDevice {
 public:
  OnDevice(gpu::Stream stream, const std::vector<std::byte>& bytes)
      : stream_(stream), size_(bytes.size()) {
    EXPECT_EQ(Api().allocate(&data_, size_), 0);
    EXPECT_EQ(Api().copy_to_device(data_, bytes.data(), size_, stream_), 0);
  }
  ~OnDevice() { EXPECT_EQ(Api().free(data_), 0); }
  OnDevice(const OnDevice&) = delete;
  OnDevice& operator=(const OnDevice&) = delete;

  void* data() { return data_; }
  std::vector<std::byte> Read() {
    std::vector<std::byte> bytes(size_);
    EXPECT_EQ(Api().copy_to_host(bytes.data(), data_, size_, stream_), 0);
    EXPECT_EQ(Api().synchronize(stream_), 0);
    return bytes;
  }

 private:
  gpu::Stream stream_;
  size_t size_;
  void* data_ = nullptr;
};

template <typename T>
std::vector<std::byte> BytesOf(const std::vector<T>& values) {
  std::vector<std::byte> bytes(values.size() * sizeof(T));
  std::memcpy(bytes.data(), values.data(), bytes.size());
  return bytes;
}

class StagedGroupTest : public testing::TestWithParam<int32_t> {
 protected:
  // Calls fn(rank, stream, group) on a thread for each rank, on its device.
  template <typename Fn>
  void OnRanks(const Fn& fn) {
    const auto ranks = ConnectRanks(size());
    OnAllRanks(size(), [&](int32_t rank) {
      EXPECT_EQ(Api().set_device(rank % kNumDevices), 0);
      gpu::Stream stream = nullptr;
      EXPECT_EQ(Api().create_stream(&stream), 0);
      {
        StagedGroup group(Api(), stream, ranks[static_cast<size_t>(rank)]);
        fn(rank, stream, group);
      }
      EXPECT_EQ(Api().destroy_stream(stream), 0);
    });
  }

  // The result of the AllReduce on every rank, by rank.
  std::vector<std::vector<std::byte>> Reduce(Merge merge,
                                             DType dtype,
                                             const std::vector<std::vector<std::byte>>& of_rank) {
    std::vector<std::vector<std::byte>> results(of_rank.size());
    OnRanks([&](int32_t rank, gpu::Stream stream, StagedGroup& group) {
      const auto i = static_cast<size_t>(rank);
      OnDevice data(stream, of_rank[i]);
      group.AllReduce({.num_rows = 1,
                       .width = static_cast<int64_t>(of_rank[i].size()) / SizeOf(dtype),
                       .merge = merge,
                       .dtype = dtype,
                       .data = data.data()});
      results[i] = data.Read();
    });
    return results;
  }

  template <typename T>
  void ExpectSum(DType dtype) {
    // 256 + 1 + 1 is 258 in fp32, and 256 where bf16 rounds every sum.
    std::vector<std::vector<std::byte>> parts;
    std::vector<float> sums(8, 0.0F);
    for (int32_t rank = 0; rank < size(); ++rank) {
      std::vector<T> part;
      for (size_t i = 0; i < sums.size(); ++i) {
        const float value = rank == 0 ? 256.0F : static_cast<float>(i);
        part.push_back(gpu::FromFloat<T>(value));
        sums[i] += value;
      }
      parts.push_back(BytesOf(part));
    }
    std::vector<T> expected;
    expected.reserve(sums.size());
    for (const float sum : sums) {
      expected.push_back(gpu::FromFloat<T>(sum));
    }
    for (const auto& result : Reduce(Merge::kSum, dtype, parts)) {
      EXPECT_EQ(result, BytesOf(expected));
    }
  }

  int32_t size() const { return GetParam(); }
};

TEST_P(StagedGroupTest, SumsAreTakenInFp32AndRoundedOnce) {
  ExpectSum<float>(DType::kF32);
  ExpectSum<gpu::Bf16>(DType::kBF16);
  ExpectSum<gpu::F16>(DType::kF16);
}

// 1 + 2^-24 is 1, and 1 + (2^-24 + 2^-24) is not: the order shows.
TEST_P(StagedGroupTest, SumsOfFp32AreThoseOfTheCommunicator) {
  const std::vector<float> values = {1.0F, 0x1p-24F, 0x1p-24F, 0x1p-24F};
  std::vector<std::vector<std::byte>> parts;
  parts.reserve(static_cast<size_t>(size()));
  for (int32_t rank = 0; rank < size(); ++rank) {
    parts.push_back(BytesOf(std::vector<float>(4, values[static_cast<size_t>(rank)])));
  }
  const float expected =
      size() == 2 ? values[0] + values[1] : (values[0] + values[1]) + (values[2] + values[3]);
  for (const auto& result : Reduce(Merge::kSum, DType::kF32, parts)) {
    EXPECT_EQ(result, BytesOf(std::vector<float>(4, expected)));
  }
}

TEST_P(StagedGroupTest, RowsThatOneRankHasKeepTheirBits) {
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    // -0 and a NaN of a certain kind, on the last rank.
    std::vector<std::vector<std::byte>> parts(static_cast<size_t>(size()),
                                              std::vector<std::byte>(32));
    parts.back() = BytesOf(std::vector<uint32_t>(8, 0x8000'0000));
    parts.back()[4] = std::byte{0x5A};
    parts.back()[7] = std::byte{0xFF};
    for (const auto& result : Reduce(Merge::kDisjoint, dtype, parts)) {
      EXPECT_EQ(result, parts.back());
    }
  }
}

TEST_P(StagedGroupTest, GatherPutsColumnsTogetherOnRankZero) {
  constexpr int64_t kRows = 3;
  const std::vector<int64_t> widths = {5, 3, 4, 6};
  const std::span<const int64_t> used(widths.data(), static_cast<size_t>(size()));
  std::vector<float> expected;
  for (int64_t row = 0; row < kRows; ++row) {
    for (size_t rank = 0; rank < used.size(); ++rank) {
      for (int64_t i = 0; i < used[rank]; ++i) {
        expected.push_back(static_cast<float>(row * 100 + static_cast<int64_t>(rank) * 10 + i));
      }
    }
  }
  std::vector<std::byte> result;
  OnRanks([&](int32_t rank, gpu::Stream stream, StagedGroup& group) {
    std::vector<float> part;
    for (int64_t row = 0; row < kRows; ++row) {
      for (int64_t i = 0; i < used[static_cast<size_t>(rank)]; ++i) {
        part.push_back(static_cast<float>(row * 100 + int64_t{rank} * 10 + i));
      }
    }
    OnDevice mine(stream, BytesOf(part));
    OnDevice whole(stream, std::vector<std::byte>(expected.size() * sizeof(float)));
    group.Gather({.num_rows = kRows,
                  .widths = used,
                  .part = static_cast<const float*>(mine.data()),
                  .whole = rank == 0 ? static_cast<float*>(whole.data()) : nullptr});
    if (rank == 0) {
      result = whole.Read();
    }
  });
  EXPECT_EQ(result, BytesOf(expected));
}

// Each operation begins while the copy of the one before may still be under way.
TEST_P(StagedGroupTest, OperationsFollowEachOtherWithoutAWait) {
  std::vector<std::byte> last;
  OnRanks([&](int32_t rank, gpu::Stream stream, StagedGroup& group) {
    OnDevice small(stream, BytesOf(std::vector<float>(16, 1.0F)));
    OnDevice large(stream, BytesOf(std::vector<float>(4096, 1.0F)));
    for (OnDevice* data : {&small, &large, &small}) {
      const int64_t width = data == &small ? 16 : 4096;
      group.AllReduce({.num_rows = 1, .width = width, .data = data->data()});
    }
    if (rank == 0) {
      last = small.Read();
    }
  });
  const auto sum = static_cast<float>(size() * size());
  EXPECT_EQ(last, BytesOf(std::vector<float>(16, sum)));
}

// The group frees its buffers when it ends, so its last copy must have read them by then.
TEST_P(StagedGroupTest, TheLastCopyIsDoneWhenAGroupEnds) {
  const auto ranks = ConnectRanks(size());
  OnAllRanks(size(), [&](int32_t rank) {
    EXPECT_EQ(Api().set_device(rank % kNumDevices), 0);
    gpu::Stream stream = nullptr;
    EXPECT_EQ(Api().create_stream(&stream), 0);
    {
      OnDevice data(stream, BytesOf(std::vector<float>(16, 1.0F)));
      StagedGroup(Api(), stream, ranks[static_cast<size_t>(rank)])
          .AllReduce({.num_rows = 1, .width = 16, .data = data.data()});
      EXPECT_EQ(data.Read(), BytesOf(std::vector<float>(16, static_cast<float>(size()))));
    }
    EXPECT_EQ(Api().destroy_stream(stream), 0);
  });
}

INSTANTIATE_TEST_SUITE_P(Sizes, StagedGroupTest, testing::Values(2, 4));

}  // namespace
}  // namespace quire
