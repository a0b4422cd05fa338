#include <cstdint>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "common/json/json.h"
#include "deploy/gateway/openai/chat_request.h"
#include "deploy/gateway/openai/chat_response.h"
#include "deploy/gateway/openai/completion_request.h"
#include "deploy/gateway/openai/completion_response.h"
#include "deploy/gateway/openai/service_bodies.h"
#include "deploy/gateway/score_budget.h"
#include "tests/deploy/gateway/fake_stream.h"

namespace quire {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

using Texts = std::vector<std::string>;
constexpr int64_t kCreated = 1'700'000'000;

void Complete(AnswerOptions& options) {
  options.model = "tiny";
  for (PromptEcho& prompt : options.prompts) {
    prompt.token_ids = {0, 1, 2};
  }
}

// The texts of a whole answer. Messages of several prompts alternate.
Texts TextsOf(const std::vector<v1::GenerateRequest>& requests, Response& response) {
  Texts texts;
  const size_t num_messages = FakeStream(requests[0]).size();
  for (size_t i = 0; i < num_messages; ++i) {
    for (size_t prompt = 0; prompt < requests.size(); ++prompt) {
      EXPECT_FALSE(response.has_ended());
      const auto messages = FakeStream(requests[prompt]);
      for (std::string& text : response.Take(static_cast<int32_t>(prompt), messages[i])) {
        texts.push_back(std::move(text));
      }
    }
  }
  EXPECT_TRUE(response.has_ended());
  for (std::string& text : response.Finish()) {
    texts.push_back(std::move(text));
  }
  return texts;
}

Texts Complete(std::string_view body, TokenText token_text = FakeTokenText) {
  auto parsed = ParseCompletionRequest(body, "r1");
  EXPECT_TRUE(parsed.ok()) << parsed.status();
  Complete(parsed->options);
  CompletionResponse response(parsed->options, kCreated, std::move(token_text));
  return TextsOf(parsed->requests, response);
}

Texts Chat(std::string_view body, TokenText token_text = FakeTokenText) {
  auto parsed = ParseChatRequest(body, "r1");
  EXPECT_TRUE(parsed.ok()) << parsed.status();
  Complete(parsed->options);
  ChatResponse response(parsed->options, kCreated, std::move(token_text));
  return TextsOf({parsed->request}, response);
}

// Member `name` of each choice, over all texts.
std::vector<std::string> Each(const Texts& texts, std::string_view name) {
  std::vector<std::string> values;
  for (const std::string& text : texts) {
    const OrderedJson body = OrderedJson::parse(text);
    for (const OrderedJson& choice : body["choices"]) {
      values.push_back(choice.contains(name) ? choice[std::string(name)].dump() : "absent");
    }
  }
  return values;
}

TEST(OpenAiResponseTest, AWholeCompletionIsOneObject) {
  EXPECT_THAT(
      Complete(R"({"prompt":"Hi"})"),
      ElementsAre(
          R"({"id":"cmpl-r1","object":"text_completion","created":1700000000,"model":"tiny",)"
          R"("choices":[{"index":0,"text":" t20 t21","logprobs":null,"finish_reason":"length",)"
          R"("stop_reason":null}],"system_fingerprint":"cpu/1",)"
          R"("usage":{"prompt_tokens":3,"total_tokens":5,"completion_tokens":2,)"
          R"("prompt_tokens_details":{"cached_tokens":1}}})"));
}

TEST(OpenAiResponseTest, AStreamedCompletionHasAnEventForEachToken) {
  EXPECT_THAT(
      Complete(R"({"prompt":"Hi","stream":true,"stream_options":{"include_usage":true}})"),
      ElementsAre(
          R"({"id":"cmpl-r1","object":"text_completion","created":1700000000,"model":"tiny",)"
          R"("choices":[{"index":0,"text":" t20","logprobs":null,"finish_reason":null,)"
          R"("stop_reason":null}],"system_fingerprint":"cpu/1","usage":null})",
          R"({"id":"cmpl-r1","object":"text_completion","created":1700000000,"model":"tiny",)"
          R"("choices":[{"index":0,"text":" t21","logprobs":null,"finish_reason":"length",)"
          R"("stop_reason":null}],"system_fingerprint":"cpu/1","usage":null})",
          R"({"id":"cmpl-r1","object":"text_completion","created":1700000000,"model":"tiny",)"
          R"("choices":[],"system_fingerprint":"cpu/1",)"
          R"("usage":{"prompt_tokens":3,"total_tokens":5,"completion_tokens":2,)"
          R"("prompt_tokens_details":{"cached_tokens":1}}})"));
}

TEST(OpenAiResponseTest, ContinuousUsageCountsTheTokensOfTheChoice) {
  const Texts texts = Complete(R"({"prompt":"Hi","stream":true,"n":2,
      "stream_options":{"continuous_usage_stats":true}})");
  ASSERT_EQ(texts.size(), 5U);
  EXPECT_EQ(OrderedJson::parse(texts[1])["usage"]["completion_tokens"], 1);
  EXPECT_EQ(OrderedJson::parse(texts[3])["usage"]["completion_tokens"], 2);
  EXPECT_EQ(OrderedJson::parse(texts[4])["usage"].dump(),
            R"({"prompt_tokens":3,"total_tokens":7,"completion_tokens":4,)"
            R"("prompt_tokens_details":{"cached_tokens":1}})");
}

