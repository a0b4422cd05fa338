// ProcessMetrics exports Prometheus' standard process metrics, under the names that all Prometheus
// client libraries use: memory, processor time, open files, start time.
//
// Thread safety: any thread.
// Cost:          reads /proc at each scrape, O(open files).
#ifndef QUIRE_COMMON_METRICS_PROCESS_METRICS_H_
#define QUIRE_COMMON_METRICS_PROCESS_METRICS_H_

#include <vector>

#include "prometheus/collectable.h"
#include "prometheus/metric_family.h"

namespace quire {

class ProcessMetrics : public prometheus::Collectable {
 public:
  // Leaves out values that cannot be read.
  std::vector<prometheus::MetricFamily> Collect() const override;
};

}  // namespace quire

#endif  // QUIRE_COMMON_METRICS_PROCESS_METRICS_H_
