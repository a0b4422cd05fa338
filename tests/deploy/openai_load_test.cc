// OpenAiLoad, chats and completions, beside a server that streams on demand.
#include "deploy/cli/openai_load.h"

#include <algorithm>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "common/base/error.h"
#include "common/http/http_server.h"
#include "common/json/json.h"
#include "deploy/cli/bench_prompts.h"

namespace quire {
namespace {

using ::testing::Each;
using ::testing::IsEmpty;
using ::testing::SizeIs;

constexpr char kText[] = "data: {\"choices\":[{\"text\":\"x\"}]}\n\n";
constexpr char kEnd[] =
    "data: {\"choices\":[{\"text\":\"\",\"finish_reason\":\"stop\"}],"
    "\"usage\":{\"prompt_tokens\":7,\"completion_tokens\":3}}\n\ndata: [DONE]\n\n";

// A server of one route, whose handler gets each request.
class Server {
 public:
  explicit Server(HttpHandler handler) {
    HttpServerOptions options = {.address = {.unix_path = "", .host = "127.0.0.1", .port = 0}};
    options.max_body_bytes = 1 << 20;
    options.max_body_bytes_in_flight = 1 << 24;
    auto server = HttpServer::Start(
        options, {{.method = "POST", .path = "/v1/completions", .handler = std::move(handler)}});
    EXPECT_TRUE(server.ok()) << server.status();
    server_ = *std::move(server);
  }

  OpenAiTarget target() const {
    OpenAiTarget target = {.endpoint = "/v1/completions", .model = "m"};
    target.server.client.address = {.unix_path = "", .host = "127.0.0.1", .port = server_->port()};
    return target;
  }