TEST(OpenAiResponseTest, ChoicesAreNumberedOverAllPrompts) {
  const Texts whole = Complete(R"({"prompt":["a","b"],"n":2})");
  EXPECT_THAT(Each(whole, "index"), ElementsAre("0", "1", "2", "3"));
  EXPECT_THAT(Each(whole, "text"),
              ElementsAre("\" t20 t21\"", "\" t30 t31\"", "\" t20 t21\"", "\" t30 t31\""));
  EXPECT_EQ(OrderedJson::parse(whole[0])["usage"].dump(),
            R"({"prompt_tokens":6,"total_tokens":14,"completion_tokens":8,)"
            R"("prompt_tokens_details":{"cached_tokens":2}})");
  EXPECT_THAT(Each(Complete(R"({"prompt":["a","b"],"n":2,"stream":true})"), "index"),
              ElementsAre("0", "2", "1", "3", "0", "2", "1", "3"));
}

TEST(OpenAiResponseTest, CompletionLogprobsHaveTheTokenFirst) {
  EXPECT_THAT(
      Each(Complete(R"({"prompt":"a","logprobs":2})"), "logprobs"),
      ElementsAre(R"({"tokens":[" t20"," t21"],"token_logprobs":[-1.25,-1.3125],)"
                  R"("top_logprobs":[{" t20":-1.25," t19":-1.1875},{" t21":-1.3125," t20":-1.25}],)"
                  R"("text_offset":[0,4]})"));
  EXPECT_THAT(
      Each(Complete(R"({"prompt":"a","logprobs":0,"return_tokens_as_token_ids":true})"),
           "logprobs"),
      ElementsAre(R"({"tokens":["token_id:20","token_id:21"],"token_logprobs":[-1.25,-1.3125],)"
                  R"("top_logprobs":[{"token_id:20":-1.25},{"token_id:21":-1.3125}],)"
                  R"("text_offset":[0,11]})"));
}

TEST(OpenAiResponseTest, TextOffsetsOfAStreamContinue) {
  const auto offsets = Each(Complete(R"({"prompt":"a","logprobs":0,"stream":true})"), "logprobs");
  ASSERT_EQ(offsets.size(), 2U);
  EXPECT_EQ(OrderedJson::parse(offsets[0])["text_offset"].dump(), "[0]");
  EXPECT_EQ(OrderedJson::parse(offsets[1])["text_offset"].dump(), "[4]");
  const auto characters = Each(
      Complete(R"({"prompt":"a","logprobs":0})", [](int32_t) { return "\xC3\xA4\xE2\x82\xAC"; }),
      "logprobs");
  EXPECT_EQ(OrderedJson::parse(characters[0])["text_offset"].dump(), "[0,2]");
}

