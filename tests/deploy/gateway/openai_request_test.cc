#include <cstdint>
#include <fstream>
#include <sstream>
#include <string>
#include <string_view>

#include "absl/strings/str_cat.h"
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "common/base/error.h"
#include "common/json/json.h"
#include "deploy/gateway/openai/chat_request.h"
#include "deploy/gateway/openai/completion_request.h"
#include "deploy/gateway/openai/error_body.h"
#include "deploy/gateway/openai/service_bodies.h"

namespace quire {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

CompletionRequest Completion(std::string_view body) {
  auto parsed = ParseCompletionRequest(body, "r1");
  EXPECT_TRUE(parsed.ok()) << body << " " << parsed.status();
  return parsed.ok() ? *parsed : CompletionRequest{.requests = std::vector<v1::GenerateRequest>(1)};
}

v1::GenerateRequest CompletionWith(std::string_view fields) {
  return Completion(absl::StrCat(R"({"prompt":"a",)", std::string(fields), "}")).requests[0];
}

absl::StatusOr<ChatRequest> TryChat(std::string_view fields) {
  return ParseChatRequest(absl::StrCat("{", std::string(fields), "}"), "r1");
}

ChatRequest Chat(std::string_view fields) {
  auto parsed = TryChat(fields);
  EXPECT_TRUE(parsed.ok()) << fields << " " << parsed.status();
  return parsed.ok() ? *parsed : ChatRequest{.prompt = {.variables = {{"messages", {}}}}};
}

std::string Messages(std::string_view messages) {
  return Chat(absl::StrCat(R"("messages":)", std::string(messages))).prompt.messages().dump();
}

absl::Status ParseRoute(const std::string& route, const std::string& body) {
  if (route == "completions") {
    return ParseCompletionRequest(body, "r1").status();
  }
  if (route == "chat") {
    return ParseChatRequest(body, "r1").status();
  }
  if (route == "tokenize") {
    return ParseTokenizeBody(body).status();
  }
  return ParseDetokenizeBody(body).status();
}

// Returns "STATUS PARAM", as in openai_bodies.txt.
std::string Verdict(const std::string& route, const std::string& body) {
  const absl::Status status = ParseRoute(route, body);
  if (status.ok()) {
    return "200 -";
  }
  const auto api = route == "chat" ? OpenAiApi::kChat : OpenAiApi::kCompletions;
  const HttpError error = ToHttpError(status, std::nullopt, api);
  const Json param = Json::parse(error.body)["error"]["param"];
  return absl::StrCat(error.status, " ", param.is_null() ? "-" : param.get<std::string>());
}

TEST(OpenAiRequestTest, BodiesAreAcceptedOrRefusedAsListed) {
  std::ifstream file("tests/deploy/gateway/testdata/openai_bodies.txt");
  std::string line;
  int num_bodies = 0;
  while (std::getline(file, line)) {
    if (line.starts_with('#')) {
      continue;
    }
    std::istringstream columns(line);
    std::string route;
    std::string ours;
    std::string vllms;
    std::string param;
    columns >> route >> ours >> vllms >> param;
    columns.get();
    std::string body;
    std::getline(columns, body);
    EXPECT_EQ(Verdict(route, body), ours + " " + param) << line;
    ++num_bodies;
  }
  EXPECT_GE(num_bodies, 150);
  EXPECT_EQ(Verdict("completions", ""), "400 -");
}

TEST(OpenAiRequestTest, CompletionFieldsReachTheScheduler) {
  const v1::GenerateRequest request = CompletionWith(R"(
      "model":"tiny","max_tokens":7,"min_tokens":2,"n":3,"best_of":4,"temperature":0.5,"top_k":9,
      "top_p":0.25,"min_p":0.125,"presence_penalty":1,"frequency_penalty":-1.5,
      "repetition_penalty":1.25,"seed":42,"stop":["x","y"],"stop_token_ids":[4,5],
      "include_stop_str_in_output":true,"ignore_eos":true,"logit_bias":{"5":1.5,"6":-200},
      "logprobs":3,"prompt_logprobs":2,"skip_special_tokens":false,"add_special_tokens":false,
      "priority":-3,"cache_salt":"pepper","bypass_prefix_cache":true,"request_id":"abc")");
  EXPECT_EQ(request.request_id(), "cmpl-abc");
  EXPECT_EQ(request.model(), "tiny");
  EXPECT_EQ(request.text(), "a");
  EXPECT_FALSE(request.has_token_ids());
  EXPECT_EQ(request.n(), 3);
  EXPECT_EQ(request.best_of(), 4);
  EXPECT_EQ(request.priority(), -3);
  EXPECT_EQ(request.cache_salt(), "pepper");
  EXPECT_TRUE(request.bypass_prefix_cache());
  EXPECT_FALSE(request.add_special_tokens());
  EXPECT_TRUE(request.parse_special_tokens());
  const v1::SamplingParams& sampling = request.sampling();
  EXPECT_EQ(sampling.temperature(), 0.5F);
  EXPECT_EQ(sampling.top_k(), 9);
  EXPECT_EQ(sampling.top_p(), 0.25F);
  EXPECT_EQ(sampling.min_p(), 0.125F);
  EXPECT_EQ(sampling.presence_penalty(), 1.0F);
  EXPECT_EQ(sampling.frequency_penalty(), -1.5F);
  EXPECT_EQ(sampling.repetition_penalty(), 1.25F);
  EXPECT_EQ(sampling.seed(), 42U);
  ASSERT_EQ(sampling.logit_bias_size(), 2);
  EXPECT_EQ(sampling.logit_bias(0).token_id(), 5);
  EXPECT_EQ(sampling.logit_bias(0).bias(), 1.5F);
  EXPECT_EQ(sampling.logit_bias(1).bias(), -100.0F);
  const v1::StoppingParams& stopping = request.stopping();
  EXPECT_EQ(stopping.max_tokens(), 7);
  EXPECT_EQ(stopping.min_tokens(), 2);
  EXPECT_THAT(stopping.stop(), ElementsAre("x", "y"));
  EXPECT_THAT(stopping.stop_token_ids(), ElementsAre(4, 5));
  EXPECT_TRUE(stopping.include_stop_in_output());
  EXPECT_TRUE(stopping.ignore_eos());
  EXPECT_EQ(request.response().logprobs(), 3);
  EXPECT_EQ(request.response().prompt_logprobs(), 2);
  EXPECT_FALSE(request.response().skip_special_tokens());
}

TEST(OpenAiRequestTest, AbsentFieldsLeaveTheModelsDefaults) {
  const v1::GenerateRequest request = CompletionWith(R"("temperature":null)");
  EXPECT_EQ(request.request_id(), "cmpl-r1");
  EXPECT_FALSE(request.sampling().has_temperature());
  EXPECT_FALSE(request.sampling().has_top_k());
  EXPECT_FALSE(request.sampling().has_top_p());
  EXPECT_FALSE(request.sampling().has_seed());
  EXPECT_FALSE(request.has_priority());
  EXPECT_FALSE(request.response().has_logprobs());
  EXPECT_FALSE(request.response().has_prompt_logprobs());
  EXPECT_EQ(request.stopping().max_tokens(), 16);
  EXPECT_TRUE(request.add_special_tokens());
}

TEST(OpenAiRequestTest, NumbersWithAMeaningOfTheirOwnAreConverted) {
  EXPECT_FALSE(CompletionWith(R"("max_tokens":null)").stopping().has_max_tokens());
  EXPECT_EQ(CompletionWith(R"("top_k":-1)").sampling().top_k(), 0);
  const v1::SamplingParams likeliest = CompletionWith(R"("top_p":0,"temperature":1)").sampling();
  EXPECT_EQ(likeliest.temperature(), 0.0F);
  EXPECT_FALSE(likeliest.has_top_p());
  EXPECT_EQ(CompletionWith(R"("seed":-5)").sampling().seed(), static_cast<uint64_t>(-5));
  EXPECT_FALSE(CompletionWith(R"("seed":-1)").sampling().has_seed());
  EXPECT_FALSE(CompletionWith(R"("priority":0)").has_priority());
  EXPECT_FALSE(
      CompletionWith(R"("prompt_logprobs":0,"stream":true)").response().has_prompt_logprobs());
}

TEST(OpenAiRequestTest, EachPromptIsARequestOfItsOwn) {
  const CompletionRequest texts = Completion(R"({"prompt":["a","b"],"echo":true})");
  ASSERT_EQ(texts.requests.size(), 2U);
  EXPECT_EQ(texts.requests[0].request_id(), "cmpl-r1-0");
  EXPECT_EQ(texts.requests[1].request_id(), "cmpl-r1-1");
  EXPECT_EQ(texts.requests[1].text(), "b");
  EXPECT_EQ(texts.options.id, "cmpl-r1");
  EXPECT_EQ(texts.options.prompts[1].text, "b");
  const CompletionRequest ids = Completion(R"({"prompt":[[1,2],[3]]})");
  ASSERT_EQ(ids.requests.size(), 2U);
  EXPECT_FALSE(ids.requests[0].has_text());
  EXPECT_THAT(ids.requests[0].token_ids().ids(), ElementsAre(1, 2));
  EXPECT_THAT(ids.options.prompts[1].token_ids, ElementsAre(3));
  EXPECT_EQ(Completion(R"({"prompt":[4,5]})").requests.size(), 1U);
}

TEST(OpenAiRequestTest, ATextIsScoredByOneTokenThatIsOmitted) {
  const CompletionRequest scored =
      Completion(R"({"prompt":"a","max_tokens":0,"echo":true,"logprobs":2})");
  EXPECT_TRUE(scored.options.omits_output);
  EXPECT_EQ(scored.requests[0].stopping().max_tokens(), 1);
  EXPECT_EQ(scored.requests[0].response().prompt_logprobs(), 2);
  EXPECT_FALSE(scored.options.has_prompt_logprobs);
  EXPECT_TRUE(scored.options.needs_prompt_token_ids());
  const CompletionRequest refused = Completion(R"({"prompt":"a","max_tokens":0})");
  EXPECT_FALSE(refused.options.omits_output);
  EXPECT_EQ(refused.requests[0].stopping().max_tokens(), 0);  // the scheduler refuses it
}

TEST(OpenAiRequestTest, StreamOptionsAskForUsage) {
  const auto options = [](std::string_view fields) {
    return Completion(absl::StrCat(R"({"prompt":"a",)", std::string(fields), "}")).options;
  };
  EXPECT_FALSE(options(R"("stream":true)").include_usage);
  EXPECT_TRUE(options(R"("stream":true,"stream_options":{})").include_usage);
  EXPECT_FALSE(options(R"("stream":true,"stream_options":{"include_usage":false})").include_usage);
  EXPECT_TRUE(options(R"("stream":true,"stream_options":{"continuous_usage_stats":true})")
                  .continuous_usage);
  EXPECT_FALSE(options(R"("stream":true,"stream_options":
      {"include_usage":false,"continuous_usage_stats":true})")
                   .continuous_usage);
}

TEST(OpenAiRequestTest, AChatHasNoDefaultLength) {
  constexpr std::string_view kMessages = R"("messages":[{"role":"user","content":"Hi"}],)";
  const auto max_tokens = [&](std::string_view fields) {
    const auto stopping =
        Chat(absl::StrCat(std::string(kMessages), std::string(fields))).request.stopping();
    return stopping.has_max_tokens() ? stopping.max_tokens() : -1;
  };
  EXPECT_EQ(max_tokens(R"("n":1)"), -1);
  EXPECT_EQ(max_tokens(R"("max_tokens":4)"), 4);
  EXPECT_EQ(max_tokens(R"("max_tokens":4,"max_completion_tokens":5)"), 5);
  const auto name = [&](std::string_view fields) {
    return Chat(absl::StrCat(std::string(kMessages), std::string(fields))).options.max_tokens_name;
  };
  EXPECT_EQ(name(R"("n":1)"), "max_tokens");
  EXPECT_EQ(name(R"("max_tokens":4,"max_completion_tokens":null)"), "max_tokens");
  EXPECT_EQ(name(R"("max_tokens":4,"max_completion_tokens":5)"), "max_completion_tokens");
  const ChatRequest chat =
      Chat(absl::StrCat(std::string(kMessages), R"("logprobs":true,"top_logprobs":2)"));
  EXPECT_EQ(chat.request.request_id(), "chatcmpl-r1");
  EXPECT_FALSE(chat.request.add_special_tokens());
  EXPECT_EQ(chat.request.response().logprobs(), 2);
  EXPECT_EQ(chat.options.num_top_logprobs, 2);
}

TEST(OpenAiRequestTest, ContentsBecomeStrings) {
  EXPECT_EQ(Messages(R"([{"role":"user","content":"Hi","name":"Bob","unknown":1}])"),
            R"([{"role":"user","content":"Hi","name":"Bob"}])");
  EXPECT_EQ(Messages(R"([{"content":["a",{"type":"text","text":"b"},{"type":"text","text":null},"",
                          {"type":"text","text":""},{"type":"refusal","refusal":"c"}],
                 "role":"user"}])"),
            R"([{"role":"user","content":"a\nb\nc"}])");
  EXPECT_EQ(Messages(R"([{"role":"assistant","content":null},{"role":"critic"}])"),
            R"([{"role":"assistant","content":""},{"role":"critic","content":""}])");
  EXPECT_EQ(Messages(R"([{"role":"assistant","content":"x","reasoning_content":"y"}])"),
            R"([{"thinking":"y","role":"assistant","content":"x","reasoning":"y",)"
            R"("reasoning_content":"y"}])");
  EXPECT_EQ(Messages(R"([{"role":"tool","content":"x","tool_call_id":"1","tool_calls":[]}])"),
            R"([{"role":"tool","content":"x","tool_call_id":"1"}])");
}

