#include "scheduler/metrics/kv_block_metrics.h"

#include <cstdint>
#include <string>

#include "prometheus/client_metric.h"
#include "prometheus/metric_type.h"

#include "common/metrics/metric_names.h"

namespace quire {
namespace {

using Labels = std::vector<prometheus::ClientMetric::Label>;

struct Point {
  Labels labels;
  double value = 0;
};

prometheus::MetricFamily Gauges(const MetricInfo& info, const std::vector<Point>& points) {
  prometheus::MetricFamily family;
  family.name = std::string(info.name);
  family.help = std::string(info.help);
  family.type = prometheus::MetricType::Gauge;
  for (const Point& point : points) {
    prometheus::ClientMetric& metric = family.metric.emplace_back();
    metric.label = point.labels;
    metric.gauge.value = point.value;
  }
  return family;
}

prometheus::MetricFamily Gauge(const MetricInfo& info, double value) {
  return Gauges(info, {{{}, value}});
}

Point Blocks(const char* tier, const char* state, int32_t num_blocks) {
  return {{{"state", state}, {"tier", tier}}, static_cast<double>(num_blocks)};
}

}  // namespace

void KvBlockMetrics::Set(const CoreStats& stats) {
  MutexLock lock(mutex_);
  stats_ = stats;
}

std::vector<prometheus::MetricFamily> KvBlockMetrics::Collect() const {
  const CoreStats stats = [this] {
    MutexLock lock(mutex_);
    return stats_;
  }();
  const auto num_slots = double{1} * stats.num_blocks * stats.block_size_tokens;
  return {Gauges(metric::kKvBlocks,
                 {Blocks("device", "free", stats.num_free_blocks - stats.num_free_cached_blocks),
                  Blocks("device", "cached", stats.num_free_cached_blocks),
                  Blocks("device", "active", stats.num_held_blocks),
                  Blocks("device", "leaving", stats.num_used_blocks - stats.num_held_blocks),
                  Blocks("device", "pending", stats.num_pending_blocks),
                  Blocks("host", "free", stats.num_host_blocks - stats.num_used_host_blocks),
                  Blocks("host", "active", stats.num_used_host_blocks)}),
          Gauges(metric::kKvBlocksCapacity,
                 {{{{"tier", "device"}}, static_cast<double>(stats.num_blocks)},
                  {{{"tier", "host"}}, static_cast<double>(stats.num_host_blocks)}}),
          Gauge(metric::kKvBlockRefs, static_cast<double>(stats.num_table_blocks)),
          Gauge(metric::kKvSharedBlocks, stats.num_shared_blocks),
          Gauge(metric::kPrefixCacheBlocks, stats.num_cached_blocks),
          Gauge(metric::kPinnedPrefixes, stats.num_pinned_prefixes),
          Gauge(metric::kPinnedBlocks, stats.num_pinned_blocks),
          Gauge(metric::kKvFragmentation, stats.fragmentation()),
          Gauges(metric::kKvTokens,
                 {{{{"state", "stored"}}, static_cast<double>(stats.num_stored_tokens)},
                  {{{"state", "referenced"}}, static_cast<double>(stats.num_table_tokens)},
                  {{{"state", "capacity"}}, num_slots}})};
}

}  // namespace quire
