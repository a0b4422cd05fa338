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

using testing::HasSubstr;
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
  // name becomes a link to target, with the text that it had.
  void MakeLink(const std::string& name, const std::filesystem::path& target) const {
    std::filesystem::create_directories((path_ / target).parent_path());
    std::filesystem::rename(path_ / name, path_ / target);
    std::filesystem::create_symlink(target, path_ / name);
  }
  const std::filesystem::path& path() const { return path_; }
  absl::Status Load() const { return LoadServedModel({.model_dir = path_}).status(); }
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

TEST(LoadServedModelTest, ADirectoryOfDefaultsThatWasNamedHasThem) {
  const ModelFolder model;
  const ModelFolder defaults;
  const auto load = [&](const std::string& from) {
    return LoadServedModel({.model_dir = model.path(), .generation_config = from});
  };
  EXPECT_TRUE(load("auto").ok()) << "a model need not have any";
  EXPECT_TRUE(load("none").ok());

  for (const std::string& from : {std::string(),
                                  std::string("/nonexistent"),
                                  (model.path() / "config.json").string(),
                                  defaults.path().string()}) {
    EXPECT_THAT(std::string(load(from).status().message()),
                testing::StartsWith("--generation-config: "))
        << from;
  }
  defaults.Write("generation_config.json", R"({"temperature": 0.5})");
  const auto loaded = load(defaults.path());
  ASSERT_TRUE(loaded.ok()) << loaded.status();
  EXPECT_EQ(loaded->defaults.temperature, 0.5F);
}

constexpr const char* kServedFiles[] = {"config.json", "generation_config.json", "tokenizer.json"};

TEST(ServedModelTest, LinkOutOfTheModelFolderIsRefused) {
  for (const char* name : kServedFiles) {
    const ModelFolder folder;
    const ModelFolder elsewhere;
    folder.Write("generation_config.json", "{}");
    folder.MakeLink(name, elsewhere.path() / "secret");

    const absl::Status status = folder.Load();

    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << name;
    EXPECT_THAT(std::string(status.message()),
                HasSubstr("is a symbolic link out of the model folder"))
        << name;
  }
}

TEST(ServedModelTest, LinkToNothingIsNoMissingFile) {
  for (const char* name : kServedFiles) {
    const ModelFolder folder;
    folder.Write("generation_config.json", "{}");
    folder.MakeLink(name, "gone");
    folder.Remove("gone");

    EXPECT_FALSE(folder.Load().ok()) << name;
  }
}

TEST(ServedModelTest, LinksInsideTheFolderAndOfAHubCacheAreFollowed) {
  const ModelFolder inside;
  inside.Write("generation_config.json", "{}");
  const ModelFolder hub;
  const std::filesystem::path snapshot = hub.path() / "snapshots" / "0123";
  std::filesystem::create_directories(snapshot);
  std::filesystem::create_directories(hub.path() / "blobs");
  hub.Write("generation_config.json", "{}");
  for (const std::string name : kServedFiles) {
    inside.MakeLink(name, std::filesystem::path("data") / name);
    std::filesystem::rename(hub.path() / name, hub.path() / "blobs" / name);
    std::filesystem::create_symlink(std::filesystem::path("../../blobs") / name, snapshot / name);
  }

  EXPECT_TRUE(inside.Load().ok()) << inside.Load();
  const auto of_hub = LoadServedModel({.model_dir = snapshot});
  ASSERT_TRUE(of_hub.ok()) << of_hub.status();
  EXPECT_NE(of_hub->tokenizer, nullptr);
}

}  // namespace
}  // namespace quire