TEST(OpenAiRequestTest, ContentsBecomePartsForATemplateThatLoopsOverThem) {
  const auto chat = ParseChatRequest(
      R"({"messages":[{"role":"system","content":"Hi"},{"role":"tool"},{"role":"user","content":""},
          {"role":"assistant","content":["a",{"type":"text","text":null},
                                         {"type":"refusal","refusal":"b"}]}],
          "add_generation_prompt":false,"echo":true})",
      "r1",
      ContentFormat::kParts);
  ASSERT_TRUE(chat.ok()) << chat.status();
  EXPECT_EQ(chat->prompt.messages().dump(),
            R"([{"role":"system","content":[{"type":"text","text":"Hi"}]},)"
            R"({"role":"tool","content":[]},)"
            R"({"role":"user","content":[{"type":"text","text":""}]},)"
            R"({"role":"assistant","content":[{"type":"text","text":"a"},)"
            R"({"type":"text","text":"b"}]}])");
  EXPECT_EQ(chat->options.prompts[0].text, "a\nb");
  const auto body = R"({"messages":[{"role":"user","content":"Hi"}]})";
  const auto tokenize = ParseTokenizeBody(body, ContentFormat::kParts);
  ASSERT_TRUE(tokenize.ok()) << tokenize.status();
  EXPECT_TRUE(tokenize->chat->messages()[0]["content"].is_array());
}

