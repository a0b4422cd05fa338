#include <cstdint>
#include <set>
#include <string>

#include "gtest/gtest.h"

#include "tests/worker/model/model_dir.h"
#include "worker/model/model.h"

namespace quire {
namespace {

uint64_t HashOfFiles(const ModelDir& dir) {
  auto hash = HashModelFiles(dir.path());
  EXPECT_TRUE(hash.ok()) << hash.status();
  return hash.value_or(0);
}

TEST(HashModelFilesTest, IsEqualForEqualFilesInDifferentFolders) {
  ModelDir a;
  ModelDir b;
  a.WriteAll();
  b.WriteAll();

  EXPECT_EQ(HashOfFiles(a), HashOfFiles(b));
}

TEST(HashModelFilesTest, DiffersWhenAnythingThatMattersDiffers) {
  ModelDir dir;
  std::set<uint64_t> hashes;
  dir.WriteAll();
  hashes.insert(HashOfFiles(dir));

  std::string spoilt = dir.Safetensors();
  spoilt.back() ^= 1;  // the last weight
  dir.WriteFile("model.safetensors", spoilt);
  hashes.insert(HashOfFiles(dir));

  dir.tensors.front().dtype = "F16";
  dir.WriteAll();
  hashes.insert(HashOfFiles(dir));

  dir.tensors.front().shape = {4, 16};
  dir.WriteAll();
  hashes.insert(HashOfFiles(dir));

  dir.config["rope_theta"] = 20000.0;
  dir.WriteAll();
  hashes.insert(HashOfFiles(dir));

  EXPECT_EQ(hashes.size(), 5U);
}

TEST(HashModelFilesTest, FaultyFilesGiveTheLoadersError) {
  ModelDir dir;
  dir.WriteConfig();
  dir.WriteFile("model.safetensors", "1234567");

  auto hash = HashModelFiles(dir.path());

  EXPECT_EQ(std::string(hash.status().message()),
            "load: model.safetensors: is shorter than the 8 bytes of the header length (got 7)");
}

}  // namespace
}  // namespace quire
