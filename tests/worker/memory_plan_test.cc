#include "worker/memory_plan.h"

#include <memory>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "common/base/error.h"
#include "kernels/cpu/cpu_backend.h"

namespace quire {
namespace {

using testing::HasSubstr;

constexpr int64_t kGibibyte = int64_t{1} << 30;

class MemoryPlanTest : public testing::Test {
 protected:
  MemoryPlanTest() {
    config_.kv_cache = {.bytes = 4 * kGibibyte, .swap_space_bytes = 4 * kGibibyte};
    model_.num_layers = 2;
    model_.num_heads = 4;
    model_.num_kv_heads = 4;
    model_.head_dim = 16;
  }

  absl::StatusOr<KvCacheBudget> Plan(int64_t weight_bytes) const {
    RankShare share;
    share.kv_heads.count = 4;
    return PlanMemory(config_, host_, *backend_, model_, share, weight_bytes);
  }
  void Give() { config_.kv_cache_bytes_given = config_.swap_space_given = true; }

  std::unique_ptr<KernelBackend> backend_ = *CreateCpuBackend({.num_threads = 1});
  WorkerConfig config_;
  ModelConfig model_;
  HostMemory host_ = {.total_bytes = 20 * kGibibyte, .available_bytes = 16 * kGibibyte};
};

TEST_F(MemoryPlanTest, AllRanksOfTheMachineAreCounted) {
  Give();
  EXPECT_TRUE(CheckMemory(config_, std::nullopt, host_.total_bytes).ok());
  config_.ranks_on_host = 2;
  EXPECT_TRUE(CheckMemory(config_, std::nullopt, host_.total_bytes).ok());
  config_.ranks_on_host = 4;

  const absl::Status status = CheckMemory(config_, std::nullopt, host_.total_bytes);

  EXPECT_EQ(ReasonOf(status), "MEMORY");
  EXPECT_EQ(status.message(),
            "--swap-space: exceeds the memory left beside the KV cache, summed over 4 ranks (got "
            "17179869184 bytes, limit 4294967296)");
  config_.ranks_on_host = 8;
  EXPECT_THAT(std::string(CheckMemory(config_, std::nullopt, host_.total_bytes).message()),
              HasSubstr("--kv-cache-memory-bytes: exceeds the memory of this machine or container, "
                        "summed over 8 ranks (got 34359738368 bytes"));
}

TEST_F(MemoryPlanTest, WhatWasGivenMustFitBesideTheWeights) {
  Give();
  EXPECT_TRUE(Plan(8 * kGibibyte).ok());

  const absl::Status status = Plan(8 * kGibibyte + 1).status();

  EXPECT_EQ(ReasonOf(status), "MEMORY");
  EXPECT_EQ(status.message(),
            "weights, KV cache and swap space: exceed the memory of this worker (got 17179869185 "
            "bytes, limit 17179869184)");
}

TEST_F(MemoryPlanTest, EachRankHasItsPartOfTheMachine) {
  Give();
  config_.ranks_on_host = 2;
  EXPECT_TRUE(Plan(2 * kGibibyte).ok());
  EXPECT_EQ(ReasonOf(Plan(2 * kGibibyte + 1).status()), "MEMORY");
}

TEST_F(MemoryPlanTest, WhatWasNotGivenBecomesSmallerInstead) {
  EXPECT_EQ(Plan(kGibibyte)->swap_space_bytes, 15 * kGibibyte / 4);

  const auto tight = Plan(15 * kGibibyte);

  ASSERT_TRUE(tight.ok()) << tight.status();
  EXPECT_EQ(tight->bytes, kGibibyte / 10 * 3);
  EXPECT_EQ(tight->swap_space_bytes, kGibibyte / 4);
  EXPECT_THAT(std::string(Plan(300 * kGibibyte).status().message()),
              HasSubstr("weights, KV cache and swap space: exceed the memory of this worker"));
}

TEST_F(MemoryPlanTest, PoolsThatNoSchedulerCanUseAreRefused) {
  Give();
  config_.kv_cache.bytes = 100;
  EXPECT_THAT(std::string(Plan(0).status().message()),
              HasSubstr("KV cache: two blocks of one token do not fit"));
  config_.kv_cache.num_blocks_override = 1000;
  EXPECT_TRUE(Plan(0).ok());
  config_.kv_cache.num_blocks_override = 2'000'000'000;
  EXPECT_THAT(std::string(Plan(0).status().message()), HasSubstr("--num-gpu-blocks-override: "));
}

TEST_F(MemoryPlanTest, AMachineThatSaysNothingIsBelieved) {
  Give();
  host_ = {};
  EXPECT_TRUE(Plan(300 * kGibibyte).ok());
}

}  // namespace
}  // namespace quire