TEST(OpenAiRequestTest, ArgumentsOfToolCallsBecomeObjectsOfTheSameOrder) {
  EXPECT_EQ(Messages(R"([{"role":"assistant","tool_calls":[
                {"id":"1","type":"function",
                 "function":{"name":"f","arguments":"{\"z\":1,\"a\":[2]}"}},
                {"id":"2","type":"function","function":{"name":"g"}}]}])"),
            R"([{"role":"assistant","content":"","tool_calls":[)"
            R"({"id":"1","type":"function","function":{"name":"f","arguments":{"z":1,"a":[2]}}},)"
            R"({"id":"2","type":"function","function":{"name":"g","arguments":{}}}]}])");
}

TEST(OpenAiRequestTest, ToolsHaveAllFieldsInTheOrderOfVllm) {
  const ChatRequest chat = Chat(R"("messages":[{"role":"user","content":"Hi"}],"tool_choice":"none",
      "tools":[{"function":{"strict":true,"parameters":{"z":1,"a":2},"name":"f"}}])");
  EXPECT_EQ(chat.prompt.variables["tools"].dump(),
            R"([{"type":"function","function":{"name":"f","description":null,)"
            R"("parameters":{"z":1,"a":2},"strict":true}}])");
}

TEST(OpenAiRequestTest, TemplateVariablesAreThoseOfTheRequest) {
  EXPECT_EQ(Chat(R"("messages":[{"role":"user","content":"Hi"}])").prompt.variables.dump(),
            R"({"messages":[{"role":"user","content":"Hi"}],"tools":null,"documents":null,)"
            R"("add_generation_prompt":true})");
  const ChatRequest chat = Chat(R"("messages":[{"role":"assistant","content":"Hi"}],
      "documents":[{"text":"d"}],"add_generation_prompt":false,"continue_final_message":true,
      "chat_template_kwargs":{"enable_thinking":false})");
  EXPECT_TRUE(chat.prompt.continues_final_message);
  EXPECT_EQ(chat.prompt.variables["documents"].dump(), R"([{"text":"d"}])");
  EXPECT_EQ(chat.prompt.variables["add_generation_prompt"], false);
  EXPECT_EQ(chat.prompt.variables["enable_thinking"], false);
}

