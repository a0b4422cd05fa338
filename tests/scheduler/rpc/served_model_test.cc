#include "scheduler/rpc/served_model.h"

#include <filesystem>
#include <fstream>
#include <set>
#include <string>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "tests/scheduler/rpc/tiny_served_model.h"

namespace quire {
namespace {

using testing::MatchesRegex;

constexpr char kNumerics[] = "cpu/float32/0123";
constexpr char kConfig[] = R"({
  "architectures": ["LlamaForCausalLM"], "model_type": "llama", "vocab_size": 32,
  "hidden_size": 8, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2,
  "max_position_embeddings": 64, "torch_dtype": "float32", "bos_token_id": 0, "eos_token_id": 2})";
constexpr char kTokenizer[] = R"({
  "added_tokens": [], "normalizer": null, "post_processor": null,
  "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true,
                    "use_regex": false},
  "decoder": {"type": "ByteLevel"},
  "model": {"type": "BPE", "vocab": {"a": 0, "b": 1}, "merges": []}})";

// A model directory of its own.
class ModelFolder {
 public:
  ModelFolder() {
    std::string folder = testing::TempDir() + "served_model_XXXXXX";
    path_ = mkdtemp(folder.data());
    Write("config.json", kConfig);
    Write("tokenizer.json", kTokenizer);
  }
  ~ModelFolder() { std::filesystem::remove_all(path_); }
  ModelFolder(const ModelFolder&) = delete;
  ModelFolder& operator=(const ModelFolder&) = delete;

  void Write(const std::string& name, const std::string& text) const {
    std::ofstream(path_ / name) << text;
  }
  void Remove(const std::string& name) const { std::filesystem::remove(path_ / name); }
  std::string Fingerprint(const std::string& generation_config = "auto") const {
    const auto model =
        LoadServedModel({.model_dir = path_, .generation_config = generation_config});
    EXPECT_TRUE(model.ok()) << model.status();
    return DeterminismFingerprint(*model, kNumerics);
  }

 private:
  std::filesystem::path path_;
};

TEST(DeterminismFingerprintTest, IsTheNumericsOfTheWorkersAndADigest) {
  EXPECT_THAT(DeterminismFingerprint(TinyServedModel(), kNumerics),
              MatchesRegex("cpu/float32/0123/[0-9a-f]{16}"));
  EXPECT_EQ(DeterminismFingerprint(TinyServedModel(), ""), "");
}

TEST(DeterminismFingerprintTest, IsTheSameOnEveryMachine) {
  EXPECT_EQ(DeterminismFingerprint(TinyServedModel(), kNumerics),
            "cpu/float32/0123/3e200c6e6656dcbf");
}

TEST(DeterminismFingerprintTest, EverythingThatARequestGetsByDefaultChangesIt) {
  std::set<std::string> fingerprints = {
      DeterminismFingerprint(TinyServedModel(), kNumerics),
      DeterminismFingerprint(TinyServedModel(/*with_tokenizer=*/false), kNumerics),
      DeterminismFingerprint(TinyServedModel(), "cpu/float32/0124")};
  size_t num_models = 3;
  const auto add = [&](auto change) {
    ServedModel model = TinyServedModel();
    change(model);
    fingerprints.insert(DeterminismFingerprint(model, kNumerics));
    EXPECT_EQ(fingerprints.size(), ++num_models);
  };

  add([](ServedModel& model) { model.defaults.do_sample = false; });
  add([](ServedModel& model) { model.defaults.temperature = 0.5F; });
  add([](ServedModel& model) { model.defaults.top_k = 3; });
  add([](ServedModel& model) { model.defaults.top_p = 0.5F; });
  add([](ServedModel& model) { model.defaults.min_p = 0.5F; });
  add([](ServedModel& model) { model.defaults.repetition_penalty = 1.5F; });
  add([](ServedModel& model) { model.eos_token_ids = {}; });
  add([](ServedModel& model) { model.eos_token_ids.push_back(3); });
}

TEST(DeterminismFingerprintTest, WhatGivesTheSameAnswersDoesNotChangeIt) {
  const std::string fingerprint = DeterminismFingerprint(TinyServedModel(), kNumerics);
  ServedModel model = TinyServedModel();
  model.names = {"of-another-name"};
  model.defaults.do_sample = true;
  model.defaults.temperature = 1.0F;  // as without it
  model.defaults.bos_token_id = 7;    // the tokenizer's file decides

  EXPECT_EQ(DeterminismFingerprint(model, kNumerics), fingerprint);

  model.eos_token_ids = {3, 4};
  ServedModel other = TinyServedModel();
  other.eos_token_ids = {4, 3};
  EXPECT_EQ(DeterminismFingerprint(model, kNumerics), DeterminismFingerprint(other, kNumerics));
}

TEST(DeterminismFingerprintTest, IsOfTheFilesWhereverTheyLie) {
  const ModelFolder first;
  const ModelFolder second;
  EXPECT_EQ(first.Fingerprint(), second.Fingerprint());

  second.Write("tokenizer.json", absl::StrCat(kTokenizer, "\n"));
  EXPECT_NE(first.Fingerprint(), second.Fingerprint());
  second.Remove("tokenizer.json");
  EXPECT_NE(first.Fingerprint(), second.Fingerprint());
}

TEST(DeterminismFingerprintTest, AnotherGenerationConfigChangesIt) {
  const ModelFolder plain;
  const ModelFolder folder;
  folder.Write("generation_config.json", R"({"temperature": 0.5, "eos_token_id": [2, 3]})");

  EXPECT_NE(folder.Fingerprint("auto"), plain.Fingerprint());
  EXPECT_EQ(folder.Fingerprint("none"), plain.Fingerprint());
}

}  // namespace
}  // namespace quire
