#include "common/wire/call_metrics.h"

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/synchronization/notification.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include <grpcpp/generic/generic_stub.h>
#include <grpcpp/server.h>
#include <grpcpp/server_builder.h>

#include "proto/v1/generation.grpc.pb.h"

namespace quire {
namespace {

// Abort returns the status code whose number is the request's id. Generate runs until it is
// cancelled.
class FakeService : public v1::GenerationService::Service {
 public:
  grpc::Status Abort(grpc::ServerContext* /*context*/,
                     const v1::AbortRequest* request,
                     v1::AbortResponse* /*response*/) override {
    return {static_cast<grpc::StatusCode>(std::stoi(request->request_id())), ""};
  }

  grpc::Status Generate(grpc::ServerContext* context,
                        const v1::GenerateRequest* /*request*/,
                        grpc::ServerWriter<v1::GenerateResponse>* writer) override {
    while (!context->IsCancelled()) {
      writer->Write(v1::GenerateResponse());
    }
    return grpc::Status::CANCELLED;
  }
};

class CallMetricsTest : public testing::Test {
 protected:
  CallMetricsTest() { StartWith(service_); }

  void StartWith(grpc::Service& service) {
    grpc::ServerBuilder builder;
    std::vector<std::unique_ptr<grpc::experimental::ServerInterceptorFactoryInterface>> creators;
    creators.push_back(std::make_unique<CallMetrics>(&registry_));
    builder.experimental().SetInterceptorCreators(std::move(creators));
    builder.RegisterService(&service);
    server_ = builder.BuildAndStart();
    stub_ = v1::GenerationService::NewStub(server_->InProcessChannel(grpc::ChannelArguments()));
  }

  void Call(grpc::StatusCode code) {
    grpc::ClientContext context;
    v1::AbortRequest request;
    request.set_request_id(std::to_string(code));
    v1::AbortResponse response;
    EXPECT_EQ(stub_->Abort(&context, request, &response).error_code(), code);
  }

  // The registry's text after the server's shutdown: a client may know of a call's end before the
  // server counts it.
  std::string TextAfterwards() {
    server_->Shutdown();
    server_->Wait();
    return "\n" + registry_.NativeText();
  }

  MetricsRegistry registry_;
  FakeService service_;
  v1::GenerationService::CallbackService lacks_all_;
  std::unique_ptr<grpc::Server> server_;
  std::unique_ptr<v1::GenerationService::Stub> stub_;
};

TEST_F(CallMetricsTest, CallsAreCountedByMethodAndCode) {
  Call(grpc::StatusCode::OK);
  Call(grpc::StatusCode::OK);
  Call(grpc::StatusCode::RESOURCE_EXHAUSTED);
  Call(grpc::StatusCode::UNAUTHENTICATED);

  const std::string text = TextAfterwards();
  const auto line = [](const std::string& code, int count) {
    return "\nquire_grpc_requests_total{code=\"" + code + "\",method=\"Abort\"} " +
           std::to_string(count) + "\n";
  };
  EXPECT_THAT(text, testing::HasSubstr(line("OK", 2)));
  EXPECT_THAT(text, testing::HasSubstr(line("RESOURCE_EXHAUSTED", 1)));
  EXPECT_THAT(text, testing::HasSubstr(line("UNAUTHENTICATED", 1)));
  EXPECT_THAT(text, testing::HasSubstr(line("INTERNAL", 0)));
  EXPECT_THAT(text, testing::HasSubstr("\nquire_grpc_request_seconds_count{method=\"Abort\"} 4\n"));
}

// Uses the callback API, as the product's servers do. Its interceptors see the path that a client
// sent; the synchronous API gives one name to all unknown methods.
TEST_F(CallMetricsTest, MethodsThatNoServiceHasAreOne) {
  StartWith(lacks_all_);
  grpc::GenericStub stub(server_->InProcessChannel(grpc::ChannelArguments()));
  std::vector<std::string> paths = {"/quire.v1.GenerationService/\xff\xfe",
                                    "/quire.v1.Other/Generate"};
  for (int i = 0; i < 100; ++i) {
    paths.push_back("/quire.v1.GenerationService/Secret" + std::to_string(i));
  }
  for (const std::string& path : paths) {
    grpc::ClientContext context;
    const grpc::Slice nothing;
    grpc::ByteBuffer request(&nothing, 1);
    grpc::ByteBuffer response;
    absl::Notification done;
    stub.UnaryCall(&context, path, {}, &request, &response, [&done](const grpc::Status& status) {
      EXPECT_EQ(status.error_code(), grpc::StatusCode::UNIMPLEMENTED);
      done.Notify();
    });
    done.WaitForNotification();
  }
  Call(grpc::StatusCode::UNIMPLEMENTED);

  const std::string text = TextAfterwards();
  EXPECT_THAT(text,
              testing::HasSubstr("\nquire_grpc_request_seconds_count{method=\"unknown\"} 102\n"));
  EXPECT_THAT(text, testing::HasSubstr("\nquire_grpc_request_seconds_count{method=\"Abort\"} 1\n"));
  EXPECT_THAT(text, testing::Not(testing::HasSubstr("Secret")));
  EXPECT_THAT(text, testing::Not(testing::HasSubstr("\xff")));
}

TEST_F(CallMetricsTest, AStreamIsOpenUntilItsClientLeaves) {
  grpc::ClientContext context;
  auto reader = stub_->Generate(&context, v1::GenerateRequest());
  v1::GenerateResponse response;
  ASSERT_TRUE(reader->Read(&response));
  EXPECT_THAT(registry_.NativeText(),
              testing::HasSubstr("\nquire_grpc_open_calls{method=\"Generate\"} 1\n"));

  context.TryCancel();
  while (reader->Read(&response)) {
  }
  EXPECT_EQ(reader->Finish().error_code(), grpc::StatusCode::CANCELLED);

  const std::string text = TextAfterwards();
  EXPECT_THAT(text, testing::HasSubstr("\nquire_grpc_open_calls{method=\"Generate\"} 0\n"));
  EXPECT_THAT(text,
              testing::HasSubstr(
                  "\nquire_grpc_requests_total{code=\"CANCELLED\",method=\"Generate\"} 1\n"));
}

}  // namespace
}  // namespace quire
