#include "scheduler/metrics/kv_block_metrics.h"

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <thread>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "scheduler/metrics/scheduler_metrics.h"

namespace quire {
namespace {

constexpr int kNumTexts = 300;

// The values by the text in front of them.
std::map<std::string, double> ValuesOf(const std::string& text) {
  std::map<std::string, double> values;
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = text.find('\n', begin);
    const std::string line = text.substr(begin, end - begin);
    const size_t blank = line.rfind(' ');
    if (line[0] != '#') {
      values[line.substr(0, blank)] = std::stod(line.substr(blank + 1));
    }
    begin = end + 1;
  }
  return values;
}

double States(const std::map<std::string, double>& values, const std::string& tier) {
  double sum = 0;
  for (const auto& [name, value] : values) {
    if (name.starts_with("quire_kv_blocks{") && name.find(tier) != std::string::npos) {
      sum += value;
    }
  }
  return sum;
}

TEST(KvBlockMetricsTest, TellsEveryBlockOnce) {
  MetricsRegistry registry;
  SchedulerMetrics metrics(&registry, "1", "tiny", /*max_model_len=*/100, true);
  metrics.OnStats({.num_blocks = 100,
                   .block_size_tokens = 4,
                   .num_free_blocks = 60,
                   .num_free_cached_blocks = 25,
                   .num_used_blocks = 33,
                   .num_held_blocks = 30,
                   .num_shared_blocks = 6,
                   .num_pending_blocks = 7,
                   .num_host_blocks = 50,
                   .num_used_host_blocks = 20,
                   .num_cached_blocks = 40,
                   .num_stored_tokens = 90,
                   .num_table_tokens = 110,
                   .num_table_blocks = 36,
                   .num_pinned_prefixes = 2,
                   .num_pinned_blocks = 5},
                  {});

  const std::map<std::string, double> values = ValuesOf(registry.NativeText());

  const std::map<std::string, double> expected = {
      {R"(quire_kv_blocks{state="free",tier="device"})", 35},
      {R"(quire_kv_blocks{state="cached",tier="device"})", 25},
      {R"(quire_kv_blocks{state="active",tier="device"})", 30},
      {R"(quire_kv_blocks{state="leaving",tier="device"})", 3},
      {R"(quire_kv_blocks{state="pending",tier="device"})", 7},
      {R"(quire_kv_blocks_capacity{tier="device"})", 100},
      {R"(quire_kv_blocks{state="free",tier="host"})", 30},
      {R"(quire_kv_blocks{state="active",tier="host"})", 20},
      {R"(quire_kv_blocks_capacity{tier="host"})", 50},
      {"quire_kv_block_refs", 36},
      {"quire_kv_shared_blocks", 6},
      {"quire_prefix_cache_blocks", 40},
      {"quire_pinned_prefixes", 2},
      {"quire_pinned_kv_blocks", 5},
      {"quire_kv_fragmentation_ratio", 0.25},
      {R"(quire_kv_tokens{state="stored"})", 90},
      {R"(quire_kv_tokens{state="referenced"})", 110},
      {R"(quire_kv_tokens{state="capacity"})", 400}};
  for (const auto& [name, value] : expected) {
    ASSERT_TRUE(values.contains(name)) << name;
    EXPECT_EQ(values.at(name), value) << name;
  }
}

TEST(KvBlockMetricsTest, StatesAddUpInEveryTextWhileTheLoopSetsThem) {
  MetricsRegistry registry;
  SchedulerMetrics metrics(&registry, "1", "tiny", /*max_model_len=*/100, true);
  std::atomic<bool> stop = false;
  std::thread loop([&] {
    for (int32_t used = 0; !stop; used = (used + 7) % 100) {
      metrics.OnStats({.num_blocks = 100,
                       .num_free_blocks = 100 - used,
                       .num_used_blocks = used,
                       .num_held_blocks = used,
                       .num_host_blocks = 50,
                       .num_used_host_blocks = used / 2},
                      {});
    }
  });

  int num_wrong = 0;
  for (int i = 0; i < kNumTexts; ++i) {
    const std::map<std::string, double> values = ValuesOf(registry.NativeText());
    for (const std::string tier : {"device", "host"}) {
      const std::string capacity = "quire_kv_blocks_capacity{tier=\"" + tier + "\"}";
      num_wrong += States(values, tier) == values.at(capacity) ? 0 : 1;
    }
  }
  stop = true;
  loop.join();

  EXPECT_EQ(num_wrong, 0);
}

}  // namespace
}  // namespace quire
