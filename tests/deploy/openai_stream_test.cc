#include "deploy/cli/openai_stream.h"

#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "common/base/error.h"

namespace quire {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

HttpResponse Head(int status_code = 200, const std::string& type = "text/event-stream") {
  return {.status_code = status_code, .content_type = type};
}

struct Taken {
  std::vector<std::string> texts;
  std::string reasoning;
  absl::Status status;
  std::string finish_reason;
  std::optional<int32_t> num_prompt_tokens;
  std::optional<int32_t> num_output_tokens;
};

// Reads an answer whose call ended as `call` says; by default whole.
Taken Take(const HttpResponse& head, const std::string& body, absl::Status call = {}) {
  Taken taken;
  OpenAiStream stream([&](const OpenAiStream::Text& text) {
    if (!text.answer.empty()) {
      taken.texts.push_back(text.answer);
    }
    taken.reasoning += text.reasoning;
  });
  const bool goes_on = body.empty() || stream.Put(head, body);
  if (call.ok() && !goes_on) {
    call = absl::CancelledError("");  // as HttpClient says then
  }
  taken.status = stream.Finish(call.ok() ? absl::StatusOr<HttpResponse>(head) : call);
  taken.finish_reason = stream.finish_reason();
  taken.num_prompt_tokens = stream.num_prompt_tokens();
  taken.num_output_tokens = stream.num_output_tokens();
  return taken;
}

std::string Events(const std::vector<std::string>& events) {
  std::string body;
  for (const std::string& event : events) {
    body += "data: " + event + "\n\n";
  }
  return body;
}

TEST(OpenAiStreamTest, AChatIsReadAsVllmStreamsIt) {
  const Taken taken = Take(
      Head(200, "text/event-stream; charset=utf-8"),
      Events(
          {R"({"choices":[{"index":0,"delta":{"role":"assistant","content":""},"logprobs":null,)"
           R"("finish_reason":null}],"usage":null})",
           R"({"choices":[{"index":0,"delta":{"reasoning_content":"hm"}}]})",
           R"({"choices":[{"index":0,"delta":{"content":"Once"}}]})",
           R"({"choices":[{"index":0,"delta":{"content":" upon"},"finish_reason":"length"}]})",
           R"({"choices":[],"usage":{"prompt_tokens":3,"total_tokens":5,"completion_tokens":2}})",
           "[DONE]"}));

  EXPECT_TRUE(taken.status.ok()) << taken.status;
  EXPECT_THAT(taken.texts, ElementsAre("Once", " upon"));
  EXPECT_EQ(taken.reasoning, "hm");
  EXPECT_EQ(taken.finish_reason, "length");
  EXPECT_EQ(taken.num_prompt_tokens, 3);
  EXPECT_EQ(taken.num_output_tokens, 2);
}

TEST(OpenAiStreamTest, ACompletionIsReadWithoutUsageOrDone) {
  const Taken taken = Take(Head(),
                           Events({R"({"choices":[{"index":0,"text":"a"}]})",
                                   R"({"choices":[{"text":"","finish_reason":"stop"}]})"}));

  EXPECT_TRUE(taken.status.ok()) << taken.status;
  EXPECT_THAT(taken.texts, ElementsAre("a"));
  EXPECT_EQ(taken.num_output_tokens, std::nullopt);
}

TEST(OpenAiStreamTest, AnErrorInTheStreamEndsIt) {
  const Taken taken = Take(Head(),
                           Events({R"({"choices":[{"text":"a"}]})",
                                   R"({"error":{"message":"gone","type":"x","code":503}})",
                                   R"({"choices":[{"text":"b"}]})",
                                   "[DONE]"}));

  EXPECT_THAT(taken.texts, ElementsAre("a"));
  EXPECT_EQ(taken.status, absl::UnavailableError("gone"));
}

TEST(OpenAiStreamTest, RefusalsOfEachServerAreUnderstood) {
  struct Case {
    int status_code;
    std::string body;
    absl::StatusCode code;
    std::string reason;
    std::string message;
  };
  const Case cases[] = {
      {429,
       R"({"error":{"message":"full","type":"t","param":null,"code":"QUEUE_FULL"}})",
       absl::StatusCode::kResourceExhausted,
       "QUEUE_FULL",
       "full"},
      {400,
       R"({"object":"error","message":"bad","type":"BadRequestError","param":null,"code":400})",
       absl::StatusCode::kInvalidArgument,
       "",
       "bad"},
      {401, R"({"error":"Unauthorized"})", absl::StatusCode::kUnauthenticated, "", "Unauthorized"},
      {404, R"({"detail":"Not Found"})", absl::StatusCode::kNotFound, "", "Not Found"},
      {503,
       R"({"error":{"code":503,"message":"Loading model","type":"unavailable_error"}})",
       absl::StatusCode::kUnavailable,
       "",
       "Loading model"},
      {502, "<html>", absl::StatusCode::kUnavailable, "", "HTTP status 502"},
      {500, "", absl::StatusCode::kInternal, "", "HTTP status 500"},
      {302, "[]", absl::StatusCode::kInternal, "", "HTTP status 302"},
  };
  for (const Case& c : cases) {
    const Taken taken = Take(Head(c.status_code, "application/json"), c.body);
    EXPECT_EQ(taken.status.code(), c.code) << c.body;
    EXPECT_EQ(ReasonOf(taken.status), c.reason) << c.body;
    EXPECT_EQ(taken.status.message(), c.message);
  }
}

TEST(OpenAiStreamTest, ARefusalWithoutAnEndIsBounded) {
  const Taken taken = Take(Head(429, "text/html"), std::string(1 << 20, 'x'));
  EXPECT_EQ(taken.status.code(), absl::StatusCode::kResourceExhausted);
}

TEST(OpenAiStreamTest, AnAnswerThatIsNoStreamIsAnError) {
  const std::pair<HttpResponse, std::string> cases[] = {
      {Head(200, "application/json"), R"({"choices":[{"text":"a"}]})"},
      {Head(), Events({"no JSON"})},
      {Head(), Events({"[1]"})},
  };
  for (const auto& [head, body] : cases) {
    EXPECT_EQ(ReasonOf(Take(head, body).status), "OPENAI_ANSWER") << body;
  }
  EXPECT_EQ(ReasonOf(Take(Head(), "data: " + std::string(2 << 20, 'x')).status), "SSE_EVENT_SIZE");
}

TEST(OpenAiStreamTest, FieldsOfOtherTypesAreIgnored) {
  const Taken taken = Take(
      Head(),
      Events({R"({"choices":[{"delta":{"content":7}},{"delta":{"content":"second"}}],"usage":[]})",
              R"({"choices":{"a":1},"usage":{"prompt_tokens":-1,"completion_tokens":1e99}})",
              R"({"choices":["a"],"usage":{"prompt_tokens":99999999999}})",
              R"({"choices":[{"delta":null,"text":null,"finish_reason":[]}]})",
              "{}",
              "[DONE]"}));

  EXPECT_TRUE(taken.status.ok()) << taken.status;
  EXPECT_THAT(taken.texts, ElementsAre());
  EXPECT_EQ(taken.num_prompt_tokens, std::nullopt);
  EXPECT_EQ(taken.num_output_tokens, std::nullopt);
}

TEST(OpenAiStreamTest, AStreamThatStopsEarlyIsCut) {
  const std::string begin = Events({R"({"choices":[{"text":"a"}]})"});
  EXPECT_EQ(ReasonOf(Take(Head(), begin).status), "HTTP_CUT");
  EXPECT_EQ(ReasonOf(Take(Head(), "").status), "HTTP_CUT");
  const absl::Status broken = Error(absl::StatusCode::kUnavailable, "HTTP_CUT", "broken");
  EXPECT_EQ(Take(Head(), begin, broken).status, broken);
  EXPECT_TRUE(Take(Head(), begin + Events({"[DONE]"}), broken).status.ok());
}

}  // namespace
}  // namespace quire