TEST(OpenAiRequestTest, AChatEchoesItsOwnBeginningOfTheAnswer) {
  const AnswerOptions continued = Chat(R"("messages":[{"role":"bot","content":"Once"}],"echo":true,
      "add_generation_prompt":false)")
                                      .options;
  EXPECT_EQ(continued.role, "bot");
  EXPECT_TRUE(continued.echo);
  EXPECT_EQ(continued.prompts[0].text, "Once");
  const AnswerOptions asked =
      Chat(R"("messages":[{"role":"user","content":"Hi"}],"echo":true)").options;
  EXPECT_EQ(asked.role, "assistant");
  EXPECT_FALSE(asked.echo);
}

std::string Repeat(std::string_view text, int times) {
  std::string all;
  for (int i = 0; i < times; ++i) {
    all += text;
  }
  return all;
}

TEST(OpenAiRequestTest, LargeRequestsAreBounded) {
  const auto prompts = [](int number) {
    return Verdict("completions",
                   absl::StrCat(R"({"prompt":[)", Repeat(R"("a",)", number - 1), R"("a"]})"));
  };
  EXPECT_EQ(prompts(128), "200 -");
  EXPECT_EQ(prompts(129), "400 prompt");
  const std::string message = R"({"role":"user","content":"Hi"},)";
  EXPECT_EQ(
      Verdict("chat",
              absl::StrCat(R"({"messages":[)", Repeat(message, 9'999), R"({"role":"user"}]})")),
      "200 -");
  const auto nested = [](int depth) {
    return Verdict(
        "completions",
        absl::StrCat(R"({"prompt":"a","x":)", Repeat("[", depth), Repeat("]", depth), "}"));
  };
  EXPECT_EQ(nested(63), "200 -");
  EXPECT_EQ(nested(64), "400 -");
  const auto arguments = [](int megabytes) {
    const std::string call = absl::StrCat(
        R"({"function":{"name":"f","arguments":"\")", Repeat("a", (1 << 19) - 2), R"(\""}})");
    return Verdict("chat",
                   absl::StrCat(R"({"messages":[{"role":"assistant","tool_calls":[)",
                                call,
                                Repeat("," + call, 2 * megabytes - 1),
                                "]}]}"));
  };
  EXPECT_EQ(arguments(1), "200 -");
  EXPECT_EQ(arguments(2), "400 messages[0].tool_calls[2].function.arguments");
  const auto kwargs = [](int number) {
    std::string members;
    for (int i = 0; i < number; ++i) {
      absl::StrAppend(&members, i > 0 ? "," : "", "\"k", i, "\":1");
    }
    return Verdict(
        "chat",
        absl::StrCat(R"({"messages":[{"role":"user"}],"chat_template_kwargs":{)", members, "}}"));
  };
  EXPECT_EQ(kwargs(64), "200 -");
  EXPECT_EQ(kwargs(65), "400 chat_template_kwargs");
}

TEST(OpenAiRequestTest, ErrorsDoNotRepeatTheClientsText) {
  for (const char* body : {R"({"prompt":5,"SECRET":1})",
                           R"({"prompt":["a",{"SECRET":1}]})",
                           R"({"prompt":"SECRET","n":"SECRET"})",
                           R"({"prompt":"SECRET","logit_bias":{"SECRET":1}})",
                           R"({"prompt":"SECRET","request_id":"SECRET!"})",
                           R"({"prompt":"SECRET","response_format":{"type":"SECRET"}})",
                           R"({"prompt":"SECRET","SECRET":1,"SECRET":2})",
                           R"({"prompt":SECRET})"}) {
    const absl::Status status = ParseCompletionRequest(body, "r1").status();
    EXPECT_FALSE(status.ok()) << body;
    EXPECT_THAT(std::string(status.message()), Not(HasSubstr("SECRET")));
  }
  for (const char* fields :
       {R"("messages":[{"role":"user","content":[{"type":"SECRET"}]}])",
        R"("messages":[{"role":"assistant","tool_calls":[
                                {"function":{"name":"SECRET","arguments":"SECRET"}}]}])",
        R"("messages":[{"role":"user"}],"tool_choice":"SECRET")",
        R"("messages":[{"role":"user"}],"chat_template_kwargs":{"tokenize":"SECRET"})"}) {
    const absl::Status status = TryChat(fields).status();
    EXPECT_FALSE(status.ok()) << fields;
    EXPECT_THAT(std::string(status.message()), Not(HasSubstr("SECRET")));
  }
}

