// CallMetrics counts the calls of a gRPC server by method and status code, and measures their
// duration. A call of a method that the server lacks counts as a call of the method "unknown".
// Otherwise clients, which choose such names, could create any number of time series.
//
// Thread safety: any thread.
// Cost:          per call, an allocation and a few atomic operations; per message, a virtual call.
#ifndef QUIRE_COMMON_WIRE_CALL_METRICS_H_
#define QUIRE_COMMON_WIRE_CALL_METRICS_H_

#include <array>
#include <cstddef>
#include <map>
#include <memory>
#include <string>
#include <string_view>

#include "absl/base/thread_annotations.h"
#include <grpcpp/support/server_interceptor.h>

#include "common/base/mutex.h"
#include "common/metrics/registry.h"

namespace quire {

// The metrics of one method.
struct MethodMetrics {
  static constexpr size_t kNumCodes = 17;  // gRPC status codes

  std::array<prometheus::Counter*, kNumCodes> ended{};
  prometheus::Gauge* open = nullptr;
  prometheus::Histogram* duration = nullptr;
};

class CallMetrics : public grpc::experimental::ServerInterceptorFactoryInterface {
 public:
  // The registry must outlive the server.
  explicit CallMetrics(MetricsRegistry* registry) : registry_(registry) {}

  grpc::experimental::Interceptor* CreateServerInterceptor(
      grpc::experimental::ServerRpcInfo* info) override;

 private:
  MethodMetrics* Find(std::string_view path);

  MetricsRegistry* const registry_;
  Mutex mutex_;
  // Keys: the path of a known method, or "/unknown" for all other methods. Entries are never
  // erased, so pointers to them stay valid.
  std::map<std::string, MethodMetrics, std::less<>> methods_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace quire

#endif  // QUIRE_COMMON_WIRE_CALL_METRICS_H_