 private:
  std::unique_ptr<HttpServer> server_;
};

std::vector<v1::GenerateRequest> Requests(int32_t count) {
  return RandomRequests({.random_input_tokens = 2, .random_output_tokens = 3, .num_prompts = count},
                        /*vocab_size=*/10);
}

void BeginStream(HttpResponder& responder) {
  responder.Begin({.content_type = "text/event-stream"});
}

TEST(OpenAiLoadTest, RecordsHaveTheServersCountsAndTimesInOrder) {
  Server server([](const HttpRequest& /*request*/, HttpResponder responder) {
    BeginStream(responder);
    responder.Write(kText);
    responder.Write(kText);
    responder.Write(kEnd);
    responder.Finish();
  });
  const auto requests = Requests(50);
  OpenAiLoad load(server.target(), requests, /*timeout_ms=*/0);

  const std::vector<RequestRecord> records = RunLoad(load, requests.size(), {});

  ASSERT_THAT(records, SizeIs(50));
  for (const RequestRecord& record : records) {
    ASSERT_TRUE(record.status.ok()) << record.status;
    EXPECT_EQ(record.num_prompt_tokens, 7);
    EXPECT_EQ(record.num_output_tokens, 3);
    ASSERT_THAT(record.arrivals, SizeIs(2));
    EXPECT_LE(record.start, record.arrivals[0]);
    EXPECT_LE(record.arrivals[0], record.arrivals[1]);
    EXPECT_LE(record.arrivals[1], record.end);
  }
}

// The second event is sent only after the client has recorded the first one's time.
TEST(OpenAiLoadTest, AnArrivalIsRecordedWhenItsBytesCome) {
  std::vector<Instant> sent;
  std::unique_ptr<HttpResponder> first;
  Server server([&](const HttpRequest& /*request*/, HttpResponder responder) {
    BeginStream(responder);
    sent.push_back(SteadyNow());
    responder.Write(kText);
    if (first == nullptr) {
      // Goes on with the first request when the second has come.
      first = std::make_unique<HttpResponder>(std::move(responder));
      return;
    }
    for (HttpResponder* each : {first.get(), &responder}) {
      sent.push_back(SteadyNow());
      each->Write(kText);
      each->Write(kEnd);
      each->Finish();
    }
  });
  const auto requests = Requests(2);
  OpenAiLoad load(server.target(), requests, /*timeout_ms=*/0);

  const std::vector<RequestRecord> records = RunLoad(load, 2, {});

  ASSERT_THAT(sent, SizeIs(4));
  ASSERT_THAT(records[0].arrivals, SizeIs(2));
  ASSERT_THAT(records[1].arrivals, SizeIs(2));
  EXPECT_GE(records[0].arrivals[0], std::min(sent[0], sent[1]));
  EXPECT_GE(records[0].arrivals[1], sent[2]);
  EXPECT_GE(records[1].arrivals[1], sent[2]);
}

TEST(OpenAiLoadTest, ConcurrencyIsBounded) {
  Server server([](const HttpRequest& /*request*/, HttpResponder responder) {
    BeginStream(responder);
    responder.Write(kEnd);
    responder.Finish();
  });
  const auto requests = Requests(20);
  OpenAiLoad load(server.target(), requests, /*timeout_ms=*/0);
  const auto records = RunLoad(load, requests.size(), {.max_concurrency = 1});
  for (size_t i = 1; i < records.size(); ++i) {
    EXPECT_GE(records[i].start, records[i - 1].end);
  }
}

TEST(OpenAiLoadTest, TokensWithoutTextHaveOneArrivalAtTheEnd) {
  Server server([](const HttpRequest& /*request*/, HttpResponder responder) {
    BeginStream(responder);
    responder.Write(kEnd);
    responder.Finish();
  });
  const auto requests = Requests(1);
  OpenAiLoad load(server.target(), requests, /*timeout_ms=*/0);
  const auto records = RunLoad(load, 1, {});
  ASSERT_THAT(records[0].arrivals, SizeIs(1));
  EXPECT_EQ(records[0].arrivals[0], records[0].end);
}

TEST(OpenAiLoadTest, RefusalsAndCutStreamsAreRecorded) {
  bool is_first = true;
  Server server([&](const HttpRequest& /*request*/, HttpResponder responder) {
    if (std::exchange(is_first, false)) {
      responder.Answer(
          {.status_code = 429, .body = R"({"error":{"message":"full","code":"QUEUE_FULL"}})"});
      return;
    }
    BeginStream(responder);
    responder.Write(kText);
    const HttpResponder gone = std::move(responder);  // cuts the stream
  });
  const auto requests = Requests(2);
  OpenAiLoad load(server.target(), requests, /*timeout_ms=*/0);

  const auto records = RunLoad(load, 2, {.max_concurrency = 1});

  EXPECT_EQ(records[0].status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(ReasonOf(records[0].status), "QUEUE_FULL");
  EXPECT_THAT(records[0].arrivals, IsEmpty());
  EXPECT_LE(records[0].start, records[0].end);
  EXPECT_EQ(records[1].status.code(), absl::StatusCode::kUnavailable);
}

TEST(OpenAiLoadTest, ARequestEndsAtItsDeadline) {
  std::unique_ptr<HttpResponder> held;
  Server server([&](const HttpRequest& /*request*/, HttpResponder responder) {
    held = std::make_unique<HttpResponder>(std::move(responder));
  });
  const auto requests = Requests(1);
  OpenAiLoad load(server.target(), requests, /*timeout_ms=*/50);
  EXPECT_EQ(RunLoad(load, 1, {})[0].status.code(), absl::StatusCode::kDeadlineExceeded);
}

TEST(OpenAiLoadTest, RandomPromptsAreTokenIdsOrWords) {
  const BenchPrompts prompts = {.random_input_tokens = 50, .num_prompts = 2, .seed = 3};
  const auto ids = RandomRequests(prompts, /*vocab_size=*/7);
  ASSERT_THAT(ids, SizeIs(2));
  EXPECT_THAT(ids[0].token_ids().ids(),
              testing::AllOf(SizeIs(50), Each(testing::AllOf(testing::Ge(0), testing::Lt(7)))));
  EXPECT_NE(ids[0].DebugString(), ids[1].DebugString());
  EXPECT_EQ(ids[1].DebugString(), RandomRequests(prompts, 7)[1].DebugString());

  const auto words = RandomRequests(prompts, /*vocab_size=*/0);
  EXPECT_EQ(std::count(words[0].text().begin(), words[0].text().end(), ' '), 49);
  const auto body = ParseJson(OpenAiBody(words[0], {.model = "m", .is_chat = true}));
  ASSERT_TRUE(body.ok());
  EXPECT_EQ((*body)["messages"][0]["content"], words[0].text());
  EXPECT_FALSE(body->contains("ignore_eos"));
}

}  // namespace
}  // namespace quire
