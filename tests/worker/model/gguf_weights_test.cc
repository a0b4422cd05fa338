// The tensors of a GGUF file beside a configuration: what is refused, and what is decoded.
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "gtest/gtest.h"

#include "common/base/status_macros.h"
#include "common/model/rank_share.h"
#include "kernels/api/host_backend.h"
#include "tests/common/model/gguf_bytes.h"
#include "tests/common/model/gguf_dir.h"
#include "tests/worker/model/model_dir.h"
#include "worker/model/decoded_tensors.h"
#include "worker/model/gguf_tensor_names.h"
#include "worker/model/tensor_source.h"
#include "worker/model/weight_file_check.h"
#include "worker/model/weight_files.h"

namespace quire {
namespace {

constexpr uint64_t kSize = 256;  // of every dimension except the vocabulary's
constexpr uint64_t kVocab = 16;
constexpr char kQ[] = "blk.0.attn_q.weight";
constexpr char kOutput[] = "blk.0.attn_output.weight";

using Types = std::map<std::string, GgmlType, std::less<>>;

ModelConfig Config(bool is_tied = false, uint64_t attention_width = kSize) {
  ModelDir dir;
  dir.config["hidden_size"] = kSize;
  dir.config["intermediate_size"] = kSize;
  dir.config["num_attention_heads"] = 4;
  dir.config["num_key_value_heads"] = 4;
  dir.config["head_dim"] = attention_width / 4;
  dir.config["num_hidden_layers"] = 1;
  dir.config["vocab_size"] = kVocab;
  dir.config["tie_word_embeddings"] = is_tied;
  dir.WriteConfig();
  auto config = LoadModelConfig(dir.path());
  EXPECT_TRUE(config.ok()) << config.status();
  return *std::move(config);
}

// A Llama of one layer. `types`: of tensors that are not BF16, or not F32 if they are norms.
GgufBytes Llama(const Types& types = {}, uint64_t attention_width = kSize) {
  GgufBytes file;
  file.Add("general.architecture", "llama");
  const auto add = [&](const std::string& name, std::vector<uint64_t> dims) {
    const auto other = types.find(name);
    const GgmlType plain = dims.size() == 1 ? GgmlType::kF32 : GgmlType::kBF16;
    const GgmlType type = other == types.end() ? plain : other->second;
    uint64_t count = 1;
    for (const uint64_t size : dims) {
      count *= size;
    }
    const uint64_t blocks = count / static_cast<uint64_t>(InfoOf(type).block_size);
    file.AddTensor(name,
                   std::move(dims),
                   type,
                   std::string(blocks * static_cast<uint64_t>(InfoOf(type).block_bytes), '\0'));
  };
  add("token_embd.weight", {kSize, kVocab});
  for (const char* name : {"attn_q", "attn_k", "attn_v"}) {
    add("blk.0." + std::string(name) + ".weight", {kSize, attention_width});
  }
  add(kOutput, {attention_width, kSize});
  for (const char* name : {"ffn_gate", "ffn_up", "ffn_down"}) {
    add("blk.0." + std::string(name) + ".weight", {kSize, kSize});
  }
  add("blk.0.attn_norm.weight", {kSize});
  add("blk.0.ffn_norm.weight", {kSize});
  add("output_norm.weight", {kSize});
  add("output.weight", {kSize, kVocab});
  return file;
}

GgufBytes::Tensor& Find(GgufBytes& file, std::string_view name) {
  for (GgufBytes::Tensor& tensor : file.tensors) {
    if (tensor.name == name) {
      return tensor;
    }
  }
  ADD_FAILURE() << name;
  return file.tensors.front();
}

struct BadCase {
  std::string name;
  std::function<void(GgufBytes&)> spoil;
  std::string message;
};

std::function<void(GgufBytes&)> Retype(std::string name, GgmlType type) {
  return [=](GgufBytes& file) { Find(file, name).type = static_cast<uint32_t>(type); };
}
std::function<void(GgufBytes&)> Rename(std::string from, std::string to) {
  return [=](GgufBytes& file) { Find(file, from).name = to; };
}
std::function<void(GgufBytes&)> AddExtra(std::string name) {
  return [=](GgufBytes& file) { file.AddTensor(name, {8}, GgmlType::kF32, std::string(32, '\0')); };
}

std::vector<BadCase> BadCases() {
  const std::string load = "load: model.gguf: ";
  const std::string q = load + kQ + ": ";
  const std::string formats =
      ", need F32, F16, Q4_0, Q4_1, Q5_0, Q5_1, Q8_0, Q2_K, Q3_K, Q4_K, Q5_K, Q6_K, IQ4_NL, IQ4_XS,"
      " BF16, MXFP4)";
  return {
      {"Missing",
       [](GgufBytes& file) {
         std::erase_if(file.tensors, [](const auto& tensor) { return tensor.name == kQ; });
       },
       q + "is missing"},
      {"MissingOutput",
       Rename("output.weight", "blk.7.ffn_up.weight"),
       load + "output.weight: is missing"},
      {"RowsMissing",
       [](GgufBytes& file) {
         Find(file, kQ).dims = {kSize, kSize - 1};
       },
       q + "has the wrong shape (got [255, 256], the metadata needs [256, 256])"},
      {"Flat",
       [](GgufBytes& file) { Find(file, kQ).dims = {kSize * kSize}; },
       q + "has the wrong shape (got [65536], the metadata needs [256, 256])"},
      {"Experts",
       [](GgufBytes& file) {
         Find(file, kQ).dims = {kSize, kSize / 2, 2};
       },
       q + "has the wrong shape (got [2, 128, 256], the metadata needs [256, 256])"},
      {"TypeOfActivations",
       Retype(kQ, GgmlType::kQ8K),
       q + "has an unsupported dtype (got Q8_K" + formats},
      {"Ternary",
       Retype(kQ, GgmlType::kTq1_0),
       q + "has an unsupported dtype (got TQ1_0" + formats},
      {"TwoBits",
       Retype(kQ, GgmlType::kIq2Xxs),
       q + "has an unsupported dtype (got IQ2_XXS" + formats},
      {"Integers", Retype(kQ, GgmlType::kI8), q + "has an unsupported dtype (got I8" + formats},
      {"QuantizedNorm",
       Retype("output_norm.weight", GgmlType::kQ8_0),
       load + "output_norm.weight: has an unsupported dtype (got Q8_0, need F32, F16 or BF16)"},
      {"RopeFactors",
       AddExtra("rope_freqs.weight"),
       load + "rope_freqs.weight: is not part of this model"},
      {"Bias",
       AddExtra("blk.0.attn_q.bias"),
       load + "blk.0.attn_q.bias: is not part of this model"},
      {"AnotherLayer",
       AddExtra("blk.1.attn_norm.weight"),
       load + "blk.1.attn_norm.weight: is not part of this model"},
      {"NoLayer",
       AddExtra("blk..attn_norm.weight"),
       load + "blk..attn_norm.weight: is not part of this model"},
      {"NormOfQwen3",
       AddExtra("blk.0.attn_q_norm.weight"),
       load + "blk.0.attn_q_norm.weight: is not part of this model"},
      {"NameOfADirectory",
       Rename(kQ, "model.layers.0.self_attn.q_proj.weight"),
       load + "model.layers.0.self_attn.q_proj.weight: is not part of this model"},
      {"NoArchitecture",
       [](GgufBytes& file) { file.keys.clear(); },
       load + "general.architecture: is missing"},
  };
}

class BadGgufWeightsTest : public testing::TestWithParam<BadCase> {};

TEST_P(BadGgufWeightsTest, IsRefusedByName) {
  GgufDir dir;
  GgufBytes bytes = Llama();
  GetParam().spoil(bytes);
  dir.Write("model.gguf", bytes.File());

  const auto files = WeightFiles::Open(dir.path("model.gguf"));
  const absl::Status status =
      files.ok() ? CheckWeightFiles(Config(), *files).status() : files.status();

  EXPECT_EQ(std::string(status.message()), GetParam().message);
  EXPECT_NE(status.code(), absl::StatusCode::kOk);
}

INSTANTIATE_TEST_SUITE_P(Files,
                         BadGgufWeightsTest,
                         testing::ValuesIn(BadCases()),
                         [](const auto& param_info) { return param_info.param.name; });

TEST(GgufWeightsTest, FactorsOfFrequenciesMayStandBesideTheWeights) {
  GgufDir dir;
  GgufBytes bytes = Llama();
  AddExtra("rope_freqs.weight")(bytes);
  dir.Write("model.gguf", bytes.File());
  ModelConfig config = Config();
  config.rope->scaling = RopeScalingKind::kFactors;

  const auto files = WeightFiles::Open(dir.path("model.gguf"));

  ASSERT_TRUE(files.ok()) << files.status();
  EXPECT_TRUE(CheckWeightFiles(config, *files).ok());
}

TEST(GgufWeightsTest, FileThatShrinksIsRefused) {
  GgufDir dir;
  dir.Write("model.gguf", Llama().File());
  auto files = WeightFiles::Open(dir.path("model.gguf"));
  ASSERT_TRUE(files.ok()) << files.status();
  const auto layout = CheckWeightFiles(Config(), *files);
  ASSERT_TRUE(layout.ok()) << layout.status();
  std::filesystem::resize_file(dir.path("model.gguf"), 5000);
  std::vector<std::byte> bytes(kSize * kSize * 2);

  const absl::Status status =
      FileTensors(*files).Read(GroupOf(layout->layers[0].mlp_out).front(), 0, bytes);

  EXPECT_EQ(std::string(status.message()), "load: model.gguf: shrank while being read");
}

TEST(GgufWeightsTest, TensorsOfASplitModelAreRead) {
  GgufDir dir;
  GgufBytes first = Llama();
  GgufBytes second;
  const GgufBytes::Tensor last = first.tensors.back();
  const auto num_tensors = static_cast<uint32_t>(first.tensors.size());
  second.AddTensor(last.name, last.dims, GgmlType::kBF16, std::string(kSize * kVocab * 2, '\x3C'));
  first.tensors.pop_back();
  first.data.resize(last.offset);
  uint16_t number = 0;
  for (GgufBytes* part : {&first, &second}) {
    part->Add("split.no", GgufValueType::kUint16, number++);
    part->Add("split.count", GgufValueType::kUint16, uint16_t{2});
    part->Add("split.tensors.count", GgufValueType::kUint32, num_tensors);
    dir.Write("model-0000" + std::to_string(number) + "-of-00002.gguf", part->File());
  }
  auto files = WeightFiles::Open(dir.path("model-00001-of-00002.gguf"));
  ASSERT_TRUE(files.ok()) << files.status();
  const auto layout = CheckWeightFiles(Config(), *files);
  ASSERT_TRUE(layout.ok()) << layout.status();
  EXPECT_EQ(files->files().size(), 2U);
  const TensorShape head = GroupOf(layout->lm_head).front();
  std::vector<std::byte> bytes(kSize * kVocab * 2);

  ASSERT_TRUE(FileTensors(*files).Read(head, 0, bytes).ok());
  EXPECT_EQ(bytes, std::vector<std::byte>(bytes.size(), std::byte{0x3C}));

  std::filesystem::resize_file(dir.path("model-00002-of-00002.gguf"), 100);
  EXPECT_EQ(FileTensors(*files).Read(head, 0, bytes).message(),
            "load: model-00002-of-00002.gguf: shrank while being read");
}

TEST(GgufTensorNamesTest, EveryNameHasOneOnTheOtherSide) {
  for (const GgufBytes::Tensor& tensor : Llama().tensors) {
    const auto name = HuggingFaceNameOf(tensor.name);
    ASSERT_TRUE(name.has_value()) << tensor.name;
    EXPECT_EQ(GgufNameOf(*name), tensor.name);
  }
  EXPECT_EQ(HuggingFaceNameOf("blk.12.attn_k.bias"), "model.layers.12.self_attn.k_proj.bias");
  for (const char* name : {"",
                           ".weight",
                           "output",
                           "output.scale",
                           "blk.weight",
                           "blk.3.weight",
                           "blk.3attn_q.weight",
                           "blk.x.attn_q.weight",
                           "blk.-1.attn_q.weight",
                           "rope_freqs.weight",
                           "lm_head.weight"}) {
    EXPECT_EQ(HuggingFaceNameOf(name), std::nullopt) << name;
  }
}

// A backend that multiplies some formats, and computes nothing.
class SomeFormats final : public HostBackend {
 public:
  SomeFormats(std::set<WeightFormat> formats, bool is_device)
      : formats_(std::move(formats)), is_device_(is_device) {}
  bool CanMultiply(WeightFormat format) const override {
    return !IsQuantized(format) || formats_.contains(format);
  }
  std::optional<DeviceSpace> space() const override {
    return is_device_ ? std::optional<DeviceSpace>(DeviceSpace{}) : std::nullopt;
  }
  std::string name() const override { return ""; }
  KvCacheLayout LayoutFor(const KvCacheSpec& /*spec*/) const override { return {}; }
  absl::StatusOr<std::unique_ptr<PackedLinear>> PackLinear(
      const LinearSource& /*source*/) override {
    return absl::UnimplementedError("");
  }
  void Embed(const EmbeddingParams& /*params*/) override {}
  void Norm(const NormParams& /*params*/) override {}
  void Linear(const LinearParams& /*params*/) override {}
  void Activate(const ActivationParams& /*params*/) override {}
  void PrepareAttention(const PrepareAttentionParams& /*params*/) override {}
  void PagedAttention(const PagedAttentionParams& /*params*/) override {}
  void CopyBlocks(const CopyBlocksParams& /*params*/) override {}
  void Sample(const SampleParams& /*params*/) override {}
  uint64_t progress() const override { return 0; }

