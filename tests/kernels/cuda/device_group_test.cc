// A group of one rank: NCCL's own on a device, and in its place fake_nccl.h where the devices are
// emulated.
#include "kernels/cuda/device_group.h"

#include <cstdint>
#include <cstdio>
#include <vector>

#include "gtest/gtest.h"

#include "kernels/cuda/device/element.h"
#include "kernels/cuda/runtime.h"
#include "tests/kernels/cuda/device_array.h"
#ifdef QUIRE_HAS_FAKE_NCCL
#include "tests/support/fake_nccl_api.h"
#endif

namespace quire::gpu {
namespace {

int Open() {
#ifdef QUIRE_HAS_FAKE_NCCL
  return FakeNcclApi().open_nccl(nullptr);
#else
  return OpenNccl(nullptr);
#endif
}

class DeviceGroupTest : public testing::Test {
 protected:
  void SetUp() override {
    if (Open() != 0) {
      GTEST_SKIP() << ErrorText(kNoNccl);
    }
    ASSERT_EQ(CreateStream(&stream_), 0);
    Begin();
  }
  void TearDown() override {
    if (stream_ != nullptr) {
      EXPECT_EQ(EndDeviceGroup(group_), 0);
      EXPECT_EQ(Synchronize(stream_), 0);
      EXPECT_EQ(DestroyStream(stream_), 0);
    }
  }

  void Begin() {
    DeviceGroupId id;
    ASSERT_EQ(MakeDeviceGroupId(&id), 0);
    ASSERT_EQ(BeginDeviceGroup(id, 0, 1, &group_), 0);
    Settle();
  }

  void Settle() {
    bool is_settled = false;
    while (!is_settled) {
      ASSERT_EQ(PollDeviceGroup(group_, &is_settled), 0);
    }
  }

  template <typename T>
  void ExpectSumOfOne(DType dtype, Merge merge) {
    std::vector<T> values;
    for (int i = 0; i < 1000; ++i) {
      values.push_back(FromFloat<T>(static_cast<float>(i - 500)));
    }
    DeviceArray<T> data(values);
    ASSERT_EQ(AllReduceOverGroup(group_, data.data(), data.size(), dtype, merge, stream_), 0);
    Settle();
    ASSERT_EQ(Synchronize(stream_), 0);
    const std::vector<T> sums = data.ToHost();
    for (size_t i = 0; i < values.size(); ++i) {
      ASSERT_EQ(ToFloat(sums[i]), ToFloat(values[i])) << i;
    }
  }

  Stream stream_ = nullptr;
  void* group_ = nullptr;
};

TEST_F(DeviceGroupTest, OneRankHasItsOwnSum) {
  ExpectSumOfOne<float>(DType::kF32, Merge::kSum);
  ExpectSumOfOne<Bf16>(DType::kBF16, Merge::kSum);
  ExpectSumOfOne<F16>(DType::kF16, Merge::kSum);
  ExpectSumOfOne<Bf16>(DType::kBF16, Merge::kDisjoint);
}

TEST_F(DeviceGroupTest, IsBuiltAnewAfterItsEnd) {
  for (int i = 0; i < 3; ++i) {
    ASSERT_EQ(EndDeviceGroup(group_), 0);
    Begin();
    ExpectSumOfOne<float>(DType::kF32, Merge::kSum);
  }
}

TEST(CopyColumnsTest, PutsRowsIntoColumns) {
  const DeviceArray<float> from(std::vector<float>{1, 2, 3, 4});
  DeviceArray<float> to(std::vector<float>(10, 0.0F));
  ASSERT_EQ(CopyColumns({.to = to.data() + 1,
                         .to_stride = 5,
                         .from = from.data(),
                         .from_stride = 2,
                         .num_rows = 2,
                         .width = 2},
                        nullptr),
            0);
  EXPECT_EQ(to.ToHost(), (std::vector<float>{0, 1, 2, 0, 0, 0, 3, 4, 0, 0}));
}

}  // namespace
}  // namespace quire::gpu
