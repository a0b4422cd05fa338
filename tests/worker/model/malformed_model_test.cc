// Model directories with one fault each: loading refuses every one of them, with one line that
// names the file, the tensor or field, and the rule. L numbers are those of the bad-input
// catalogue.
#include <fcntl.h>
#include <unistd.h>

#include <filesystem>
#include <functional>
#include <memory>
#include <ostream>
#include <string>
#include <utility>
#include <vector>

#include "gtest/gtest.h"

#include "common/base/error.h"
#include "common/base/file_descriptor.h"
#include "common/base/read_file.h"
#include "kernels/reference/reference_backend.h"
#include "tests/support/capture_log.h"
#include "tests/worker/model/model_dir.h"
#include "worker/model/model.h"
#include "worker/model/weight_file_check.h"
#include "worker/model/weight_loader.h"

#include <sys/stat.h>

namespace quire {
namespace {

constexpr char kQ[] = "model.layers.0.self_attn.q_proj.weight";
constexpr char kEmbed[] = "model.embed_tokens.weight";
constexpr char kFirst[] = "lm_head.weight";  // at data offsets 0 to 256

struct Fault {
  const char* name;
  std::function<void(ModelDir&)> write;  // writes the directory with the fault in it
  std::string message;
};

void PrintTo(const Fault& fault, std::ostream* out) { *out << fault.name; }

// config.json is well, the weights are this file.
std::function<void(ModelDir&)> File(std::string bytes) {
  return [bytes = std::move(bytes)](ModelDir& dir) {
    dir.WriteConfig();
    dir.WriteFile("model.safetensors", bytes);
  };
}

// The header as text, the data as it should be.
std::function<void(ModelDir&)> HeaderText(std::string header) {
  return [header = std::move(header)](ModelDir& dir) {
    dir.WriteConfig();
    dir.WriteFile("model.safetensors", ModelDir::Safetensors(header, dir.Data()));
  };
}

// A change of the parsed header.
std::function<void(ModelDir&)> Header(std::function<void(Json&)> change) {
  return [change = std::move(change)](ModelDir& dir) {
    Json header = dir.Header();
    change(header);
    dir.WriteConfig();
    dir.WriteFile("model.safetensors", ModelDir::Safetensors(header.dump(), dir.Data()));
  };
}

// A change of one field of one tensor, as JSON text, so that numbers no C++ type holds can be said.
std::function<void(ModelDir&)> Field(const char* tensor, const char* field, std::string value) {
  return [tensor, field, value = std::move(value)](ModelDir& dir) {
    Json header = dir.Header();
    header[tensor][field] = "@";
    std::string text = header.dump();
    text.replace(text.find("\"@\""), 3, value);
    dir.WriteConfig();
    dir.WriteFile("model.safetensors", ModelDir::Safetensors(text, dir.Data()));
  };
}

// A change of the directory's contents, made before they are written.
std::function<void(ModelDir&)> Change(std::function<void(ModelDir&)> change) {
  return [change = std::move(change)](ModelDir& dir) {
    change(dir);
    dir.WriteAll();
  };
}

std::function<void(ModelDir&)> Config(const char* field, Json value) {
  return Change([field, value = std::move(value)](ModelDir& dir) { dir.config[field] = value; });
}

std::function<void(ModelDir&)> Index(std::function<void(Json&)> change) {
  return [change = std::move(change)](ModelDir& dir) {
    Json index = dir.WriteShards();
    change(index);
    dir.WriteIndex(index);
  };
}

std::string LengthOnly(uint64_t length, std::string_view rest) {
  std::string file;
  for (int byte = 0; byte < 8; ++byte) {
    file.push_back(static_cast<char>(length >> (8 * byte)));
  }
  return file.append(rest);
}

std::string ManyTensors() {
  std::string header = "{";
  for (int i = 0; i < 100'002; ++i) {
    header += "\"t" + std::to_string(i) + R"(":{"dtype":"F32","shape":[0],"data_offsets":[0,0]},)";
  }
  header.back() = '}';
  return header;
}

std::vector<Fault> LengthFaults() {
  return {
      {"L01_ShorterThanTheLength",
       File("1234567"),
       "load: model.safetensors: is shorter than the 8 bytes of the header length (got 7)"},
      {"L01_EmptyFile",
       File(""),
       "load: model.safetensors: is shorter than the 8 bytes of the header length (got 0)"},
      {"L02_LengthIsZero",
       File(LengthOnly(0, "{}")),
       "load: model.safetensors: header length is 0"},
      {"L03_LengthBeyondTheFile",
       File(LengthOnly(3, "{}")),
       "load: model.safetensors: header ends beyond the file (got 3, limit 2)"},
      {"L04_LengthOverTheLimit",
       File(LengthOnly(100'000'001, "{}")),
       "load: model.safetensors: header is too long (got 100000001, limit 100000000)"},
      {"L04_LengthIsAllOnes",
       File(LengthOnly(~uint64_t{0}, "{}")),
       "load: model.safetensors: header is too long (got 18446744073709551615, limit 100000000)"},
      {"L05_DoesNotStartWithABrace",
       HeaderText(" {}"),
       "load: model.safetensors: header does not start with '{'"},
      {"L06_NotUtf8",
       HeaderText("{\"\xFF\":1}"),
       "load: model.safetensors: header: JSON: not valid at byte 3"},
      {"L07_NotJson",
       HeaderText("{\"a\":}"),
       "load: model.safetensors: header: JSON: not valid at byte 6"},
      {"L08_GarbageAfterTheObject",
       HeaderText("{}x"),
       "load: model.safetensors: header: JSON: not valid at byte 3"},
  };
}

std::vector<Fault> TensorFaults() {
  const std::string q = "load: model.safetensors: " + std::string(kQ) + ": ";
  const std::string first = "load: model.safetensors: " + std::string(kFirst) + ": ";
  return {
      {"L09_DuplicateKey",
       HeaderText(R"({"a":1,"a":2})"),
       "load: model.safetensors: header: JSON: duplicate key"},
      {"L09_DuplicateKeyInATensor",
       HeaderText(R"({"a":{"dtype":"F32","dtype":"F16","shape":[],"data_offsets":[0,4]}})"),
       "load: model.safetensors: header: JSON: duplicate key"},
      {"L10_MetadataIsNotAnObject",
       Header([](Json& h) { h["__metadata__"] = 1; }),
       "load: model.safetensors: __metadata__ must map strings to strings"},
      {"L10_MetadataHoldsANumber",
       Header([](Json& h) {
         h["__metadata__"] = {{"format", 1}};
       }),
       "load: model.safetensors: __metadata__ must map strings to strings"},
      {"L11_UnknownDtype", Field(kQ, "dtype", "\"F31\""), q + "unknown dtype (got F31)"},
      {"L11_DtypeIsANumber", Field(kQ, "dtype", "32"), q + "dtype must be a string"},
      {"L12_NegativeSize",
       Field(kQ, "shape", "[-8,-8]"),
       q + "shape must hold integers in [0, 2^63)"},
      {"L12_FractionalSize",
       Field(kQ, "shape", "[8.0,8]"),
       q + "shape must hold integers in [0, 2^63)"},
      {"L12_SizeAboveInt64",
       Field(kQ, "shape", "[9223372036854775808,0]"),
       q + "shape must hold integers in [0, 2^63)"},
      {"L12_SizeAboveUint64",
       Field(kQ, "shape", "[18446744073709551616]"),
       q + "shape must hold integers in [0, 2^63)"},
      {"L12_ShapeIsNotAList",
       Field(kQ, "shape", "64"),
       q + "shape must be a list of at most 16 sizes"},
      {"L12_TooManyDimensions",
       Field(kQ, "shape", "[1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,8,8]"),
       q + "shape must be a list of at most 16 sizes"},
      {"L13_ProductOverflows",
       Field(kQ, "shape", "[4294967296,4294967296]"),
       q + "the product of the shape overflows"},
      {"L13_BytesOverflow",
       Field(kQ, "shape", "[2305843009213693952,2]"),
       q + "the size in bytes overflows"},
      {"L14_SizeIsNotThatOfTheOffsets",
       Field(kQ, "shape", "[8,7]"),
       q + "data_offsets do not match dtype and shape (got 256 bytes, need 224)"},
      {"L14_DtypeIsNotThatOfTheOffsets",
       Field(kQ, "dtype", "\"F64\""),
       q + "data_offsets do not match dtype and shape (got 256 bytes, need 512)"},
      {"L15_OffsetsRunBackwards",
       Field(kQ, "data_offsets", "[256,0]"),
       q + "data_offsets run backwards"},
      {"L15_NegativeOffset",
       Field(kQ, "data_offsets", "[-256,0]"),
       q + "data_offsets must be integers in [0, 2^63)"},
      {"L15_OneOffset",
       Field(kQ, "data_offsets", "[0]"),
       q + "data_offsets must be a list of two offsets"},
      {"L16_EndBeyondTheFile",
       Field(kQ, "data_offsets", "[2944,3200]"),
       q + "data_offsets end beyond the file (got 3200, limit 2912)"},
      {"L16_EndNearInt64",
       Field(kQ, "data_offsets", "[9223372036854775551,9223372036854775807]"),
       q + "data_offsets end beyond the file (got 9223372036854775807, limit 2912)"},
      {"L17_Overlap",
       Field(kEmbed, "data_offsets", "[252,508]"),
       "load: model.safetensors: model.embed_tokens.weight: overlaps another tensor"},
      {"L18_HoleAtTheStart",
       Header([](Json& h) { h.erase(kFirst); }),
       "load: model.safetensors: model.embed_tokens.weight: leaves a hole of 256 bytes before it"},
      {"L18_HoleInTheMiddle",
       Header([](Json& h) { h.erase(kEmbed); }),
       "load: model.safetensors: model.layers.0.input_layernorm.weight: leaves a hole of 256 bytes"
       " before it"},
      {"L19_BytesAfterTheLastTensor",
       [](ModelDir& dir) {
         dir.WriteConfig();
         dir.WriteFile("model.safetensors", dir.Safetensors() + "x");
       },
       "load: model.safetensors: has 1 bytes after the last tensor"},
      {"L19_NoTensorsButData",
       HeaderText("{}"),
       "load: model.safetensors: has 2912 bytes after the last tensor"},
      {"L20_SubByteTensorEndsInsideAByte",
       HeaderText(R"({"a":{"dtype":"F4","shape":[3],"data_offsets":[0,2]}})"),
       "load: model.safetensors: a: does not fill whole bytes"},
      {"L21_TooManyTensors",
       HeaderText(ManyTensors()),
       "load: model.safetensors: has too many tensors (got 100002, limit 100000)"},
      {"L22_NestedTooDeep",
       HeaderText("{\"a\":" + std::string(100'000, '[')),
       "load: model.safetensors: header: JSON: nested too deep"},
      {"L22_NestedTooDeepAndClosed",
       HeaderText("{\"a\":" + std::string(100'000, '[') + std::string(100'000, ']') + "}"),
       "load: model.safetensors: header: JSON: nested too deep"},
      {"UnknownFieldOfATensor",
       Header([](Json& h) {
         h[kQ]["strides"] = {8, 1};
       }),
       q + "has a field other than dtype, shape and data_offsets"},
      {"TensorIsAString", Header([](Json& h) { h[kFirst] = "F32"; }), first + "must be an object"},
      {"TensorNameIsShownPrintable",
       HeaderText("{\"a\\u001b[2J\xC3\xA9\":{\"dtype\":\"F31\"}}"),
       "load: model.safetensors: a?[2J??: unknown dtype (got F31)"},
  };
}

std::vector<Fault> ModelFaults() {
  const std::string q = "load: model.safetensors: " + std::string(kQ) + ": ";
  return {
      {"L23_TensorMissing", Change([](ModelDir& dir) { dir.Remove(kQ); }), q + "is missing"},
      {"L23_OutputMatrixMissing",
       Change([](ModelDir& dir) { dir.Remove(kFirst); }),
       "load: model.safetensors: lm_head.weight: is missing"},
      {"L23_MoreLayersThanTheFileHas",
       Config("num_hidden_layers", 2),
       "load: model.safetensors: model.layers.1.input_layernorm.weight: is missing"},
      {"L24_ExtraTensor",
       Change([](ModelDir& dir) {
         dir.tensors.push_back({"model.extra.weight", "F32", {1}});
       }),
       "load: model.safetensors: model.extra.weight: is not part of this model"},
      {"L24_FewerLayersThanTheFileHas",
       Change([](ModelDir& dir) {
         dir.tensors.push_back({"model.layers.1.input_layernorm.weight", "F32", {8}});
       }),
       "load: model.safetensors: model.layers.1.input_layernorm.weight: is not part of this model"},
      {"L24_BiasThatTheConfigDoesNotHave",
       Change([](ModelDir& dir) {
         dir.tensors.push_back({"model.layers.0.self_attn.q_proj.bias", "F32", {8}});
       }),
       "load: model.safetensors: model.layers.0.self_attn.q_proj.bias: is not part of this model"},
      {"L25_WrongShape",
       Change([](ModelDir& dir) {
         dir.Find(kQ).shape = {4, 16};
       }),
       q + "has the wrong shape (got [4, 16], config.json needs [8, 8])"},
      {"L25_WrongRank",
       Change([](ModelDir& dir) { dir.Find(kQ).shape = {64}; }),
       q + "has the wrong shape (got [64], config.json needs [8, 8])"},
      {"L26_IntegerWeights",
       Change([](ModelDir& dir) { dir.Find(kQ).dtype = "I16"; }),
       q + "has an unsupported dtype (got I16, need F32, F16 or BF16)"},
      {"L26_PartsOfOneLayerDiffer",
       Change(
           [](ModelDir& dir) { dir.Find("model.layers.0.self_attn.k_proj.weight").dtype = "F16"; }),
       "load: model.safetensors: model.layers.0.self_attn.k_proj.weight: must have the dtype of"
       " model.layers.0.self_attn.q_proj.weight (got F16, need F32)"},
      {"L38_VocabularyIsNotThatOfTheEmbedding",
       Config("vocab_size", 9),
       "load: model.safetensors: model.embed_tokens.weight: has the wrong shape (got [8, 8],"
       " config.json needs [9, 8])"},
      {"HugeSizesAllocateNothing",
       Change([](ModelDir& dir) {
         dir.config["vocab_size"] = 1 << 22;
         dir.config["hidden_size"] = 1 << 18;
         dir.config["num_attention_heads"] = 4096;
       }),
       "load: model.safetensors: model.embed_tokens.weight: has the wrong shape (got [8, 8],"
       " config.json needs [4194304, 262144])"},
  };
}

std::vector<Fault> IndexFaults() {
  const std::string index = "load: model.safetensors.index.json: ";
  const std::string q = index + kQ + ": ";
  const std::string plain_name = "must name a file in the model folder, without '/' and '..'";
  return {
      {"L29_MissingShard",
       [](ModelDir& dir) {
         dir.WriteShards();
         std::filesystem::remove(dir.path("b.safetensors"));
       },
       "load: b.safetensors: no such file"},
      {"L30_ShardInAParentFolder",
       Index([](Json& i) { i["weight_map"][kQ] = "../b.safetensors"; }),
       q + plain_name},
      {"L30_ShardIsAbsolute",
       Index([](Json& i) { i["weight_map"][kQ] = "/etc/passwd"; }),
       q + plain_name},
      {"L30_ShardInASubfolder",
       Index([](Json& i) { i["weight_map"][kQ] = "x/b.safetensors"; }),
       q + plain_name},
      {"L30_ShardIsTheFolder", Index([](Json& i) { i["weight_map"][kQ] = "."; }), q + plain_name},
      {"L30_ShardIsANumber", Index([](Json& i) { i["weight_map"][kQ] = 7; }), q + plain_name},
      {"L31_ShardIsALinkOutOfTheFolder",
       [](ModelDir& dir) {
         dir.WriteShards();
         std::filesystem::remove(dir.path("b.safetensors"));
         std::filesystem::create_symlink("/etc/passwd", dir.path("b.safetensors"));
       },
       "load: b.safetensors: is a symbolic link out of the model folder"},
      {"L31_ModelIsALinkOutOfTheFolder",
       [](ModelDir& dir) {
         dir.WriteConfig();
         std::filesystem::create_symlink("/etc/passwd", dir.path("model.safetensors"));
       },
       "load: model.safetensors: is a symbolic link out of the model folder"},
      {"L32_TensorInTwoShards",
       [](ModelDir& dir) {
         dir.WriteShards();
         std::filesystem::copy_file(dir.path("a.safetensors"),
                                    dir.path("b.safetensors"),
                                    std::filesystem::copy_options::overwrite_existing);
       },
       "load: b.safetensors: lm_head.weight: is also in a.safetensors"},
      {"L32_TensorInTwoShardsBeforeTheRestIsRead",
       [](ModelDir& dir) {
         Json files = dir.WriteShards();
         files["weight_map"]["x"] = "c.safetensors";  // which is not there
         dir.WriteIndex(files);
         dir.WriteFile("b.safetensors", *ReadFile(dir.path("a.safetensors"), 1 << 20));
       },
       "load: b.safetensors: lm_head.weight: is also in a.safetensors"},
      {"L32_TensorInAnotherShardThanSaid",
       Index([](Json& i) { i["weight_map"][kQ] = "a.safetensors"; }),
       q + "is not in a.safetensors"},
      {"L32_TensorInNoShard",
       Index([](Json& i) { i["weight_map"]["x"] = "a.safetensors"; }),
       index + "x: is not in a.safetensors"},
      {"L33_WrongTotalSize",
       Index([](Json& i) { i["metadata"]["total_size"] = 2911; }),
       index + "metadata.total_size does not match the files (got 2911, need 2912)"},
      {"L33_NegativeTotalSize",
       Index([](Json& i) { i["metadata"]["total_size"] = -1; }),
       index + "metadata.total_size must be an integer in [0, 2^53]"},
      {"L34_IndexIsNotJson",
       [](ModelDir& dir) {
         dir.WriteShards();
         dir.WriteFile("model.safetensors.index.json", "{\"weight_map\"");
       },
       index + "JSON: not valid at byte 14"},
      {"L34_IndexHasNoMap",
       Index([](Json& i) { i.erase("weight_map"); }),
       index + "weight_map must map tensor names to file names"},
      {"L34_IndexHasAnEmptyMap",
       Index([](Json& i) { i["weight_map"] = Json::object(); }),
       index + "weight_map must map tensor names to file names"},
  };
}

std::vector<Fault> FolderFaults() {
  return {
      {"L48_WeightsAreAFolder",
       [](ModelDir& dir) {
         dir.WriteConfig();
         std::filesystem::create_directory(dir.path("model.safetensors"));
       },
       "load: model.safetensors: is not a regular file"},
      {"L48_WeightsAreAPipe",
       [](ModelDir& dir) {
         dir.WriteConfig();
         ASSERT_EQ(::mkfifo(dir.path("model.safetensors").c_str(), 0600), 0);
       },
       "load: model.safetensors: is not a regular file"},
      {"L48_LinkToItself",
       [](ModelDir& dir) {
         dir.WriteConfig();
         std::filesystem::create_symlink("model.safetensors", dir.path("model.safetensors"));
       },
       "load: model.safetensors: is a symbolic link to nothing"},
      {"NoWeights",
       [](ModelDir& dir) { dir.WriteConfig(); },
       "load: model.safetensors: no such file, and no model.safetensors.index.json"},
      {"ConfigFaultIsReportedWithItsField",
       Config("hidden_size", -8),
       "config.json: hidden_size: must be in [1, 262144] (got -8)"},
  };
}

// A BLOOM with a fault.
std::function<void(ModelDir&)> Bloom(void (*change)(ModelDir&)) {
  return [change](ModelDir& dir) {
    dir.BecomeBloom();
    change(dir);
    dir.WriteAll();
  };
}

std::vector<Fault> BloomFaults() {
  static constexpr char kQkv[] = "h.0.self_attention.query_key_value.weight";
  static constexpr char kNormBias[] = "word_embeddings_layernorm.bias";
  return {
      {"BloomQkvIsNotOfThreeParts",
       Bloom([](ModelDir& dir) {
         dir.Find(kQkv).shape = {16, 8};
       }),
       "load: model.safetensors: h.0.self_attention.query_key_value.weight: has the wrong shape"
       " (got [16, 8], config.json needs [24, 8])"},
      {"BloomQkvHasNoBias",
       Bloom([](ModelDir& dir) { dir.Remove("h.0.self_attention.query_key_value.bias"); }),
       "load: model.safetensors: h.0.self_attention.query_key_value.bias: is missing"},
      {"BloomEmbeddingNormMissing",
       Bloom([](ModelDir& dir) { dir.Remove(kNormBias); }),
       "load: model.safetensors: word_embeddings_layernorm.bias: is missing"},
      {"BloomTokenTableMissing",
       Bloom([](ModelDir& dir) { dir.Remove("word_embeddings.weight"); }),
       "load: model.safetensors: transformer.word_embeddings.weight: is missing"},
      {"BloomWithoutAPrefixHasATensorWithOne",
       Bloom([](ModelDir& dir) { dir.Find(kQkv).name = std::string("transformer.") + kQkv; }),
       "load: model.safetensors: h.0.self_attention.query_key_value.weight: is missing"},
      {"BloomUntiedWithoutAnOutputMatrix",
       Bloom([](ModelDir& dir) { dir.config["tie_word_embeddings"] = false; }),
       "load: model.safetensors: lm_head.weight: is missing"},
      {"BloomWithHeadsThatDoNotDivide",
       Bloom([](ModelDir& dir) { dir.config["num_attention_heads"] = 3; }),
       "config.json: num_attention_heads: must divide n_embed (got 3, n_embed 8)"},
  };
}

std::vector<Fault> AllFaults() {
  std::vector<Fault> all;
  for (auto& faults : {LengthFaults(),
                       TensorFaults(),
                       ModelFaults(),
                       BloomFaults(),
                       IndexFaults(),
                       FolderFaults()}) {
    all.insert(all.end(), faults.begin(), faults.end());
  }
  return all;
}

class MalformedModelTest : public testing::TestWithParam<Fault> {};

TEST_P(MalformedModelTest, IsRefusedWithItsOwnMessage) {
  ModelDir dir;
  GetParam().write(dir);
  auto backend = CreateReferenceBackend();

  auto model = LoadModel(dir.path(), *backend, nullptr);

  ASSERT_FALSE(model.ok());
  EXPECT_EQ(std::string(model.status().message()), GetParam().message);
}

std::string FaultName(const testing::TestParamInfo<Fault>& fault) { return fault.param.name; }

INSTANTIATE_TEST_SUITE_P(Faults, MalformedModelTest, testing::ValuesIn(AllFaults()), FaultName);

TEST(MalformedModelTest, TheModelWithoutAFaultLoads) {
  ModelDir whole;
  ModelDir sharded;
  whole.WriteAll();
  sharded.WriteShards();
  auto backend = CreateReferenceBackend();

  EXPECT_TRUE(LoadModel(whole.path(), *backend, nullptr).ok());
  EXPECT_TRUE(LoadModel(sharded.path(), *backend, nullptr).ok());
}

TEST(MalformedModelTest, MissingFilesAreNotFoundAndFaultsAreInvalidArguments) {
  ModelDir empty;
  ModelDir spoilt;
  spoilt.WriteConfig();
  spoilt.WriteFile("model.safetensors", "1234567");
  auto backend = CreateReferenceBackend();

  absl::Status missing = LoadModel(empty.path(), *backend, nullptr).status();
  absl::Status fault = LoadModel(spoilt.path(), *backend, nullptr).status();

  EXPECT_EQ(missing.code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(fault.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(ReasonOf(fault), "MODEL_FILE");
}

TEST(MalformedModelTest, KnownLeftoversOfOldCheckpointsAreIgnored) {
  ModelDir dir;
  dir.tensors.push_back({"model.layers.0.self_attn.rotary_emb.inv_freq", "F32", {2}});
  dir.config["tie_word_embeddings"] = true;  // lm_head.weight is there and not needed
  dir.WriteAll();
  auto backend = CreateReferenceBackend();

  auto model = LoadModel(dir.path(), *backend, nullptr);

  EXPECT_TRUE(model.ok()) << model.status();
}

TEST(MalformedModelTest, ATiedModelWithAnOutputMatrixOfItsOwnUsesItWithAWarning) {
  const auto log_of_load = [](bool differs) {
    ModelDir dir;
    dir.config["tie_word_embeddings"] = true;
    dir.config["vocab_size"] = 4096;
    for (const char* name : {"lm_head.weight", "model.embed_tokens.weight"}) {
      dir.Find(name).shape = {4096, 8};
    }
    dir.WriteAll();
    if (differs) {
      const std::string path = dir.path() + "/model.safetensors";
      const FileDescriptor file(::open(path.c_str(), O_RDWR | O_CLOEXEC));
      uint64_t header_bytes = 0;
      EXPECT_EQ(::pread(file.fd(), &header_bytes, sizeof(header_bytes), 0), 8);
      // The last byte of lm_head.weight, which is the first tensor.
      const auto head_bytes = dir.config["vocab_size"].get<uint64_t>() *
                              dir.config["hidden_size"].get<uint64_t>() * sizeof(float);
      EXPECT_EQ(::pwrite(file.fd(), "x", 1, static_cast<off_t>(8 + header_bytes + head_bytes - 1)),
                1);
    }
    auto backend = CreateReferenceBackend();
    CaptureStderr();
    const auto model = LoadModel(dir.path(), *backend, nullptr);
    std::string log = GetCapturedStderr();
    EXPECT_TRUE(model.ok()) << model.status();
    dir.config["tie_word_embeddings"] = !differs;
    dir.WriteConfig();
    const auto expected = LoadModel(dir.path(), *backend, nullptr);
    EXPECT_EQ((*model)->weight_bytes(), (*expected)->weight_bytes());
    return log;
  };

  EXPECT_EQ(log_of_load(/*differs=*/false).find("lm_head.weight"), std::string::npos);
  const std::string log = log_of_load(/*differs=*/true);
  EXPECT_NE(log.find("the output matrix differs from the embedding"), std::string::npos);
  EXPECT_EQ(log.find("lm_head.weight"), log.rfind("lm_head.weight")) << "said once";
}

TEST(MalformedModelTest, PartsThatSeeAreLeftOutOfATextTowerAndCounted) {
  ModelDir dir;
  Json text = dir.config;
  text["model_type"] = "llama";
  dir.config = {{"architectures", {"LlavaForConditionalGeneration"}}, {"text_config", text}};
  for (TensorSpec& tensor : dir.tensors) {
    tensor.name = "language_model." + tensor.name;
  }
  dir.tensors.push_back({"vision_tower.patch.weight", "I16", {3}});
  dir.tensors.push_back({"multi_modal_projector.linear_1.weight", "F32", {2, 2}});
  dir.tensors.push_back({"model.visual.merger.weight", "F32", {2}});
  dir.WriteAll();
  auto backend = CreateReferenceBackend();
  CaptureStderr();

  auto model = LoadModel(dir.path(), *backend, nullptr);

  const std::string log = GetCapturedStderr();
  EXPECT_TRUE(model.ok()) << model.status();
  EXPECT_NE(log.find("tensors_left_out"), std::string::npos) << log;
  EXPECT_EQ(log.find("tensors_left_out"), log.rfind("tensors_left_out")) << "said once";
  EXPECT_NE(log.find("tensors_left_out=3"), std::string::npos) << log;

  dir.tensors.push_back({"vision.weight", "F32", {2}});
  dir.WriteAll();
  EXPECT_EQ(std::string(LoadModel(dir.path(), *backend, nullptr).status().message()),
            "load: model.safetensors: vision.weight: is not part of this model");
}

TEST(MalformedModelTest, APlainModelHasNoPartsThatSee) {
  ModelDir dir;
  dir.tensors.push_back({"model.visual.merger.weight", "F32", {2}});
  dir.WriteAll();
  auto backend = CreateReferenceBackend();

  EXPECT_EQ(std::string(LoadModel(dir.path(), *backend, nullptr).status().message()),
            "load: model.safetensors: model.visual.merger.weight: is not part of this model");
}

TEST(MalformedModelTest, BloomLoadsWithAndWithoutAPrefixAndItsTiedOutputMatrix) {
  ModelDir bare;
  ModelDir prefixed;
  bare.BecomeBloom();
  prefixed.BecomeBloom();
  for (TensorSpec& tensor : prefixed.tensors) {
    tensor.name = "transformer." + tensor.name;
  }
  prefixed.tensors.push_back({"lm_head.weight", "F32", {8, 8}});
  bare.WriteAll();
  prefixed.WriteAll();
  auto backend = CreateReferenceBackend();

  auto from_bare = LoadModel(bare.path(), *backend, nullptr);
  auto from_prefixed = LoadModel(prefixed.path(), *backend, nullptr);

  EXPECT_TRUE(from_bare.ok()) << from_bare.status();
  EXPECT_TRUE(from_prefixed.ok()) << from_prefixed.status();
}

TEST(MalformedModelTest, LinksInsideTheFolderAndOfAHubCacheAreFollowed) {
  ModelDir hub;
  const std::string revision = "models--x/snapshots/0123";
  std::filesystem::create_directories(hub.path(revision));
  std::filesystem::create_directories(hub.path("models--x/blobs"));
  hub.WriteFile(revision + "/config.json", hub.config.dump());
  hub.WriteFile("models--x/blobs/abc", hub.Safetensors());
  std::filesystem::create_symlink("../../blobs/abc", hub.path(revision + "/model.safetensors"));
  ModelDir inside;
  inside.WriteConfig();
  inside.WriteFile("data", inside.Safetensors());
  std::filesystem::create_symlink("data", inside.path("model.safetensors"));
  auto backend = CreateReferenceBackend();

  EXPECT_TRUE(LoadModel(hub.path(revision), *backend, nullptr).ok());
  EXPECT_TRUE(LoadModel(inside.path(), *backend, nullptr).ok());
}

// L47: SIGBUS would end the process if the file were mapped.
TEST(MalformedModelTest, FileThatShrinksWhileItIsReadIsRefused) {
  ModelDir dir;
  dir.WriteAll();
  auto backend = CreateReferenceBackend();
  auto config = LoadModelConfig(dir.path());
  ASSERT_TRUE(config.ok()) << config.status();
  auto files = WeightFiles::Open(dir.path());
  ASSERT_TRUE(files.ok()) << files.status();
  auto layout = CheckWeightFiles(*config, *files);
  ASSERT_TRUE(layout.ok()) << layout.status();
  std::filesystem::resize_file(dir.path("model.safetensors"), 1000);

  auto weights = LoadWeights(*layout, FileTensors(*files), *backend, nullptr);

  EXPECT_EQ(std::string(weights.status().message()),
            "load: model.safetensors: shrank while being read");
}

TEST(MalformedModelTest, ProgressEndsAtTheTotal) {
  ModelDir dir;
  dir.WriteAll();
  auto backend = CreateReferenceBackend();
  std::vector<LoadProgress> seen;

  auto model =
      LoadModel(dir.path(), *backend, [&seen](const LoadProgress& p) { seen.push_back(p); });

  ASSERT_TRUE(model.ok());
  ASSERT_GE(seen.size(), 8U);
  for (size_t i = 1; i < seen.size(); ++i) {
    EXPECT_GE(seen[i].bytes_done, seen[i - 1].bytes_done);
  }
  EXPECT_EQ(seen.back().tensors_done, 12);
  EXPECT_EQ(seen.back().tensors_total, 12);
  EXPECT_EQ(seen.back().bytes_done, 2912);
  EXPECT_EQ(seen.back().bytes_total, 2912);
}

}  // namespace
}  // namespace quire
