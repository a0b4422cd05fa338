#include "common/model/gguf_metadata.h"

#include <cmath>
#include <limits>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "common/base/error.h"
#include "tests/common/model/gguf_bytes.h"
#include "tests/common/model/gguf_dir.h"

namespace quire {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

GgufFile FileOf(const GgufBytes& bytes) {
  const GgufDir dir;
  dir.Write("m.gguf", bytes.File());
  auto file = dir.Open("m.gguf");
  QUIRE_CHECK(file.ok());
  return *std::move(file);
}

// The least and the greatest value of each integer type, and a value of each other type.
GgufBytes AllTypes() {
  GgufBytes file;
  file.Add("u8", GgufValueType::kUint8, uint8_t{255});
  file.Add("i8", GgufValueType::kInt8, int8_t{-128});
  file.Add("u16", GgufValueType::kUint16, uint16_t{65'535});
  file.Add("i16", GgufValueType::kInt16, int16_t{-32'768});
  file.Add("u32", GgufValueType::kUint32, uint32_t{4'294'967'295});
  file.Add("i32", GgufValueType::kInt32, std::numeric_limits<int32_t>::min());
  file.Add("u64", GgufValueType::kUint64, ~uint64_t{0});
  file.Add("i64", GgufValueType::kInt64, std::numeric_limits<int64_t>::min());
  file.Add("f32", GgufValueType::kFloat32, 1e-5F);
  file.Add("f64", GgufValueType::kFloat64, 1e-300);
  file.Add("yes", GgufValueType::kBool, true);
  file.Add("no", GgufValueType::kBool, false);
  file.Add("text", std::string_view("a\0\xFF", 3));
  file.Add("empty text", "");
  file.AddArray<std::string_view>("texts", GgufValueType::kString, {"", "ab", "", "c"});
  file.AddArray<int16_t>("i16s", GgufValueType::kInt16, {-3, 0, 500});
  file.AddArray<uint64_t>("u64s", GgufValueType::kUint64, {1, uint64_t{1} << 63});
  file.AddArray<float>("f32s", GgufValueType::kFloat32, {-0.5F, 2.0F});
  file.AddArray<double>("f64s", GgufValueType::kFloat64, {0.1});
  file.AddArray<uint8_t>("bools", GgufValueType::kBool, {1, 0, 1});
  file.AddArray<float>("no floats", GgufValueType::kFloat32, {});
  return file;
}

template <typename T>
std::string MessageOf(const absl::StatusOr<T>& value) {
  EXPECT_EQ(ReasonOf(value.status()), "MODEL_FILE");
  return std::string(value.status().message());
}

TEST(GgufMetadataTest, AnIntegerOfAnyWidthIsReadExactly) {
  const GgufFile file = FileOf(AllTypes());
  const GgufMetadata& metadata = file.metadata();

  EXPECT_EQ(*metadata.GetInteger("u8", 0, 255), 255);
  EXPECT_EQ(*metadata.GetInteger("i8", -128, 0), -128);
  EXPECT_EQ(*metadata.GetInteger("u16", 0, 65'535), 65'535);
  EXPECT_EQ(*metadata.GetInteger("i16", -32'768, 0), -32'768);
  EXPECT_EQ(*metadata.GetInteger("u32", 0, INT64_MAX), 4'294'967'295);
  EXPECT_EQ(*metadata.GetInteger("i32", INT32_MIN, 0), INT32_MIN);
  EXPECT_EQ(*metadata.GetInteger("i64", INT64_MIN, 0), INT64_MIN);
}

TEST(GgufMetadataTest, AnIntegerOutsideTheRangeIsRefusedWithTheRange) {
  const GgufFile file = FileOf(AllTypes());
  const GgufMetadata& metadata = file.metadata();

  EXPECT_EQ(MessageOf(metadata.GetInteger("u8", 0, 254)),
            "load: m.gguf: u8: must be in [0, 254] (got 255)");
  EXPECT_EQ(MessageOf(metadata.GetInteger("i8", -127, 0)),
            "load: m.gguf: i8: must be in [-127, 0] (got -128)");
  EXPECT_EQ(MessageOf(metadata.GetInteger("u64", INT64_MIN, INT64_MAX)),
            "load: m.gguf: u64: must be in [-9223372036854775808, 9223372036854775807] (got "
            "18446744073709551615)");
  EXPECT_EQ(MessageOf(metadata.GetIntegers("i16s", 0, 500)),
            "load: m.gguf: i16s: element 0 must be in [0, 500] (got -3)");
  EXPECT_EQ(MessageOf(metadata.GetIntegers("u64s", 0, INT64_MAX)),
            "load: m.gguf: u64s: element 1 must be in [0, 9223372036854775807] (got "
            "9223372036854775808)");
}

TEST(GgufMetadataTest, AFloatOutsideTheRangeIsRefusedWithTheRange) {
  GgufBytes bytes;
  bytes.Add("nan", GgufValueType::kFloat32, std::nanf(""));
  bytes.Add("inf", GgufValueType::kFloat64, kInfinity);
  bytes.AddArray<double>("f64s", GgufValueType::kFloat64, {1.0, 1.0000001});
  const GgufFile file = FileOf(bytes);
  const GgufMetadata& metadata = file.metadata();

  EXPECT_EQ(MessageOf(metadata.GetFloat("nan", -kInfinity, kInfinity)),
            "load: m.gguf: nan: must be in [-inf, inf] (got nan)");
  EXPECT_EQ(MessageOf(metadata.GetFloat("inf", 0, 1e12)),
            "load: m.gguf: inf: must be in [0, 1e+12] (got inf)");
  EXPECT_EQ(*metadata.GetFloat("inf", 0, kInfinity), kInfinity);
  EXPECT_EQ(MessageOf(metadata.GetFloats("f64s", 0, 1)),
            "load: m.gguf: f64s: element 1 must be in [0, 1] (got 1.0000001)");
}

TEST(GgufMetadataTest, ValuesThatAreNoIntegersAreReadAsTheyStandInTheFile) {
  const GgufFile file = FileOf(AllTypes());
  const GgufMetadata& metadata = file.metadata();

  EXPECT_EQ(*metadata.GetFloat("f32", 0, 1), double{1e-5F});
  EXPECT_EQ(*metadata.GetFloat("f64", 0, 1), 1e-300);
  EXPECT_TRUE(*metadata.GetBool("yes"));
  EXPECT_FALSE(*metadata.GetBool("no"));
  EXPECT_EQ(*metadata.GetString("text"), std::string_view("a\0\xFF", 3));
  EXPECT_EQ(*metadata.GetString("empty text"), "");
}

TEST(GgufMetadataTest, ArraysAreReadAsTheyStandInTheFile) {
  const GgufFile file = FileOf(AllTypes());
  const GgufMetadata& metadata = file.metadata();

  EXPECT_EQ(*metadata.GetStrings("texts"), (std::vector<std::string_view>{"", "ab", "", "c"}));
  EXPECT_EQ(*metadata.GetIntegers("i16s", -3, 500), (std::vector<int64_t>{-3, 0, 500}));
  EXPECT_EQ(*metadata.GetFloats("f32s", -0.5, 2), (std::vector<double>{-0.5, 2.0}));
  EXPECT_EQ(*metadata.GetFloats("f64s", -1, 2), (std::vector<double>{0.1}));
  EXPECT_EQ(*metadata.GetBools("bools"), (std::vector<bool>{true, false, true}));
  EXPECT_TRUE(metadata.GetFloats("no floats", 0, 1)->empty());
}

TEST(GgufMetadataTest, AValueOfAnotherTypeIsRefusedWithBothTypes) {
  const GgufFile file = FileOf(AllTypes());
  const GgufMetadata& metadata = file.metadata();

  EXPECT_EQ(MessageOf(metadata.GetInteger("f32", 0, 1)),
            "load: m.gguf: f32: must be an integer (got float32)");
  EXPECT_EQ(MessageOf(metadata.GetInteger("yes", 0, 1)),
            "load: m.gguf: yes: must be an integer (got bool)");
  EXPECT_EQ(MessageOf(metadata.GetInteger("i16s", 0, 1)),
            "load: m.gguf: i16s: must be an integer (got array of int16)");
  EXPECT_EQ(MessageOf(metadata.GetFloat("u8", 0, 1)),
            "load: m.gguf: u8: must be a float (got uint8)");
  EXPECT_EQ(MessageOf(metadata.GetBool("text")), "load: m.gguf: text: must be a bool (got string)");
  EXPECT_EQ(MessageOf(metadata.GetString("i64")),
            "load: m.gguf: i64: must be a string (got int64)");
  EXPECT_EQ(MessageOf(metadata.GetStrings("text")),
            "load: m.gguf: text: must be an array of strings (got string)");
  EXPECT_EQ(MessageOf(metadata.GetIntegers("texts", 0, 1)),
            "load: m.gguf: texts: must be an array of integers (got array of string)");
  EXPECT_EQ(MessageOf(metadata.GetFloats("u64s", 0, 1)),
            "load: m.gguf: u64s: must be an array of floats (got array of uint64)");
  EXPECT_EQ(MessageOf(metadata.GetBools("no floats")),
            "load: m.gguf: no floats: must be an array of bools (got array of float32)");
}

TEST(GgufMetadataTest, OnlyAMissingKeyIsNotFoundAndTakesTheFallback) {
  const GgufFile file = FileOf(AllTypes());
  const GgufMetadata& metadata = file.metadata();

  EXPECT_EQ(metadata.GetInteger("u9", 0, 1).status().code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(MessageOf(metadata.GetInteger("u9", 0, 1)), "load: m.gguf: u9: is missing");
  EXPECT_EQ(*IfMissing(metadata.GetInteger("u9", 0, 1), 7), 7);
  EXPECT_EQ(*IfMissing(metadata.GetInteger("u8", 0, 255), 7), 255);
  EXPECT_EQ(IfMissing(metadata.GetInteger("u8", 0, 1), 7).status().code(),
            absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(IfMissing(metadata.GetInteger("f32", 0, 1), 7).status().code(),
            absl::StatusCode::kInvalidArgument);
}

TEST(GgufMetadataTest, ViewsOutliveAMoveOfTheFile) {
  GgufFile file = FileOf(AllTypes());
  const std::string_view text = *file.metadata().GetString("text");
  const std::vector<std::string_view> texts = *file.metadata().GetStrings("texts");

  const GgufFile moved = std::move(file);

  EXPECT_EQ(text.data(), moved.metadata().GetString("text")->data());
  EXPECT_EQ(texts[1].data(), (*moved.metadata().GetStrings("texts"))[1].data());
}

}  // namespace
}  // namespace quire
