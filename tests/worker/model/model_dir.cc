#include "tests/worker/model/model_dir.h"

#include <stdlib.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>

#include "common/base/check.h"

namespace quire {
namespace {

constexpr char kLayer[] = "model.layers.0.";

// The folder is in memory if the system has such a place, because some tests write thousands of
// files.
std::filesystem::path TemporaryFolder() {
  const std::filesystem::path memory = "/dev/shm";
  return ::access(memory.c_str(), W_OK) == 0 ? memory : std::filesystem::temp_directory_path();
}

int64_t BytesOf(const TensorSpec& tensor) {
  int64_t bytes = 2;
  if (tensor.dtype == "F32" || tensor.dtype == "I32") {
    bytes = 4;
  } else if (tensor.dtype == "I8" || tensor.dtype.starts_with("F8")) {
    bytes = 1;
  } else if (tensor.dtype == "I64") {
    bytes = 8;
  }
  for (int64_t size : tensor.shape) {
    bytes *= size;
  }
  return bytes;
}

}  // namespace

ModelDir::ModelDir() {
  std::string name = (TemporaryFolder() / "quire_model_XXXXXX").string();
  QUIRE_CHECK(::mkdtemp(name.data()) != nullptr);
  path_ = name;
  config = {{"architectures", {"LlamaForCausalLM"}},
            {"vocab_size", 8},
            {"hidden_size", 8},
            {"intermediate_size", 16},
            {"num_hidden_layers", 1},
            {"num_attention_heads", 2},
            {"num_key_value_heads", 1},
            {"max_position_embeddings", 64},
            {"torch_dtype", "float32"}};
  const std::string layer = kLayer;
  tensors = {{"lm_head.weight", "F32", {8, 8}},
             {"model.embed_tokens.weight", "F32", {8, 8}},
             {layer + "input_layernorm.weight", "F32", {8}},
             {layer + "mlp.down_proj.weight", "F32", {8, 16}},
             {layer + "mlp.gate_proj.weight", "F32", {16, 8}},
             {layer + "mlp.up_proj.weight", "F32", {16, 8}},
             {layer + "post_attention_layernorm.weight", "F32", {8}},
             {layer + "self_attn.k_proj.weight", "F32", {4, 8}},
             {layer + "self_attn.o_proj.weight", "F32", {8, 8}},
             {layer + "self_attn.q_proj.weight", "F32", {8, 8}},
             {layer + "self_attn.v_proj.weight", "F32", {4, 8}},
             {"model.norm.weight", "F32", {8}}};
}

void ModelDir::BecomeBloom() {
  config = {{"architectures", {"BloomForCausalLM"}},
            {"vocab_size", 8},
            {"n_embed", 8},
            {"n_layer", 1},
            {"num_attention_heads", 2},
            {"seq_length", 64},
            {"torch_dtype", "float32"}};
  tensors = {{"h.0.input_layernorm.bias", "F32", {8}},
             {"h.0.input_layernorm.weight", "F32", {8}},
             {"h.0.mlp.dense_4h_to_h.bias", "F32", {8}},
             {"h.0.mlp.dense_4h_to_h.weight", "F32", {8, 32}},
             {"h.0.mlp.dense_h_to_4h.bias", "F32", {32}},
             {"h.0.mlp.dense_h_to_4h.weight", "F32", {32, 8}},
             {"h.0.post_attention_layernorm.bias", "F32", {8}},
             {"h.0.post_attention_layernorm.weight", "F32", {8}},
             {"h.0.self_attention.dense.bias", "F32", {8}},
             {"h.0.self_attention.dense.weight", "F32", {8, 8}},
             {"h.0.self_attention.query_key_value.bias", "F32", {24}},
             {"h.0.self_attention.query_key_value.weight", "F32", {24, 8}},
             {"ln_f.bias", "F32", {8}},
             {"ln_f.weight", "F32", {8}},
             {"word_embeddings.weight", "F32", {8, 8}},
             {"word_embeddings_layernorm.bias", "F32", {8}},
             {"word_embeddings_layernorm.weight", "F32", {8}}};
}

ModelDir::~ModelDir() {
  std::error_code ignored;
  std::filesystem::remove_all(path_, ignored);
}

TensorSpec& ModelDir::Find(std::string_view name) {
  auto it = std::find_if(tensors.begin(), tensors.end(), [name](const TensorSpec& tensor) {
    return tensor.name == name;
  });
  QUIRE_CHECK(it != tensors.end());
  return *it;
}

void ModelDir::Remove(std::string_view name) {
  QUIRE_CHECK(std::erase_if(tensors,
                            [name](const TensorSpec& tensor) { return tensor.name == name; }) == 1);
}

Json ModelDir::Header() const {
  Json header = Json::object();
  int64_t offset = 0;
  for (const TensorSpec& tensor : tensors) {
    const int64_t end = offset + BytesOf(tensor);
    header[tensor.name] = {
        {"dtype", tensor.dtype}, {"shape", tensor.shape}, {"data_offsets", {offset, end}}};
    offset = end;
  }
  return header;
}

std::string ModelDir::Data() const {
  int64_t bytes = 0;
  for (const TensorSpec& tensor : tensors) {
    bytes += BytesOf(tensor);
  }
  return std::string(static_cast<size_t>(bytes), '\x3C');  // 0x3C3C3C3C: 0.0115 in fp32
}

std::string ModelDir::Safetensors(std::string_view header, std::string_view data) {
  std::string file;
  for (int byte = 0; byte < 8; ++byte) {
    file.push_back(static_cast<char>(static_cast<uint64_t>(header.size()) >> (8 * byte)));
  }
  file.append(header);
  file.append(data);
  return file;
}

std::string ModelDir::Safetensors() const { return Safetensors(Header().dump(), Data()); }

void ModelDir::WriteFile(std::string_view name, std::string_view bytes) const {
  std::ofstream file(path(name), std::ios::binary | std::ios::trunc);
  file.write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
  file.close();
  QUIRE_CHECK(file.good());
}

void ModelDir::WriteConfig() const { WriteFile("config.json", config.dump()); }

void ModelDir::WriteAll() const {
  WriteConfig();
  WriteFile("model.safetensors", Safetensors());
}

Json ModelDir::WriteShards() const {
  ModelDir a;
  ModelDir b;
  a.tensors.assign(tensors.begin(), tensors.begin() + 6);
  b.tensors.assign(tensors.begin() + 6, tensors.end());
  WriteConfig();
  WriteFile("a.safetensors", a.Safetensors());
  WriteFile("b.safetensors", b.Safetensors());
  Json index = {{"metadata", {{"total_size", a.Data().size() + b.Data().size()}}},
                {"weight_map", Json::object()}};
  for (const TensorSpec& tensor : a.tensors) {
    index["weight_map"][tensor.name] = "a.safetensors";
  }
  for (const TensorSpec& tensor : b.tensors) {
    index["weight_map"][tensor.name] = "b.safetensors";
  }
  WriteIndex(index);
  return index;
}

void ModelDir::WriteIndex(const Json& index) const {
  WriteFile("model.safetensors.index.json", index.dump());
}

}  // namespace quire
