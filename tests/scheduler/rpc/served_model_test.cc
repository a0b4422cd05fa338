#include "scheduler/rpc/served_model.h"

#include <filesystem>
#include <fstream>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "scheduler/text/byte_alphabet.h"
#include "scheduler/text/utf8.h"
#include "tests/common/model/gguf_bytes.h"
#include "tests/common/model/gguf_dir.h"
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
  absl::Status Load() const { return LoadServedModel({.model_path = path_}).status(); }
  std::string Fingerprint(const std::string& generation_config = "auto") const {
    const auto model =
        LoadServedModel({.model_path = path_, .generation_config = generation_config});
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
    return LoadServedModel({.model_path = model.path(), .generation_config = from});
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
  const auto of_hub = LoadServedModel({.model_path = snapshot});
  ASSERT_TRUE(of_hub.ok()) << of_hub.status();
  EXPECT_NE(of_hub->tokenizer, nullptr);
}

GgufBytes GgufModel(float temperature) {
  GgufBytes file;
  file.Add("general.architecture", "llama");
  for (const char* key : {"llama.embedding_length", "llama.feed_forward_length"}) {
    file.AddUint32(key, 8);
  }
  for (const char* key : {"llama.block_count", "llama.attention.head_count"}) {
    file.AddUint32(key, 1);
  }
  file.AddUint32("llama.context_length", 64);
  file.Add("llama.attention.layer_norm_rms_epsilon", GgufValueType::kFloat32, 1e-5F);
  file.Add("general.sampling.temp", GgufValueType::kFloat32, temperature);
  std::vector<std::string> tokens;
  for (int byte = 0; byte < 256; ++byte) {
    AppendUtf8(ByteToCharacter(static_cast<uint8_t>(byte)), &tokens.emplace_back());
  }
  tokens.emplace_back("<|im_end|>");
  std::vector<int32_t> types(257, 1);
  types.back() = 3;
  file.Add("tokenizer.ggml.model", "gpt2");
  file.AddArray<std::string_view>("tokenizer.ggml.tokens",
                                  GgufValueType::kString,
                                  std::vector<std::string_view>(tokens.begin(), tokens.end()));
  file.AddArray<int32_t>("tokenizer.ggml.token_type", GgufValueType::kInt32, types);
  file.AddArray<std::string_view>("tokenizer.ggml.merges", GgufValueType::kString, {});
  file.AddUint32("tokenizer.ggml.eos_token_id", 7);
  return file;
}

TEST(ServedModelTest, AGgufFileIsAWholeModelServedUnderItsName) {
  const GgufDir dir;
  dir.Write("tiny.Q4_0-00001-of-00001.gguf", GgufModel(0.5F).File());
  dir.Write("other.gguf", GgufModel(0.25F).File());

  const auto model = LoadServedModel({.model_path = dir.path("tiny.Q4_0-00001-of-00001.gguf")});
  const auto other = LoadServedModel({.model_path = dir.path("other.gguf")});

  ASSERT_TRUE(model.ok()) << model.status();
  ASSERT_TRUE(other.ok()) << other.status();
  EXPECT_THAT(model->names, testing::ElementsAre("tiny.Q4_0"));
  EXPECT_EQ(model->config.vocab_size, 257);
  EXPECT_THAT(model->eos_token_ids, testing::ElementsAre(7, 256));
  EXPECT_EQ(DefaultSampling(*model).temperature, 0.5F);
  ASSERT_NE(model->tokenizer, nullptr);
  EXPECT_EQ(model->tokenizer->file_digest(), other->tokenizer->file_digest());
  EXPECT_NE(DeterminismFingerprint(*model, kNumerics), DeterminismFingerprint(*other, kNumerics));
}

TEST(ServedModelTest, AGgufFileWithoutATokenizerOrWithAWrongDefaultIsRefused) {
  const GgufDir dir;
  GgufBytes no_tokenizer = GgufModel(1.0F);
  std::erase_if(no_tokenizer.keys,
                [](const GgufBytes::Key& key) { return key.name.starts_with("tokenizer.ggml."); });
  no_tokenizer.AddUint32("llama.vocab_size", 257);
  dir.Write("plain.gguf", no_tokenizer.File());
  GgufBytes wrong = GgufModel(1.0F);
  wrong.Add("general.sampling.top_p", GgufValueType::kFloat32, 0.0F);
  dir.Write("wrong.gguf", wrong.File());

  EXPECT_EQ(LoadServedModel({.model_path = dir.path("plain.gguf")}).status().message(),
            "load: plain.gguf: tokenizer.ggml.model: is missing");
  const std::string path = dir.path("wrong.gguf");
  EXPECT_THAT(std::string(LoadServedModel({.model_path = path}).status().message()),
              MatchesRegex(".*wrong.gguf: sampling.top_p: .*"));
  EXPECT_EQ(LoadServedModel({.model_path = path, .generation_config = "none"}).status(),
            absl::OkStatus());
}

}  // namespace
}  // namespace quire
