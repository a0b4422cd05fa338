#include "worker/model/weight_files.h"

#include <string>

#include <gtest/gtest.h>

#include "tests/worker/model/model_dir.h"

namespace quire {
namespace {

// A file of the most tensors that one may have, without data, whose names begin so.
std::string ManyTensors(const std::string& prefix) {
  std::string header = "{";
  for (int64_t i = 0; i < kMaxSafetensorsTensors; ++i) {
    header +=
        '"' + prefix + std::to_string(i) + R"(":{"dtype":"U8","shape":[0],"data_offsets":[0,0]},)";
  }
  header.back() = '}';
  return ModelDir::Safetensors(header, "");
}

// Each file is within its own bound; without one of all, 4,096 of them take what memory there is.
TEST(WeightFilesTest, AllFilesTogetherHoldABoundedNumberOfTensors) {
  const ModelDir dir;
  std::string map;
  for (char shard = 'a'; shard <= 'l'; ++shard) {
    const std::string file = std::string(1, shard) + ".safetensors";
    if (shard < 'l') {  // the last one is not even looked for
      dir.WriteFile(file, ManyTensors({shard}));
    }
    map += (map.empty() ? "\"" : ",\"") + std::string(1, shard) + R"(0":")" + file + '"';
  }
  dir.WriteFile("model.safetensors.index.json", R"({"weight_map":{)" + map + "}}");

  EXPECT_EQ(WeightFiles::Open(dir.path()).status().message(),
            "load: model.safetensors.index.json: its files hold too many tensors (limit 1000000): "
            "k.safetensors has 100000 more");
}

}  // namespace
}  // namespace quire