TEST(OpenAiRequestTest, TokenizeTakesATextOrAChat) {
  const auto text = ParseTokenizeBody(R"({"prompt":"Hi","return_token_strs":true,"model":"m"})");
  ASSERT_TRUE(text.ok());
  EXPECT_EQ(text->request.text(), "Hi");
  EXPECT_EQ(text->model, "m");
  EXPECT_TRUE(text->request.add_special_tokens());
  EXPECT_TRUE(text->request.parse_special_tokens());
  EXPECT_TRUE(text->returns_token_texts);
  EXPECT_FALSE(text->chat.has_value());
  const auto chat = ParseTokenizeBody(R"({"messages":[{"role":"user","content":"Hi"}]})");
  ASSERT_TRUE(chat.ok());
  EXPECT_FALSE(chat->request.add_special_tokens());
  EXPECT_EQ(chat->chat->messages().size(), 1U);
  EXPECT_EQ(ReasonOf(ParseApplyTemplateBody(R"({"prompt":"Hi"})").status()), "MISSING_FIELD");
  const auto ids = ParseDetokenizeBody(R"({"tokens":[3,1]})");
  ASSERT_TRUE(ids.ok());
  EXPECT_THAT(ids->request.token_ids(), ElementsAre(3, 1));
}

}  // namespace
}  // namespace quire
