// Files that the Python package gguf wrote are read as that package reads them
// (make_gguf_goldens.py).
#include <string>
#include <string_view>
#include <vector>

#include <gtest/gtest.h>

#include "common/json/json.h"
#include "common/model/gguf_file.h"
#include "tests/common/model/gguf_dir.h"

namespace quire {
namespace {

constexpr char kTestdata[] = "tests/common/model/testdata/";

Json GoldenOf(const std::string& name) {
  auto golden = ParseJsonFile(kTestdata + name, 1 << 20);
  QUIRE_CHECK(golden.ok());
  return *std::move(golden);
}

GgufFile Opened(const std::string& name) {
  auto file = GgufFile::Open(kTestdata + name);
  QUIRE_CHECK(file.ok());
  return *std::move(file);
}

// Returns what the getter for the value's type returns, as a JSON list.
Json ValuesOf(const GgufMetadata& metadata, const std::string& key) {
  constexpr double kMax = std::numeric_limits<double>::max();
  const GgufValue& value = *metadata.Find(key);
  Json values = Json::array();
  const auto add = [&](const auto& got) {
    EXPECT_TRUE(got.ok()) << got.status();
    values.push_back(*got);
  };
  const auto add_all = [&](const auto& got) {
    EXPECT_TRUE(got.ok()) << got.status();
    for (const auto& element : *got) {
      values.push_back(element);
    }
  };
  switch (value.element_type) {
    case GgufValueType::kString:
      value.is_array() ? add_all(metadata.GetStrings(key)) : add(metadata.GetString(key));
      break;
    case GgufValueType::kBool:
      value.is_array() ? add_all(metadata.GetBools(key)) : add(metadata.GetBool(key));
      break;
    case GgufValueType::kFloat32:
    case GgufValueType::kFloat64:
      value.is_array() ? add_all(metadata.GetFloats(key, -kMax, kMax))
                       : add(metadata.GetFloat(key, -kMax, kMax));
      break;
    default:
      value.is_array() ? add_all(metadata.GetIntegers(key, INT64_MIN, INT64_MAX))
                       : add(metadata.GetInteger(key, INT64_MIN, INT64_MAX));
      break;
  }
  return values;
}

// The getters return int64_t, so the largest uint64 is out of their range by contract.
bool IsOutOfRange(const std::string& key) { return key == "uint64.high" || key == "uint64.array"; }

// Compares tensors from `first` on, which are those of one part. Byte j of tensor i is
// (7 * i + 13 * j) % 256.
void ExpectTensors(const GgufFile& file, const Json& golden, size_t first) {
  for (size_t i = 0; i < golden.size(); ++i) {
    const Json& expected = golden[i];
    SCOPED_TRACE(expected["name"]);
    const GgufTensor* tensor = file.Find(expected["name"].get<std::string>());
    ASSERT_NE(tensor, nullptr);
    EXPECT_EQ(std::string(NameOf(tensor->type)), expected["type"]);
    std::vector<int64_t> dims = tensor->shape;
    std::reverse(dims.begin(), dims.end());
    EXPECT_EQ(Json(dims), expected["dims"]);
    EXPECT_EQ(tensor->offset, expected["offset"]);
    EXPECT_EQ(tensor->bytes, expected["bytes"]);
    std::string data(static_cast<size_t>(tensor->bytes), '\0');
    for (size_t j = 0; j < data.size(); ++j) {
      data[j] = static_cast<char>((7 * (first + i) + 13 * j) % 256);
    }
    EXPECT_EQ(BytesOf(file, *tensor), data);
  }
}

TEST(GgufGoldenTest, ValuesOfAllTypesEqualThePythonReaders) {
  const GgufFile file = Opened("all_types.gguf");
  const Json golden = GoldenOf("all_types.json");

  ASSERT_EQ(file.metadata().values().size(), golden["keys"].size());
  for (const auto& [key, expected] : golden["keys"].items()) {
    SCOPED_TRACE(key);
    const GgufValue* value = file.metadata().Find(key);
    ASSERT_NE(value, nullptr);
    EXPECT_EQ(std::string(NameOf(value->type)), expected["type"]);
    EXPECT_EQ(std::string(NameOf(value->element_type)), expected["element_type"]);
    if (!IsOutOfRange(key)) {
      EXPECT_EQ(ValuesOf(file.metadata(), key), expected["values"]);
    }
  }
}

TEST(GgufGoldenTest, TensorsOfAllTypesEqualThePythonReaders) {
  const GgufFile file = Opened("all_types.gguf");
  const Json golden = GoldenOf("all_types.json");

  ASSERT_EQ(file.tensors().size(), golden["tensors"].size());
  EXPECT_GE(file.tensors().size(), 33U);
  ExpectTensors(file, golden["tensors"], 0);
}

TEST(GgufGoldenTest, ASplitModelEqualsThePythonReadersParts) {
  const GgufFile file = Opened("split-00001-of-00003.gguf");
  const Json golden = GoldenOf("split.json");

  EXPECT_EQ(file.num_parts(), 3);
  EXPECT_EQ(*file.metadata().GetString("general.name"), "three parts");
  size_t first = 0;
  for (const Json& part : golden["parts"]) {
    ExpectTensors(file, part["tensors"], first);
    first += part["tensors"].size();
  }
  EXPECT_EQ(file.tensors().size(), first);
}

}  // namespace
}  // namespace quire
