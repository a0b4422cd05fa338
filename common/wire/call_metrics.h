// CallMetrics counts the calls of a gRPC server, by method and status code, and how long they took.
// Calls of methods that no service of ours has are one method, "unknown": their names are the
// client's, of any bytes and as many as it likes.
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

// Of one method.
struct MethodMetrics {
  static constexpr size_t kNumCodes = 17;  // of gRPC

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
  // Those that services have, and one for all others: nothing is ever taken out.
  std::map<std::string, MethodMetrics, std::less<>> methods_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace quire

#endif  // QUIRE_COMMON_WIRE_CALL_METRICS_H_
