// GenerationServiceTest is the public service over an in-process channel, with the real loop and a
// worker that computes without a model.
//
// Thread safety: Generate, Finish and the raw calls from any thread; all else from the test's.
#ifndef QUIRE_TESTS_SCHEDULER_RPC_GENERATION_SERVICE_FIXTURE_H_
#define QUIRE_TESTS_SCHEDULER_RPC_GENERATION_SERVICE_FIXTURE_H_

#include <cstdint>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "gtest/gtest.h"
#include <grpcpp/channel.h>
#include <grpcpp/client_context.h>
#include <grpcpp/server.h>
#include <grpcpp/support/server_interceptor.h>
#include <grpcpp/support/status.h>
#include <grpcpp/support/sync_stream.h>

#include "proto/v1/generation.grpc.pb.h"

#include "common/base/ids.h"
#include "common/step/step_limits.h"
#include "scheduler/loop/scheduler_loop.h"
#include "scheduler/rpc/admin_service.h"
#include "scheduler/rpc/generate_call.h"
#include "scheduler/rpc/generation_service.h"
#include "scheduler/rpc/prefix_store.h"
#include "scheduler/text/tokenizer.h"
#include "tests/scheduler/loop/fake_worker_client.h"
#include "tests/scheduler/loop/letter_tokenizer.h"

namespace quire {

inline constexpr StepLimits kLimits = {.num_blocks = 64,
                                       .block_size_tokens = 4,
                                       .max_sequences = 32,
                                       .max_tokens_per_step = 64,
                                       .max_model_len = 100,
                                       .vocab_size = kLetterVocabSize};

struct Answer {
  std::vector<v1::GenerateResponse> responses;
  absl::Status status;
  grpc::Status wire_status;
  std::string request_id;  // of the trailing metadata

  std::vector<TokenId> Tokens(int32_t index = 0, int first_position = 0) const;
  // The text of a sequence from this position on.
  std::string Text(int32_t index, int position) const;
};

// A tokenizer whose token 0 is 4 KiB of text.
std::unique_ptr<Tokenizer> LongTokenTokenizer();

class GenerationServiceTest : public testing::Test {
 public:
  explicit GenerationServiceTest(bool with_tokenizer = true, const LoopConfig& config = {});
  ~GenerationServiceTest() override;

 protected:
  // Starts a server for parts_ in place of the one before.
  void Restart();
  // Begins an epoch and runs the loop until the end of the test.
  void Run();
  Answer Generate(const v1::GenerateRequest& request);
  static Answer Finish(grpc::ClientContext& context,
                       grpc::ClientReader<v1::GenerateResponse>& reader);
  // Sends bytes of any kind to any method.
  absl::Status CallRaw(const std::string& method, const std::string& bytes);
  absl::Status CallPath(const std::string& path, const std::string& bytes);

  static v1::GenerateRequest Prompt(const std::string& text, int32_t max_tokens);
  static std::vector<TokenId> Expected(const std::string& text,
                                       int32_t max_tokens,
                                       int32_t index = 0);

  ServedModel model_;
  Inbox inbox_;
  FakeWorkerClient workers_;
  ServingState state_;
  LoopObserver observer_;
  SchedulerLoop loop_;
  std::unique_ptr<TaskPool> tasks_;
  LiveRequests live_requests_;
  UnreadAnswers unread_;
  ServiceParts parts_;
  std::vector<std::unique_ptr<grpc::experimental::ServerInterceptorFactoryInterface>> interceptors_;
  std::unique_ptr<GenerationService> service_;
  std::unique_ptr<PrefixStore> prefix_store_;  // null: none
  std::unique_ptr<AdminService> admin_service_;
  std::unique_ptr<grpc::Server> server_;
  std::shared_ptr<grpc::Channel> channel_;
  std::unique_ptr<v1::GenerationService::Stub> stub_;
  std::thread loop_thread_;
};

}  // namespace quire

#endif  // QUIRE_TESTS_SCHEDULER_RPC_GENERATION_SERVICE_FIXTURE_H_