TEST(OpenAiResponseTest, OfTwoTokensWithOneTextTheLikelierIsReported) {
  const auto logprobs = Each(
      Complete(R"({"prompt":"a","logprobs":3})", [](int32_t id) { return id == 20 ? "x" : "y"; }),
      "logprobs");
  EXPECT_EQ(OrderedJson::parse(logprobs[0])["top_logprobs"][0].dump(),
            R"({"x":-1.25,"y":-1.1875})");
}

TEST(OpenAiResponseTest, TokensWithoutACharacterShareOneKeyOfTopLogprobs) {
  const auto text = [](int32_t id) { return std::string(1, static_cast<char>(0x80 + id)); };
  EXPECT_THAT(Complete(R"({"prompt":"a","logprobs":3})", text),
              ElementsAre(HasSubstr("\"top_logprobs\":[{\"\xEF\xBF\xBD\":-1.25},"
                                    "{\"\xEF\xBF\xBD\":-1.3125}]")));
}

TEST(OpenAiResponseTest, TextOffsetsCountCharactersOfTheText) {
  const auto offsets = [](std::string_view first) {
    const auto text = [first](int32_t id) { return id == 20 ? std::string(first) : "\x98\x80"; };
    return OrderedJson::parse(Each(Complete(R"({"prompt":"a","logprobs":0,"stream":true})", text),
                                   "logprobs")[1])["text_offset"][0]
        .get<int>();
  };
  EXPECT_EQ(offsets("\xF0\x9F"), 1) << "a character that the next token completes";
  EXPECT_EQ(offsets("\x98\x80"), 2) << "each stray byte is one U+FFFD";
  EXPECT_EQ(offsets("\xC3\xA4\x80"), 2);
  EXPECT_EQ(offsets("\xED\xA0\x80"), 3) << "a surrogate is no character";
  EXPECT_EQ(offsets("\xE2\x82z"), 2) << "a cut character is one U+FFFD";
}

TEST(OpenAiResponseTest, AnEchoedPromptPrecedesTextAndTokens) {
  for (const bool stream : {false, true}) {
    const Texts texts = Complete(absl::StrCat(
        R"({"prompt":"Hi","echo":true,"n":2,"logprobs":0,"stream":)", stream ? "true}" : "false}"));
    const auto text = Each(texts, "text");
    const auto logprobs = OrderedJson::parse(Each(texts, "logprobs")[1]);
    EXPECT_EQ(text[0], stream ? "\"Hi t20\"" : "\"Hi t20 t21\"");
    EXPECT_EQ(text[1], stream ? "\"Hi t30\"" : "\"Hi t30 t31\"");
    EXPECT_EQ(logprobs["tokens"][3], " t30");
    EXPECT_EQ(logprobs["tokens"].size(), stream ? 4U : 5U);
    EXPECT_EQ(logprobs["token_logprobs"][0], nullptr);
    EXPECT_EQ(logprobs["top_logprobs"][0], nullptr);
    EXPECT_EQ(logprobs["token_logprobs"][2], -0.125);
    EXPECT_EQ(logprobs["text_offset"][3], 9);
    if (stream) {
      EXPECT_EQ(text[2], "\" t21\"");
    }
  }
}

TEST(OpenAiResponseTest, AScoredTextHasNoOutput) {
  const Texts texts = Complete(R"({"prompt":"Hi","echo":true,"max_tokens":0,"logprobs":1})");
  EXPECT_THAT(Each(texts, "text"), ElementsAre("\"Hi\""));
  EXPECT_THAT(Each(texts, "finish_reason"), ElementsAre("\"length\""));
  const auto logprobs = OrderedJson::parse(Each(texts, "logprobs")[0]);
  EXPECT_EQ(logprobs["token_logprobs"].dump(), "[null,-0.0625,-0.125]");
  EXPECT_EQ(OrderedJson::parse(texts[0])["usage"]["completion_tokens"], 0);
}

