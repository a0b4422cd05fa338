// Frequencies that depend on the context length follow the length that a server admits.
#include <memory>
#include <string>
#include <vector>

#include "gtest/gtest.h"

#include "common/model/rope_config.h"
#include "kernels/reference/reference_backend.h"
#include "tests/support/capture_log.h"
#include "tests/worker/model/model_dir.h"
#include "tests/worker/model/model_runner.h"
#include "tests/worker/model/random_model.h"
#include "worker/model/model.h"

namespace quire {
namespace {

constexpr int32_t kOriginal = 32;
constexpr int32_t kLongest = 128;
const Json kUnscaled = Json::object();

class RopeLengthTest : public testing::TestWithParam<const char*> {
 protected:
  // Returns the logits after a prompt. max_context_tokens: of the server; 0: no server.
  std::vector<float> Logits(const Json& rope_scaling, int32_t max_context_tokens) {
    Json config = EightHeads();
    config["rope_scaling"] = rope_scaling;
    // dynamic gives the length before scaling, longrope the length after it.
    config["max_position_embeddings"] = rope_scaling.value("type", "") == "dynamic" ? 32 : 128;
    ModelDir dir;
    WriteRandomModel(config, /*seed=*/1, &dir);
    auto model = LoadModel(dir.path(), *backend_, nullptr);
    EXPECT_TRUE(model.ok()) << model.status();
    EXPECT_EQ((*model)->config().max_position_embeddings, kLongest);
    if (max_context_tokens > 0) {
      (*model)->FixRope(RopeLength((*model)->config().rope, max_context_tokens));
    }
    ModelRunner runner(**model, *backend_, /*num_blocks=*/16);
    const std::vector<TokenId> prompt = {3, 14, 15, 92, 65, 35, 89, 79, 32, 38, 46, 26};
    return runner.Feed(runner.AddSequence(), prompt, /*chunk=*/12);
  }

  Json Scaling() const {
    if (std::string(GetParam()) == "dynamic") {
      return {{"type", "dynamic"}, {"factor", 4}};
    }
    // The short factors and the attention factor change nothing.
    return {{"type", "longrope"},
            {"original_max_position_embeddings", kOriginal},
            {"attention_factor", 1},
            {"short_factor", {1, 1, 1, 1}},
            {"long_factor", {1.5, 2, 3, 4}}};
  }

  std::unique_ptr<KernelBackend> backend_ = CreateReferenceBackend();
};

TEST_P(RopeLengthTest, AServerOfShortContextsScalesNothing) {
  EXPECT_EQ(Logits(Scaling(), kOriginal), Logits(kUnscaled, kLongest));
}

TEST_P(RopeLengthTest, AServerOfLongContextsScalesShortPromptsToo) {
  const std::vector<float> scaled = Logits(Scaling(), kLongest);

  EXPECT_NE(scaled, Logits(kUnscaled, kLongest));
  EXPECT_EQ(scaled, Logits(Scaling(), /*max_context_tokens=*/0)) << "the model's longest context";
}

TEST_P(RopeLengthTest, TheChoiceIsSaid) {
  CaptureStderr();
  Logits(Scaling(), kOriginal);
  const std::string log = GetCapturedStderr();

  EXPECT_NE(log.find("RoPE depends on the context length"), std::string::npos) << log;
  CaptureStderr();
  Logits(kUnscaled, kOriginal);
  EXPECT_EQ(GetCapturedStderr().find("RoPE"), std::string::npos);
}

INSTANTIATE_TEST_SUITE_P(Scalings, RopeLengthTest, testing::Values("dynamic", "longrope"));

}  // namespace
}  // namespace quire
