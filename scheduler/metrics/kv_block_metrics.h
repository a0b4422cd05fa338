// KvBlockMetrics exports how many KV blocks are in each state. All numbers of a scrape come from
// one CoreStats, so the blocks of a tier (device or host) add up to the tier's capacity. With
// separate gauges, a scrape could see only some of them updated.
//
// Thread safety: any thread.
// Cost:          Set takes a short lock and copies numbers; Collect builds the families.
#ifndef QUIRE_SCHEDULER_METRICS_KV_BLOCK_METRICS_H_
#define QUIRE_SCHEDULER_METRICS_KV_BLOCK_METRICS_H_

#include <vector>

#include "absl/base/thread_annotations.h"
#include "prometheus/collectable.h"
#include "prometheus/metric_family.h"

#include "common/base/mutex.h"
#include "scheduler/core/core_stats.h"

namespace quire {

class KvBlockMetrics : public prometheus::Collectable {
 public:
  void Set(const CoreStats& stats);

  std::vector<prometheus::MetricFamily> Collect() const override;

 private:
  mutable Mutex mutex_;
  CoreStats stats_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace quire

#endif  // QUIRE_SCHEDULER_METRICS_KV_BLOCK_METRICS_H_
