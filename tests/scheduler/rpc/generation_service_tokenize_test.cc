// Text and tokens: Tokenize, Detokenize, and a server without a tokenizer.
#include <cstddef>
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include <grpcpp/client_context.h>

#include "common/base/error.h"
#include "common/wire/grpc_status.h"
#include "scheduler/rpc/generate_request.h"
#include "tests/scheduler/loop/letter_tokenizer.h"
#include "tests/scheduler/rpc/generation_service_fixture.h"
#include "tests/scheduler/rpc/tiny_served_model.h"

namespace quire {
namespace {

using testing::ElementsAre;

TEST_F(GenerationServiceTest, TokensThatAreTooManyToBeSentAreRefusedByTokenize) {
  v1::TokenizeResponse response;
  const auto tokenize = [this, &response](size_t num_bytes) {
    v1::TokenizeRequest request;
    request.set_text(std::string(num_bytes, 'b'));
    grpc::ClientContext context;
    return FromGrpcStatus(stub_->Tokenize(&context, request, &response));
  };

  EXPECT_TRUE(tokenize(kMaxPromptBytes - 100).ok());  // a byte for each of them
  EXPECT_EQ(static_cast<size_t>(response.token_ids_size()), kMaxPromptBytes - 100);
  EXPECT_EQ(ReasonOf(tokenize(kMaxPromptBytes)), "PROMPT_TOO_LONG");
}

TEST_F(GenerationServiceTest, TextThatIsTooLongToBeSentIsRefusedByDetokenize) {
  model_.tokenizer = LongTokenTokenizer();
  const auto detokenize = [this](int num_ids, v1::DetokenizeResponse* response) {
    v1::DetokenizeRequest request;
    request.mutable_token_ids()->Resize(num_ids, 0);
    grpc::ClientContext context;
    return FromGrpcStatus(stub_->Detokenize(&context, request, response));
  };
  v1::DetokenizeResponse response;

  EXPECT_TRUE(detokenize(255, &response).ok());
  EXPECT_EQ(response.text().size(), size_t{255} * 4096);
  EXPECT_EQ(ReasonOf(detokenize(256, &response)), "TEXT_BYTES");
  EXPECT_EQ(ReasonOf(detokenize(1 << 18, &response)), "TEXT_BYTES");
}

TEST_F(GenerationServiceTest, TokenizeAndDetokenizeAreInverse) {
  v1::TokenizeRequest tokenize;
  tokenize.set_text("hi you");
  v1::TokenizeResponse tokens;
  grpc::ClientContext first;
  ASSERT_TRUE(stub_->Tokenize(&first, tokenize, &tokens).ok());
  v1::DetokenizeRequest detokenize;
  *detokenize.mutable_token_ids() = tokens.token_ids();
  v1::DetokenizeResponse text;
  grpc::ClientContext second;
  ASSERT_TRUE(stub_->Detokenize(&second, detokenize, &text).ok());

  EXPECT_THAT(tokens.token_ids(), ElementsAre(7, 8, kSpaceId, 24, 14, 20));
  EXPECT_EQ(text.text(), "hi you");
}

TEST_F(GenerationServiceTest, TokenizeAndDetokenizeRefuseWhatIsNoText) {
  v1::TokenizeRequest tokenize;
  tokenize.set_text("\x80");
  v1::TokenizeResponse tokens;
  grpc::ClientContext first;
  v1::DetokenizeRequest detokenize;
  detokenize.add_token_ids(kTinyVocabSize);
  v1::DetokenizeResponse text;
  grpc::ClientContext second;

  EXPECT_EQ(ReasonOf(FromGrpcStatus(stub_->Tokenize(&first, tokenize, &tokens))), "INVALID_UTF8");
  EXPECT_EQ(ReasonOf(FromGrpcStatus(stub_->Detokenize(&second, detokenize, &text))),
            "TOKEN_ID_RANGE");
}

class ServiceWithoutTokenizerTest : public GenerationServiceTest {
 protected:
  ServiceWithoutTokenizerTest() : GenerationServiceTest(/*with_tokenizer=*/false) {}
};

TEST_F(ServiceWithoutTokenizerTest, TokenIdsAreServedAndTextIsNot) {
  Run();
  v1::GenerateRequest request = Prompt("", 4);
  request.clear_text();
  for (TokenId id : Letters("hello")) {
    request.mutable_token_ids()->add_ids(id);
  }
  v1::TokenizeRequest tokenize;
  v1::TokenizeResponse tokens;
  grpc::ClientContext context;

  const Answer answer = Generate(request);

  ASSERT_TRUE(answer.status.ok()) << answer.status;
  EXPECT_EQ(answer.Tokens(), Expected("hello", 4));
  EXPECT_EQ(ReasonOf(Generate(Prompt("hello", 4)).status), "NO_TOKENIZER");
  EXPECT_EQ(ReasonOf(FromGrpcStatus(stub_->Tokenize(&context, tokenize, &tokens))), "NO_TOKENIZER");
}

}  // namespace
}  // namespace quire
