// GrpcLoad is the LoadBackend for Quire's own API. For N requests at once it opens N / 64 + 1
// connections, at most 64.
//
// Thread safety: Start: one thread at a time. gRPC's threads record and call `done`.
#ifndef QUIRE_DEPLOY_CLI_GRPC_LOAD_H_
#define QUIRE_DEPLOY_CLI_GRPC_LOAD_H_

#include <cstddef>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include <grpcpp/channel.h>

#include "proto/v1/generation.grpc.pb.h"

#include "deploy/cli/load_generator.h"

namespace quire {

struct GrpcTarget {
  std::function<std::shared_ptr<grpc::Channel>()> dial;  // opens a new connection
  std::string api_key;                                   // empty: no key
};

class GrpcLoad : public LoadBackend {
 public:
  // requests: must outlive this object. max_concurrency: as in LoadOptions.
  GrpcLoad(const GrpcTarget& target,
           const std::vector<v1::GenerateRequest>& requests,
           int32_t max_concurrency);
  // REQUIRES: every request that was started is done.
  ~GrpcLoad() override;

  void Start(size_t index, RequestRecord& record, std::function<void()> done) override;

 private:
  class Stream;

  const std::string api_key_;
  const std::vector<v1::GenerateRequest>& requests_;
  std::vector<std::unique_ptr<v1::GenerationService::Stub>> stubs_;
  std::vector<std::unique_ptr<Stream>> streams_;
};

}  // namespace quire

#endif  // QUIRE_DEPLOY_CLI_GRPC_LOAD_H_