TEST(OpenAiResponseTest, PromptLogprobsNameRanksThatAreKnown) {
  const auto completion =
      Each(Complete(R"({"prompt":"a","prompt_logprobs":2})"), "prompt_logprobs");
  EXPECT_THAT(completion,
              ElementsAre(R"([null,{"1":{"logprob":-0.0625,"rank":2,"decoded_token":" t1"},)"
                          R"("0":{"logprob":0.0,"rank":1,"decoded_token":" t0"}},)"
                          R"({"2":{"logprob":-0.125,"rank":2,"decoded_token":" t2"},)"
                          R"("1":{"logprob":-0.0625,"rank":1,"decoded_token":" t1"}}])"));
  const auto unranked = Each(Complete(R"({"prompt":"a","prompt_logprobs":0})"), "prompt_logprobs");
  EXPECT_EQ(OrderedJson::parse(unranked[0])[1].dump(),
            R"({"1":{"logprob":-0.0625,"rank":null,"decoded_token":" t1"}})");
  EXPECT_THAT(
      Each(Complete(R"({"prompt":"a","prompt_logprobs":0,"stream":true})"), "prompt_logprobs"),
      ElementsAre("absent", "absent"));
  const Texts chat = Chat(R"({"messages":[{"role":"user"}],"prompt_logprobs":1})");
  EXPECT_EQ(OrderedJson::parse(chat[0])["prompt_logprobs"].size(), 3U);
}

TEST(OpenAiResponseTest, TokenIdsAreReturnedOnRequest) {
  const Texts whole = Complete(R"({"prompt":"a","return_token_ids":true})");
  EXPECT_THAT(Each(whole, "token_ids"), ElementsAre("[20,21]"));
  EXPECT_THAT(Each(whole, "prompt_token_ids"), ElementsAre("[0,1,2]"));
  const Texts stream = Complete(R"({"prompt":"a","return_token_ids":true,"stream":true})");
  EXPECT_THAT(Each(stream, "token_ids"), ElementsAre("[20]", "[21]"));
  EXPECT_THAT(Each(stream, "prompt_token_ids"), ElementsAre("[0,1,2]", "absent"));
  const Texts chat =
      Chat(R"({"messages":[{"role":"user"}],"return_token_ids":true,"stream":true})");
  EXPECT_THAT(Each(chat, "token_ids"), ElementsAre("absent", "[20]", "[21]"));
  EXPECT_EQ(OrderedJson::parse(chat[0])["prompt_token_ids"].dump(), "[0,1,2]");
}

TEST(OpenAiResponseTest, AWholeChatIsOneObject) {
  EXPECT_THAT(
      Chat(R"({"messages":[{"role":"user","content":"Hi"}]})"),
      ElementsAre(
          R"({"id":"chatcmpl-r1","object":"chat.completion","created":1700000000,"model":"tiny",)"
          R"("choices":[{"index":0,"message":{"role":"assistant","content":" t20 t21"},)"
          R"("logprobs":null,"finish_reason":"length","stop_reason":null}],)"
          R"("system_fingerprint":"cpu/1",)"
          R"("usage":{"prompt_tokens":3,"total_tokens":5,"completion_tokens":2,)"
          R"("prompt_tokens_details":{"cached_tokens":1}}})"));
}

