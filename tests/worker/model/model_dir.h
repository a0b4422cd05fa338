// ModelDir is a small valid Llama directory under a temporary folder, for tests that spoil one
// thing in it.
#ifndef QUIRE_TESTS_WORKER_MODEL_MODEL_DIR_H_
#define QUIRE_TESTS_WORKER_MODEL_MODEL_DIR_H_

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "common/json/json.h"

namespace quire {

struct TensorSpec {
  std::string name;
  std::string dtype;
  std::vector<int64_t> shape;
};

class ModelDir {
 public:
  // Nothing is written yet.
  ModelDir();
  ~ModelDir();
  ModelDir(const ModelDir&) = delete;
  ModelDir& operator=(const ModelDir&) = delete;

  Json config;                      // of config.json
  std::vector<TensorSpec> tensors;  // of model.safetensors, in the order of their data

  // Makes config and tensors those of a small BLOOM, named as it was published.
  void BecomeBloom();

  std::string path() const { return path_.string(); }
  std::string path(std::string_view name) const { return (path_ / name).string(); }

  TensorSpec& Find(std::string_view name);
  void Remove(std::string_view name);

  // The header that describes `tensors`, and their data: finite numbers.
  Json Header() const;
  std::string Data() const;
  // A safetensors file of a header and data, or of `tensors`.
  static std::string Safetensors(std::string_view header, std::string_view data);
  std::string Safetensors() const;

  void WriteFile(std::string_view name, std::string_view bytes) const;
  void WriteConfig() const;
  // config.json and model.safetensors.
  void WriteAll() const;
  // config.json, two shards named a.safetensors and b.safetensors that share the tensors between
  // them, and the index, which is returned.
  Json WriteShards() const;
  void WriteIndex(const Json& index) const;

 private:
  std::filesystem::path path_;
};

}  // namespace quire

#endif  // QUIRE_TESTS_WORKER_MODEL_MODEL_DIR_H_
