// ProcessMetrics are what Prometheus knows of any process, under the names that all its libraries
// use: memory, processor time, open files, start.
//
// Thread safety: any thread.
// Cost:          reads of /proc when it is collected, O(open files); nothing otherwise.
#ifndef QUIRE_COMMON_METRICS_PROCESS_METRICS_H_
#define QUIRE_COMMON_METRICS_PROCESS_METRICS_H_

#include <vector>

#include "prometheus/collectable.h"
#include "prometheus/metric_family.h"

namespace quire {

class ProcessMetrics : public prometheus::Collectable {
 public:
  // What cannot be read is left out.
  std::vector<prometheus::MetricFamily> Collect() const override;
};

}  // namespace quire

#endif  // QUIRE_COMMON_METRICS_PROCESS_METRICS_H_