TEST(OpenAiResponseTest, AStreamedChatBeginsWithTheRoleOfEachChoice) {
  const Texts texts = Chat(R"({"messages":[{"role":"user"}],"n":2,"stream":true})");
  EXPECT_EQ(
      texts[0],
      R"({"id":"chatcmpl-r1","object":"chat.completion.chunk","created":1700000000,"model":"tiny",)"
      R"("choices":[{"index":0,"delta":{"role":"assistant","content":""},"logprobs":null,)"
      R"("finish_reason":null}],"system_fingerprint":"cpu/1"})");
  EXPECT_THAT(Each(texts, "index"), ElementsAre("0", "1", "0", "1", "0", "1"));
  EXPECT_THAT(Each(texts, "delta"),
              ElementsAre(R"({"role":"assistant","content":""})",
                          R"({"role":"assistant","content":""})",
                          R"({"content":" t20"})",
                          R"({"content":" t30"})",
                          R"({"content":" t21"})",
                          R"({"content":" t31"})"));
  EXPECT_THAT(Each(texts, "finish_reason"),
              ElementsAre("null", "null", "null", "null", "\"length\"", "\"length\""));
}

TEST(OpenAiResponseTest, ChatLogprobsHaveTheBytesOfEachToken) {
  const auto logprobs = Each(
      Chat(R"({"messages":[{"role":"user"}],"logprobs":true,"top_logprobs":1})",
           [](int32_t id) { return std::string(1, static_cast<char>(id == 20 ? 0xE2 : 'a')); }),
      "logprobs");
  EXPECT_EQ(OrderedJson::parse(logprobs[0])["content"][0].dump(),
            "{\"token\":\"\xEF\xBF\xBD\",\"logprob\":-1.25,\"bytes\":[226],"
            R"("top_logprobs":[{"token":"a","logprob":-1.1875,"bytes":[97]}]})");
}

TEST(OpenAiResponseTest, AChatEchoesTheMessageThatItContinues) {
  constexpr std::string_view kBody = R"({"messages":[{"role":"bot","content":"Once"}],"echo":true,
      "add_generation_prompt":false,"continue_final_message":true,"logprobs":true)";
  const Texts whole = Chat(absl::StrCat(std::string(kBody), "}"));
  EXPECT_THAT(Each(whole, "message"), ElementsAre(R"({"role":"bot","content":"Once t20 t21"})"));
  EXPECT_EQ(OrderedJson::parse(Each(whole, "logprobs")[0])["content"].size(), 2U);
  EXPECT_THAT(
      Each(Chat(absl::StrCat(std::string(kBody), R"(,"stream":true})")), "delta"),
      ElementsAre(
          R"({"role":"bot","content":""})", R"({"content":"Once t20"})", R"({"content":" t21"})"));
}

// The end of one choice, as JSON of its two reasons.
std::string EndOf(std::string_view fields, const v1::Finished& finished) {
  auto parsed =
      ParseCompletionRequest(absl::StrCat(R"({"prompt":"a")", std::string(fields), "}"), "r1");
  EXPECT_TRUE(parsed.ok());
  CompletionResponse response(parsed->options, kCreated, FakeTokenText);
  v1::GenerateResponse message = FakeStart(parsed->requests[0], 3);
  message.mutable_chunk()->add_token_ids(7);
  *message.mutable_finished() = finished;
  response.Take(0, message);
  const OrderedJson choice = OrderedJson::parse(response.Finish()[0])["choices"][0];
  return absl::StrCat(
      choice["text"].dump(), choice["finish_reason"].dump(), choice["stop_reason"].dump());
}

TEST(OpenAiResponseTest, TheStopReasonIsTheStopStringOrToken) {
  v1::Finished finished;
  finished.set_reason(v1::FINISH_REASON_STOP);
  EXPECT_EQ(EndOf(R"(,"stop_token_ids":[7])", finished), R"("""stop"7)");
  EXPECT_EQ(EndOf(R"(,"stop_token_ids":[8])", finished), R"("""stop"null)");
  finished.set_matched_stop("END");
  finished.set_text("held");
  EXPECT_EQ(EndOf(R"(,"stop":"END","stop_token_ids":[7])", finished), R"("held""stop""END")");
  finished.Clear();
  finished.set_reason(v1::FINISH_REASON_LENGTH);
  EXPECT_EQ(EndOf(R"(,"stop_token_ids":[7])", finished), R"("""length"null)");
}

