// Answers that clients do not read.
#include <cstdint>
#include <deque>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/notification.h"
#include "gtest/gtest.h"
#include <grpcpp/client_context.h>
#include <grpcpp/completion_queue.h>
#include <grpcpp/generic/generic_stub.h>
#include <grpcpp/support/byte_buffer.h>

#include "common/base/clock.h"
#include "common/base/error.h"
#include "common/wire/grpc_status.h"
#include "scheduler/rpc/unread_answers.h"
#include "scheduler/rpc/wire_message.h"
#include "tests/scheduler/rpc/generation_service_fixture.h"

namespace quire {
namespace {

// A call whose answer the client does not read, unless the test calls Read.
class UnreadCall {
 public:
  UnreadCall(const std::shared_ptr<grpc::Channel>& channel,
             const std::string& method,
             const grpc::ByteBuffer& request)
      : stub_(channel),
        stream_(stub_.PrepareCall(&context_, "/quire.v1.GenerationService/" + method, &queue_)) {
    stream_->StartCall(this);
    Wait();
    stream_->WriteLast(request, grpc::WriteOptions(), this);
    Wait();
  }
  ~UnreadCall() { context_.TryCancel(); }

  // Reads one answer.
  void Read() {
    grpc::ByteBuffer answer;
    stream_->Read(&answer, this);
    Wait();
  }
  grpc::Status Finish() {
    grpc::Status status;
    stream_->Finish(&status, this);
    Wait();
    return status;
  }

 private:
  void Wait() {
    void* tag = nullptr;
    bool ok = false;
    queue_.Next(&tag, &ok);
  }

  grpc::CompletionQueue queue_;
  grpc::ClientContext context_;
  grpc::GenericStub stub_;
  std::unique_ptr<grpc::GenericClientAsyncReaderWriter> stream_;
};

class UnreadAnswersTest : public GenerationServiceTest {
 protected:
  static constexpr int kNumIds = 255;
  static constexpr int64_t kNumBytes = int64_t{kNumIds} * 4096;  // and a few for the field

  UnreadAnswersTest() {
    model_.tokenizer = LongTokenTokenizer();
    request_.mutable_token_ids()->Resize(kNumIds, 0);
  }

  // Makes the server hold an unread answer of almost 1 MiB.
  std::unique_ptr<UnreadCall> Hold() {
    const int64_t num_before = unread_.num_bytes();
    auto call = std::make_unique<UnreadCall>(channel_, "Detokenize", SerializeMessage(request_));
    while (unread_.num_bytes() <= num_before) {
      std::this_thread::yield();
    }
    absl::Notification is_begun;  // behind the end of the task that made the answer
    EXPECT_TRUE(tasks_->Submit({.run = [&is_begun] { is_begun.Notify(); }}).ok());
    is_begun.WaitForNotification();
    return call;
  }

  absl::Status Detokenize() {
    v1::DetokenizeResponse response;
    grpc::ClientContext context;
    return FromGrpcStatus(stub_->Detokenize(&context, request_, &response));
  }

  v1::DetokenizeRequest request_;
};

TEST_F(UnreadAnswersTest, WhoHasWaitedLongestEndsWhereThereAreTooMany) {
  constexpr int64_t kNumHeld = UnreadAnswers::kMaxBytes / (kNumBytes + 16);
  std::deque<std::unique_ptr<UnreadCall>> calls;
  for (int64_t i = 0; i < kNumHeld; ++i) {
    calls.push_back(Hold());
  }
  EXPECT_GE(unread_.num_bytes(), kNumHeld * kNumBytes);

  for (int i = 0; i < 3; ++i) {
    EXPECT_TRUE(Detokenize().ok());  // who reads is answered
    EXPECT_EQ(calls.front()->Finish().error_code(), grpc::StatusCode::CANCELLED);
    calls.pop_front();
    while (unread_.num_bytes() >= kNumHeld * kNumBytes) {
      std::this_thread::yield();
    }
    calls.push_back(Hold());
  }
  EXPECT_LE(unread_.num_bytes(), UnreadAnswers::kMaxBytes + kNumBytes + 16);
  calls[0]->Read();
  EXPECT_TRUE(calls[0]->Finish().ok());
}

TEST_F(UnreadAnswersTest, WhoIsNotReadForAMinuteEnds) {
  const std::unique_ptr<UnreadCall> read = Hold();
  const std::unique_ptr<UnreadCall> unread = Hold();
  const Instant now = SteadyNow();

  unread_.CancelOld(now);
  read->Read();
  EXPECT_TRUE(read->Finish().ok());
  unread_.CancelOld(now + UnreadAnswers::kMaxStatusAgeNs);
  EXPECT_EQ(unread->Finish().error_code(), grpc::StatusCode::CANCELLED);
  while (unread_.num_bytes() > 0) {
    std::this_thread::yield();
  }
}

// gRPC may hold bytes of calls that are already cancelled.
TEST(UnreadBytesTest, AtTwiceAsManyNoMoreAreTaken) {
  v1::DetokenizeResponse answer;
  answer.set_text(std::string(1 << 20, 'a'));
  std::vector<grpc::ByteBuffer> held;
  auto unread = std::make_unique<UnreadAnswers>();
  for (absl::StatusOr<grpc::ByteBuffer> bytes = unread->Take(answer); bytes.ok();
       bytes = unread->Take(answer)) {
    held.push_back(*std::move(bytes));
  }
  EXPECT_EQ(held.size(), 127U);
  EXPECT_EQ(ReasonOf(unread->Take(answer).status()), "UNREAD_ANSWERS");
  EXPECT_TRUE(unread->Take(v1::AbortResponse()).ok());  // small ones are

  held.pop_back();
  EXPECT_TRUE(unread->Take(answer).ok());
  unread.reset();
  held.clear();  // the bytes outlive who counts them
}

}  // namespace
}  // namespace quire