 private:
  std::set<WeightFormat> formats_;
  bool is_device_;
};

struct Question {
  Types types = {};
  std::set<WeightFormat> formats = {};  // that the backend multiplies
  bool is_device = false;
  bool is_tied = false;
  RankPlace place = {.rank = 0, .size = 1};
  uint64_t attention_width = kSize;
};

absl::StatusOr<TensorsToDecode> Ask(const Question& question) {
  GgufDir dir;
  GgufBytes bytes = Llama(question.types, question.attention_width);
  const ModelConfig config = Config(question.is_tied, question.attention_width);
  if (question.is_tied) {
    bytes.tensors.pop_back();
  }
  dir.Write("model.gguf", bytes.File());
  QUIRE_ASSIGN_OR_RETURN(const WeightFiles files, WeightFiles::Open(dir.path("model.gguf")));
  QUIRE_ASSIGN_OR_RETURN(WeightLayout layout, CheckWeightFiles(config, files));
  QUIRE_ASSIGN_OR_RETURN(const RankShare share, ShareOf(config, question.place));
  layout = SliceFor(share, config, std::move(layout));
  return FindTensorsToDecode(
      layout, question.place.size, files, SomeFormats(question.formats, question.is_device));
}

std::set<std::string> Decoded(const Question& question) {
  const auto found = Ask(question);
  EXPECT_TRUE(found.ok()) << found.status();
  std::set<std::string> names;
  for (const std::string& name : found.ok() ? found->names : std::set<std::string>()) {
    names.insert(GgufNameOf(name).value_or(name));
  }
  return names;
}

using Names = std::set<std::string>;
constexpr char kV[] = "blk.0.attn_v.weight";
constexpr char kK[] = "blk.0.attn_k.weight";
constexpr char kDown[] = "blk.0.ffn_down.weight";
constexpr char kTable[] = "token_embd.weight";
constexpr WeightFormat kBoth[] = {WeightFormat::kQ4K, WeightFormat::kQ6K};

TEST(TensorsToDecodeTest, PlainFilesNeedNoDecoding) { EXPECT_EQ(Decoded({}), Names()); }

TEST(TensorsToDecodeTest, MatricesOfOneLayerKeepTheirFormatsTogether) {
  const Types types = {
      {kQ, GgmlType::kQ4K}, {kK, GgmlType::kQ4K}, {kV, GgmlType::kQ6K}, {kDown, GgmlType::kQ6K}};
  EXPECT_EQ(Decoded({.types = types, .formats = {std::begin(kBoth), std::end(kBoth)}}), Names());
  EXPECT_EQ(Decoded({.types = types, .formats = {WeightFormat::kQ6K}}), Names({kQ, kK, kV}));
  EXPECT_EQ(Decoded({.types = types}), Names({kQ, kK, kV, kDown}));
}

TEST(TensorsToDecodeTest, QuantizedMatricesBesidePlainOnesAreDecoded) {
  EXPECT_EQ(Decoded({.types = {{kQ, GgmlType::kQ4K}}, .formats = {WeightFormat::kQ4K}}),
            Names({kQ}));
}

TEST(TensorsToDecodeTest, ATableIsDecodedForADeviceOrIfItIsTheOutputMatrix) {
  const Types types = {{kTable, GgmlType::kQ6K}};
  EXPECT_EQ(Decoded({.types = types}), Names());
  EXPECT_EQ(Decoded({.types = types, .is_device = true}), Names({kTable}));
  EXPECT_EQ(Decoded({.types = types, .is_tied = true}), Names({kTable}));
  EXPECT_EQ(Decoded({.types = types, .formats = {WeightFormat::kQ6K}, .is_tied = true}), Names());
}

TEST(TensorsToDecodeTest, BytesAreThoseOfTheRankAndOfTheWholeTensor) {
  const auto found = Ask({.types = {{kDown, GgmlType::kQ4_0}}, .place = {.rank = 1, .size = 2}});
  ASSERT_TRUE(found.ok()) << found.status();
  EXPECT_EQ(found->formats, Names({"Q4_0"}));
  EXPECT_EQ(found->held_bytes, int64_t{kSize * kSize});  // half of the columns, two bytes each
  EXPECT_EQ(found->added_bytes, int64_t{kSize * kSize * 2 - kSize * kSize / 32 * 18});
}

TEST(TensorsToDecodeTest, ARankHoldsWholeGroupsOfAFormatThatIsKept) {
  Question question = {.types = {{kOutput, GgmlType::kQ8_0}},
                       .formats = {WeightFormat::kQ8_0},
                       .place = {.rank = 1, .size = 4},
                       .attention_width = 32};
  EXPECT_EQ(Ask(question).status().message(),
            "load: model.gguf: blk.0.attn_output.weight: cannot be divided over 4 ranks: columns of"
            " a rank must be whole groups of 32 weights of Q8_0 (got columns 8 to 16)");

  question.formats = {};
  EXPECT_EQ(Decoded(question), Names({kOutput}));

  question = {.types = {{kOutput, GgmlType::kQ4K}},
              .formats = {WeightFormat::kQ4K},
              .place = {.rank = 1, .size = 4}};
  EXPECT_EQ(Decoded(question), Names());  // 64 columns, inside a block
}

}  // namespace
}  // namespace quire