TEST(OpenAiResponseTest, AMessageThatTellsNothingIsNoEvent) {
  auto parsed = ParseCompletionRequest(R"({"prompt":"a","stream":true})", "r1");
  ASSERT_TRUE(parsed.ok());
  CompletionResponse response(parsed->options, kCreated, FakeTokenText);
  EXPECT_THAT(response.Take(0, FakeStart(parsed->requests[0], 3)), IsEmpty());
  v1::GenerateResponse held_back;
  held_back.mutable_chunk()->add_token_ids(5);
  EXPECT_THAT(response.Take(0, held_back), IsEmpty());
  v1::GenerateResponse unasked;
  unasked.mutable_finished()->set_index(1);
  unasked.mutable_finished()->set_reason(v1::FINISH_REASON_STOP);
  EXPECT_THAT(response.Take(0, unasked), IsEmpty());
  EXPECT_FALSE(response.has_ended());
}

TEST(OpenAiResponseTest, AnAnswerThatFindsNoRoomReleasesItsShareAtOnce) {
  ScoreBudget budget;
  std::vector<std::unique_ptr<ScoreCharge>> answers;
  for (int i = 0; i < 5; ++i) {
    answers.push_back(std::make_unique<ScoreCharge>(budget));
    EXPECT_TRUE(answers.back()->Add(ScoreBudget::kMaxOfAll / 5));
  }
  EXPECT_FALSE(answers[0]->Add(ScoreBudget::kMaxOfAll / 10));
  EXPECT_EQ(answers[0]->num_scores(), 0);
  EXPECT_TRUE(answers[1]->Add(ScoreBudget::kMaxOfAll / 10));
  EXPECT_TRUE(answers[2]->Add(ScoreBudget::kMaxOfAll / 10));
  answers.clear();
  EXPECT_TRUE(budget.Charge(ScoreBudget::kMaxOfAll)) << "nothing is charged twice";
}

TEST(OpenAiResponseTest, AnInfiniteLogprobBecomesAFiniteOne) {
  v1::TokenLogprobs logprobs;
  logprobs.set_logprob(-std::numeric_limits<float>::infinity());
  const std::vector<ScoredToken> tokens = {{.id = 5, .logprobs = logprobs}};
  CharacterCounter characters;
  EXPECT_EQ(CompletionLogprobs(tokens, FakeTokenText, &characters)["token_logprobs"].dump(),
            "[-9999.0]");
  EXPECT_EQ(ChatLogprobs(tokens, FakeTokenText)["content"][0]["logprob"], -9999.0);
}

TEST(OpenAiResponseTest, SmallRoutesAnswerLikeVllm) {
  v1::GetServerInfoResponse info;
  info.set_model("tiny");
  info.add_model_names("tiny");
  info.add_model_names("small");
  info.set_max_model_len_tokens(100);
  const std::string rest =
      R"("object":"model","created":5,"owned_by":"quire","root":"tiny","parent":null,)"
      R"("max_model_len":100})";
  EXPECT_EQ(
      ModelsBody(info, 5),
      R"({"object":"list","data":[{"id":"tiny",)" + rest + R"(,{"id":"small",)" + rest + "]}");
  EXPECT_EQ(ModelBody(info, "small", 5), R"({"id":"small",)" + rest);
  const std::vector<int32_t> tokens = {3, 4};
  EXPECT_EQ(TokenizeAnswer(tokens, 100, std::nullopt),
            R"({"count":2,"max_model_len":100,"tokens":[3,4],"token_strs":null})");
  EXPECT_EQ(TokenizeAnswer(tokens, 100, Texts{"a", "b"}),
            R"({"count":2,"max_model_len":100,"tokens":[3,4],"token_strs":["a","b"]})");
  EXPECT_EQ(DetokenizeAnswer("a\"b"), R"({"prompt":"a\"b"})");
  EXPECT_EQ(ApplyTemplateAnswer("x"), R"({"prompt":"x"})");
  EXPECT_EQ(VersionBody("0.1.0"), R"({"version":"0.1.0"})");
}

}  // namespace
}  // namespace quire
