// Real GGUF files: configuration, tokens and chats equal those of Hugging Face transformers and
// llama.cpp (testdata/, written by make_goldens.py). A model whose file is absent is skipped:
// tests/models/fetch gets it.
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <ostream>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "common/base/read_file.h"
#include "common/json/json.h"
#include "deploy/gateway/chat_model.h"
#include "scheduler/rpc/served_model.h"

namespace quire {
namespace {

constexpr int64_t kMaxGoldenBytes = 1 << 20;

struct RealGguf {
  const char* name;
  const char* file;
  std::vector<TokenId> ends;
};

void PrintTo(const RealGguf& model, std::ostream* out) { *out << model.name; }

std::string FileOf(const RealGguf& model) {
  const char* const folder = std::getenv("QUIRE_MODELS");
  const char* const home = std::getenv("HOME");
  return absl::StrCat(folder != nullptr
                          ? folder
                          : absl::StrCat(home != nullptr ? home : "", "/.cache/quire/models"),
                      "/",
                      model.file);
}

class RealGgufTest : public testing::TestWithParam<RealGguf> {
 protected:
  void SetUp() override {
    path_ = FileOf(GetParam());
    if (!std::filesystem::exists(path_)) {
      GTEST_SKIP() << path_ << " is absent: tests/models/fetch " << GetParam().name << " gets it";
    }
    const absl::StatusOr<std::string> text = ReadFile(
        absl::StrCat("tests/models/testdata/", GetParam().name, ".golden.json"), kMaxGoldenBytes);
    ASSERT_TRUE(text.ok()) << text.status();
    absl::StatusOr<OrderedJson> golden = ParseOrderedJson(*text);
    ASSERT_TRUE(golden.ok()) << golden.status();
    golden_ = *std::move(golden);
  }

  std::string path_;
  OrderedJson golden_;  // templates write objects in the order of their members
};

TEST_P(RealGgufTest, TheSchedulerHasTheConfigurationOfTransformersAndTheTokensOfLlamaCpp) {
  const absl::StatusOr<ServedModel> model = LoadServedModel({.model_path = path_});

  ASSERT_TRUE(model.ok()) << model.status();
  OrderedJson json = golden_["config"];
  json["dtype"] = "bfloat16";
  absl::StatusOr<ModelConfig> expected = ParseModelConfig(json.dump());
  ASSERT_TRUE(expected.ok()) << expected.status();
  expected->eos_token_ids = GetParam().ends;
  EXPECT_EQ(model->config, *expected);
  EXPECT_EQ(HashOf(model->config), HashOf(*expected));
  EXPECT_EQ(model->eos_token_ids, GetParam().ends);
  EXPECT_THAT(model->names, testing::ElementsAre(std::filesystem::path(path_).stem().string()));

  ASSERT_NE(model->tokenizer, nullptr);
  const absl::StatusOr<Json> strings =
      ParseJsonFile("tests/scheduler/text/testdata/strings.json", kMaxGoldenBytes);
  ASSERT_TRUE(strings.ok()) << strings.status();
  ASSERT_GT(golden_["encode"].size(), 100u);
  for (const auto& [index, ids] : golden_["encode"].items()) {
    const auto& text = (*strings)[std::stoul(index)].get_ref<const std::string&>();
    const auto encoded = model->tokenizer->Encode(text, true, true);
    const auto plain = model->tokenizer->Encode(text, false, false);
    ASSERT_TRUE(encoded.ok() && plain.ok()) << text;
    EXPECT_EQ(absl::StrJoin(*encoded, " "), ids.get<std::string>()) << text;
    EXPECT_EQ(absl::StrJoin(*plain, " "), golden_["plain"][index].get<std::string>()) << text;
  }
}

TEST_P(RealGgufTest, TheGatewayWritesChatsAsTransformersDoes) {
  const absl::StatusOr<std::unique_ptr<ChatModel>> model = ChatModel::Load({.model_path = path_});

  ASSERT_TRUE(model.ok()) << model.status();
  ASSERT_EQ(golden_["chats"].size(), 3u);
  for (const OrderedJson& chat : golden_["chats"]) {
    ChatPrompt prompt;
    prompt.variables = chat;
    prompt.variables["add_generation_prompt"] = true;
    prompt.variables.erase("prompt");

    const absl::StatusOr<RenderedPrompt> rendered = (*model)->Render(std::move(prompt));

    ASSERT_TRUE(rendered.ok()) << rendered.status();
    EXPECT_EQ(rendered->text, chat["prompt"].get<std::string>());
    const auto ids = (*model)->Encode(*rendered, /*add_special_tokens=*/false);
    ASSERT_TRUE(ids.ok()) << ids.status();
    EXPECT_TRUE((*(*model)->tokenizer())->IsSpecial(ids->front()));
  }
}

INSTANTIATE_TEST_SUITE_P(
    Models,
    RealGgufTest,
    testing::Values(RealGguf{"smollm2", "SmolLM2-135M-Instruct.Q4_1.gguf", {2, 0}},
                    RealGguf{"coder", "Qwen2.5-Coder-0.5B-Instruct.Q4_K_M.gguf", {151645, 151643}}),
    [](const auto& test) { return std::string(test.param.name); });

}  // namespace
}  // namespace quire
