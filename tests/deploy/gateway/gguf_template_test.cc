#include <map>
#include <string>
#include <string_view>

#include "gtest/gtest.h"

#include "deploy/gateway/chat_template_files.h"
#include "tests/common/model/gguf_bytes.h"
#include "tests/common/model/gguf_dir.h"

namespace quire {
namespace {

GgufBytes Model() {
  GgufBytes file;
  file.Add("tokenizer.ggml.model", "gpt2");
  file.AddArray<std::string_view>(
      "tokenizer.ggml.tokens", GgufValueType::kString, {"<begin>", "<end>", "<pad>"});
  file.AddUint32("tokenizer.ggml.bos_token_id", 0);
  file.AddUint32("tokenizer.ggml.eos_token_id", 1);
  file.AddUint32("tokenizer.ggml.padding_token_id", 2);
  return file;
}

class GgufTemplateTest : public testing::Test {
 protected:
  absl::StatusOr<ChatTemplates> Load(const GgufBytes& file, const std::string& template_file = "") {
    dir_.Write("m.gguf", file.File());
    return LoadChatTemplates(dir_.path("m.gguf"), template_file);
  }

  GgufDir dir_;
};

TEST_F(GgufTemplateTest, TheFileHasTheTemplatesAndTheTextsOfTheSpecialTokens) {
  GgufBytes file = Model();
  file.Add("tokenizer.chat_template", "the default one");
  file.Add("tokenizer.chat_template.tool_use", "the one for tools");

  const auto templates = Load(file);

  ASSERT_TRUE(templates.ok()) << templates.status();
  EXPECT_EQ(templates->sources,
            (std::map<std::string, std::string>{{"default", "the default one"},
                                                {"tool_use", "the one for tools"}}));
  EXPECT_EQ(
      templates->special_tokens,
      (OrderedJson{{"bos_token", "<begin>"}, {"eos_token", "<end>"}, {"pad_token", "<pad>"}}));
}

TEST_F(GgufTemplateTest, AGivenFileReplacesAllTemplatesButNotTheSpecialTokens) {
  GgufBytes file = Model();
  file.Add("tokenizer.chat_template", "the default one");
  file.Add("tokenizer.chat_template.tool_use", "the one for tools");
  dir_.Write("given.jinja", "the given one");

  const auto templates = Load(file, dir_.path("given.jinja"));

  ASSERT_TRUE(templates.ok()) << templates.status();
  EXPECT_EQ(templates->sources, (std::map<std::string, std::string>{{"default", "the given one"}}));
  EXPECT_EQ(templates->special_tokens["bos_token"], "<begin>");
}

TEST_F(GgufTemplateTest, AFileWithoutTemplatesHasNone) {
  const auto templates = Load(Model());

  ASSERT_TRUE(templates.ok()) << templates.status();
  EXPECT_TRUE(templates->sources.empty());
}

TEST_F(GgufTemplateTest, FaultsNameTheKey) {
  GgufBytes long_one = Model();
  long_one.Add("tokenizer.chat_template", std::string((1 << 20) + 1, 'x'));
  EXPECT_EQ(Load(long_one).status().message(),
            "load: m.gguf: tokenizer.chat_template: must have at most 1048576 bytes (got 1048577)");

  GgufBytes number = Model();
  number.AddUint32("tokenizer.chat_template", 1);
  EXPECT_EQ(Load(number).status().message(),
            "load: m.gguf: tokenizer.chat_template: must be a string (got uint32)");

  GgufBytes many = Model();
  for (int i = 0; i < 66; ++i) {
    many.Add("tokenizer.chat_template." + std::to_string(i), "x");
  }
  EXPECT_EQ(Load(many).status().message(),
            "load: m.gguf: tokenizer.chat_template.9: too many chat templates");

  GgufBytes outside = Model();
  outside.AddUint32("tokenizer.ggml.mask_token_id", 3);
  EXPECT_EQ(Load(outside).status().message(),
            "load: m.gguf: tokenizer.ggml.mask_token_id: must be in [0, 2] (got 3)");
}

}  // namespace
}  // namespace quire
