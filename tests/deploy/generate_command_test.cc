#include "deploy/cli/generate_command.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace quire {
namespace {

TEST(GenerateCommandTest, FlagsBecomeTheRequest) {
  auto options = ParseGenerateArguments({"--server",
                                         "h:1",
                                         "--prompt-token-ids=4,5",
                                         "--max-tokens",
                                         "9",
                                         "--temperature",
                                         "0.5",
                                         "--top-k=3",
                                         "--top-p=0.25",
                                         "--seed=11",
                                         "--n=2",
                                         "--logprobs=0",
                                         "--stop",
                                         "a,b",
                                         "--stop",
                                         "c",
                                         "--ignore-eos",
                                         "--json"});

  ASSERT_TRUE(options.ok()) << options.status();
  const v1::GenerateRequest& r = options->request;
  EXPECT_EQ(options->server, "h:1");
  EXPECT_TRUE(options->json);
  EXPECT_EQ(r.token_ids().ids_size(), 2);
  EXPECT_EQ(r.stopping().max_tokens(), 9);
  EXPECT_EQ(r.sampling().temperature(), 0.5F);
  EXPECT_EQ(r.sampling().top_k(), 3);
  EXPECT_EQ(r.sampling().top_p(), 0.25F);
  EXPECT_EQ(r.sampling().seed(), 11U);
  EXPECT_EQ(r.n(), 2);
  EXPECT_TRUE(r.response().has_logprobs());
  ASSERT_EQ(r.stopping().stop_size(), 2);
  EXPECT_EQ(r.stopping().stop(0), "a,b");
  EXPECT_TRUE(r.stopping().ignore_eos());
}

TEST(GenerateCommandTest, UnsetFlagsStayUnset) {
  auto options = ParseGenerateArguments({"--prompt", "x"});

  ASSERT_TRUE(options.ok());
  EXPECT_FALSE(options->request.sampling().has_temperature());
  EXPECT_FALSE(options->request.stopping().has_max_tokens());
  EXPECT_FALSE(options->request.has_n());
}

TEST(GenerateCommandTest, APromptIsNeeded) {
  EXPECT_FALSE(ParseGenerateArguments({"--max-tokens=3"}).ok());
}

v1::GenerateResponse ChunkOfTwo() {
  v1::GenerateResponse response;
  response.mutable_chunk()->set_index(1);
  response.mutable_chunk()->set_first_position(3);
  response.mutable_chunk()->add_token_ids(7);
  response.mutable_chunk()->add_token_ids(8);
  response.mutable_chunk()->set_text("\xE2\x82\xAC\"");
  return response;
}

TEST(GenerateCommandTest, JsonHasOneLineForEachToken) {
  EXPECT_EQ(JsonLines(ChunkOfTwo()),
            "{\"index\":1,\"position\":3,\"token_id\":7,\"text\":\"\",\"logprob\":null,"
            "\"finish_reason\":null}\n"
            "{\"index\":1,\"position\":4,\"token_id\":8,\"text\":\"\xE2\x82\xAC\\\"\","
            "\"logprob\":null,\"finish_reason\":null}\n");
}

TEST(GenerateCommandTest, EachTokenOfAMergedMessageHasItsOwnText) {
  v1::GenerateResponse response;
  response.mutable_chunk()->set_text(" a cat");
  for (uint32_t end : {2U, 2U, 6U}) {
    response.mutable_chunk()->add_token_ids(1);
    response.mutable_chunk()->add_text_ends(end);
  }

  std::string lines = JsonLines(response);

  EXPECT_THAT(lines, testing::HasSubstr("\"position\":0,\"token_id\":1,\"text\":\" a\""));
  EXPECT_THAT(lines, testing::HasSubstr("\"position\":1,\"token_id\":1,\"text\":\"\""));
  EXPECT_THAT(lines, testing::HasSubstr("\"position\":2,\"token_id\":1,\"text\":\" cat\""));
}

TEST(GenerateCommandTest, LastTokenCarriesTheReason) {
  v1::GenerateResponse response = ChunkOfTwo();
  response.mutable_chunk()->clear_text();
  response.mutable_finished()->set_index(1);
  response.mutable_finished()->set_reason(v1::FINISH_REASON_LENGTH);
  response.mutable_finished()->set_text("tail");

  EXPECT_EQ(JsonLines(response),
            "{\"index\":1,\"position\":3,\"token_id\":7,\"text\":\"\",\"logprob\":null,"
            "\"finish_reason\":null}\n"
            "{\"index\":1,\"position\":4,\"token_id\":8,\"text\":\"tail\",\"logprob\":null,"
            "\"finish_reason\":\"length\"}\n");
}

TEST(GenerateCommandTest, AnEndWithoutATokenIsALineOfItsOwn) {
  v1::GenerateResponse response;
  response.mutable_finished()->set_reason(v1::FINISH_REASON_STOP);

  EXPECT_EQ(JsonLines(response),
            "{\"index\":0,\"position\":null,\"token_id\":null,\"text\":\"\",\"logprob\":null,"
            "\"finish_reason\":\"stop\"}\n");
}

}  // namespace
}  // namespace quire
