#include "worker/model/safetensors_file.h"

#include <string>

#include <gtest/gtest.h>

#include "tests/worker/model/model_dir.h"

namespace quire {
namespace {

absl::StatusOr<SafetensorsFile> Open(const std::string& header, const std::string& data) {
  const ModelDir dir;
  dir.WriteFile("model.safetensors", ModelDir::Safetensors(header, data));
  return SafetensorsFile::Open(dir.path("model.safetensors"), "model.safetensors");
}

// A header of tensors with one value each, of four sizes.
std::string HeaderOf(int64_t num_tensors) {
  std::string header = "{";
  for (int64_t i = 0; i < num_tensors; ++i) {
    const std::string offsets = std::to_string(i) + "," + std::to_string(i + 1);
    header += "\"model.layers." + std::to_string(i) +
              R"(.weight":{"dtype":"U8","shape":[1,1,1,1],"data_offsets":[)" + offsets + "]},";
  }
  header.back() = '}';
  return header;
}

// A reader that scans all earlier tensors for each one would need minutes.
TEST(SafetensorsFileTest, AHeaderOfAllTheTensorsThatAreAllowedIsRead) {
  const auto file =
      Open(HeaderOf(kMaxSafetensorsTensors), std::string(size_t{kMaxSafetensorsTensors}, '\1'));
  ASSERT_TRUE(file.ok()) << file.status();
  EXPECT_EQ(file->tensors().size(), static_cast<size_t>(kMaxSafetensorsTensors));
}

TEST(SafetensorsFileTest, MetadataMayHoldAnyText) {
  const std::string braces(static_cast<size_t>(kMaxSafetensorsTensors) + 3, '{');
  const std::string commas(static_cast<size_t>(kMaxSafetensorsTensors) * 16 + 1, ',');
  const std::string header = R"({"__metadata__":{"a":")" + braces + R"(","b":")" + commas +
                             R"("},"t":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}})";
  const auto file = Open(header, "x");
  ASSERT_TRUE(file.ok()) << file.status();
  EXPECT_EQ(file->tensors().size(), 1U);
}

TEST(SafetensorsFileTest, AHeaderOfManySmallValuesIsRefusedBeforeItIsAllRead) {
  std::string header = R"({"a":[)";
  for (int64_t i = 0; i < 16 * kMaxSafetensorsTensors; ++i) {
    header += "[],";
  }
  const auto file = Open(header + "NaN", "");
  EXPECT_EQ(file.status().message(),
            "load: model.safetensors: header: JSON: has too many values (limit 1600000)");
}

}  // namespace
}  // namespace quire
