#include "common/wire/call_metrics.h"

#include <functional>
#include <set>
#include <string>
#include <string_view>

#include <google/protobuf/descriptor.h>

#include "common/base/clock.h"

namespace quire {
namespace {

constexpr const char* kCodeNames[MethodMetrics::kNumCodes] = {"OK",
                                                              "CANCELLED",
                                                              "UNKNOWN",
                                                              "INVALID_ARGUMENT",
                                                              "DEADLINE_EXCEEDED",
                                                              "NOT_FOUND",
                                                              "ALREADY_EXISTS",
                                                              "PERMISSION_DENIED",
                                                              "RESOURCE_EXHAUSTED",
                                                              "FAILED_PRECONDITION",
                                                              "ABORTED",
                                                              "OUT_OF_RANGE",
                                                              "UNIMPLEMENTED",
                                                              "INTERNAL",
                                                              "UNAVAILABLE",
                                                              "DATA_LOSS",
                                                              "UNAUTHENTICATED"};

using Paths = std::set<std::string, std::less<>>;

// Returns the path "/package.Service/Method" of each method of Quire's services that this program
// links, and of gRPC's own services.
Paths MakeKnownPaths() {
  Paths paths = {"/grpc.health.v1.Health/Check",
                 "/grpc.health.v1.Health/Watch",
                 "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo"};
  const auto* const pool = google::protobuf::DescriptorPool::generated_pool();
  for (const char* name :
       {"quire.v1.GenerationService", "quire.v1.AdminService", "quire.v1.WorkerService"}) {
    const google::protobuf::ServiceDescriptor* const service = pool->FindServiceByName(name);
    for (int i = 0; service != nullptr && i < service->method_count(); ++i) {
      paths.insert(std::string("/") + name + "/" + service->method(i)->name());
    }
  }
  return paths;
}

bool IsKnown(std::string_view path) {
  static const Paths paths = MakeKnownPaths();
  return paths.contains(path);
}

// Observes one call and lives as long as the call.
class CallObserver : public grpc::experimental::Interceptor {
 public:
  explicit CallObserver(MethodMetrics* metrics) : metrics_(*metrics), begin_(SteadyNow()) {
    metrics_.open->Increment();
  }

  ~CallObserver() override {
    metrics_.open->Decrement();
    metrics_.ended.at(code_)->Increment();
    metrics_.duration->Observe(static_cast<double>(SteadyNow() - begin_) /
                               static_cast<double>(kNanosPerSecond));
  }

  void Intercept(grpc::experimental::InterceptorBatchMethods* batch) override {
    if (batch->QueryInterceptionHookPoint(
            grpc::experimental::InterceptionHookPoints::PRE_SEND_STATUS)) {
      const auto code = static_cast<size_t>(batch->GetSendStatus().error_code());
      code_ = code < MethodMetrics::kNumCodes ? code : size_t{grpc::StatusCode::UNKNOWN};
    }
    batch->Proceed();
  }

 private:
  MethodMetrics& metrics_;
  const Instant begin_;
  size_t code_ = grpc::StatusCode::CANCELLED;  // stays if the call ends without a status
};

}  // namespace

grpc::experimental::Interceptor* CallMetrics::CreateServerInterceptor(
    grpc::experimental::ServerRpcInfo* info) {
  return new CallObserver(Find(info->method()));
}

MethodMetrics* CallMetrics::Find(std::string_view path) {
  const std::string_view key = IsKnown(path) ? path : "/unknown";
  MutexLock lock(mutex_);
  if (auto it = methods_.find(key); it != methods_.end()) {
    return &it->second;
  }
  // The key is "/package.Service/Method" or "/unknown".
  const std::string method(key.substr(key.rfind('/') + 1));
  MethodMetrics& metrics = methods_[std::string(key)];
  for (size_t code = 0; code < MethodMetrics::kNumCodes; ++code) {
    metrics.ended.at(code) = &registry_->Counter(metric::kGrpcRequestsTotal,
                                                 {{"method", method}, {"code", kCodeNames[code]}});
  }
  metrics.open = &registry_->Gauge(metric::kGrpcOpenCalls, {{"method", method}});
  metrics.duration =
      &registry_->Histogram(metric::kGrpcRequestDuration, RequestBuckets(), {{"method", method}});
  return &metrics;
}

}  // namespace quire
