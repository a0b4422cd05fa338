// GGUF models of several files: all parts are opened as one model, and parts that do not fit
// together are refused.
#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "common/base/error.h"
#include "common/model/gguf_file.h"
#include "common/model/gguf_split_name.h"
#include "tests/common/model/gguf_bytes.h"
#include "tests/common/model/gguf_dir.h"

namespace quire {
namespace {

constexpr char kFirst[] = "m-00001-of-00003.gguf";
constexpr char kSecond[] = "m-00002-of-00003.gguf";
constexpr char kThird[] = "m-00003-of-00003.gguf";

// Parts of one model with four tensors: "a" and "b" in the first part, "c" in the second, "d" in
// the third.
struct Parts {
  std::vector<GgufBytes> parts = std::vector<GgufBytes>(3);

  Parts() {
    parts[0].Add("general.architecture", "llama");
    for (size_t i = 0; i < parts.size(); ++i) {
      parts[i].Add("split.no", GgufValueType::kUint16, static_cast<uint16_t>(i));
      parts[i].Add("split.count", GgufValueType::kUint16, uint16_t{3});
      parts[i].Add("split.tensors.count", GgufValueType::kInt32, int32_t{4});
    }
    parts[0].AddTensor("a", {1}, GgmlType::kI8, "a");
    parts[0].AddTensor("b", {1}, GgmlType::kI8, "b");
    parts[1].AddTensor("c", {1}, GgmlType::kI8, "c");
    parts[2].AddTensor("d", {1}, GgmlType::kI8, "d");
  }

  void Write(const GgufDir& dir) const {
    dir.Write(kFirst, parts[0].File());
    dir.Write(kSecond, parts[1].File());
    dir.Write(kThird, parts[2].File());
  }
};

GgufBytes::Key& KeyOf(GgufBytes& file, std::string_view name) {
  for (GgufBytes::Key& key : file.keys) {
    if (key.name == name) {
      return key;
    }
  }
  QUIRE_CHECK(false);
}

void Remove(GgufBytes& file, std::string_view name) {
  std::erase_if(file.keys, [&](const GgufBytes::Key& key) { return key.name == name; });
}

// Opens the parts after a change.
absl::StatusOr<GgufFile> OpenChanged(const std::function<void(std::vector<GgufBytes>&)>& change) {
  const GgufDir dir;
  Parts model;
  change(model.parts);
  model.Write(dir);
  return dir.Open(kFirst);
}

std::string MessageOf(const absl::StatusOr<GgufFile>& file) {
  EXPECT_EQ(ReasonOf(file.status()), "MODEL_FILE");
  return std::string(file.status().message());
}

TEST(SplitGgufTest, AllPartsAreOneModel) {
  const GgufDir dir;
  Parts().Write(dir);

  const auto file = dir.Open(kFirst);

  ASSERT_TRUE(file.ok()) << file.status();
  EXPECT_EQ(file->num_parts(), 3);
  EXPECT_EQ(file->name(), kFirst);
  EXPECT_EQ(*file->metadata().GetString("general.architecture"), "llama");
  EXPECT_EQ(*file->metadata().GetInteger("split.no", 0, 9), 0);
  std::string bytes;
  std::vector<int32_t> parts;
  for (const char* name : {"d", "c", "b", "a"}) {
    const GgufTensor* tensor = file->Find(name);
    ASSERT_NE(tensor, nullptr);
    bytes += BytesOf(*file, *tensor);
    parts.push_back(tensor->part);
  }
  EXPECT_EQ(bytes, "dcba");
  EXPECT_EQ(parts, (std::vector<int32_t>{2, 1, 0, 0}));
  int64_t file_bytes = 0;
  for (const char* name : {kFirst, kSecond, kThird}) {
    file_bytes += static_cast<int64_t>(std::filesystem::file_size(dir.path(name)));
  }
  EXPECT_EQ(file->file_bytes(), file_bytes);
}

TEST(SplitGgufTest, EachPartHasItsOwnAlignment) {
  const auto file = OpenChanged([](std::vector<GgufBytes>& parts) {
    parts[1] = GgufBytes{.alignment = 8};
    parts[1].AddUint32("general.alignment", 8);
    parts[1].Add("split.no", GgufValueType::kUint16, uint16_t{1});
    parts[1].Add("split.count", GgufValueType::kUint16, uint16_t{3});
    parts[1].Add("split.tensors.count", GgufValueType::kInt32, int32_t{4});
    parts[1].AddTensor("c", {1}, GgmlType::kI8, "x");
    parts[0].AddUint32("general.alignment", 32);
  });

  ASSERT_TRUE(file.ok()) << file.status();
  EXPECT_EQ(BytesOf(*file, *file->Find("c")), "x");
}

TEST(SplitGgufTest, AMissingPartIsNamed) {
  const GgufDir dir;
  Parts().Write(dir);
  std::filesystem::remove(dir.path(kSecond));

  const auto file = dir.Open(kFirst);

  EXPECT_EQ(file.status().code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(MessageOf(file), "load: m-00002-of-00003.gguf: no such file (part 2 of 3)");
}

TEST(SplitGgufTest, AFaultInAPartNamesThePart) {
  const GgufDir dir;
  Parts().Write(dir);
  dir.Write(kThird, "GGUG");

  EXPECT_EQ(MessageOf(dir.Open(kFirst)),
            "load: m-00003-of-00003.gguf: is not a GGUF file (does not start with 'GGUF')");
}

TEST(SplitGgufTest, AnotherPartThanTheFirstIsRefusedWithTheNameOfTheFirst) {
  const GgufDir dir;
  Parts().Write(dir);

  EXPECT_EQ(MessageOf(dir.Open(kSecond)),
            "load: m-00002-of-00003.gguf: is part 2; give the first one, m-00001-of-00003.gguf");
}

TEST(SplitGgufTest, PartsThatWereExchangedAreRefused) {
  EXPECT_EQ(
      MessageOf(OpenChanged([](std::vector<GgufBytes>& parts) { std::swap(parts[1], parts[2]); })),
      "load: m-00002-of-00003.gguf: split.no: must be 1 (got 2)");
  EXPECT_EQ(
      MessageOf(OpenChanged([](std::vector<GgufBytes>& parts) { std::swap(parts[0], parts[2]); })),
      "load: m-00001-of-00003.gguf: split.no: must be 0 (got 2)");
}

TEST(SplitGgufTest, ANameThatDisagreesWithTheKeysIsRefused) {
  const GgufDir dir;
  Parts().Write(dir);
  dir.Write("m-00001-of-00002.gguf", Parts().parts[0].File());
  GgufBytes whole;
  dir.Write("n-00001-of-00002.gguf", whole.File());

  EXPECT_EQ(MessageOf(dir.Open("m-00001-of-00002.gguf")),
            "load: m-00001-of-00002.gguf: the name says 2 parts, split.count says 3");
  EXPECT_EQ(MessageOf(dir.Open("n-00001-of-00002.gguf")),
            "load: n-00001-of-00002.gguf: the name says 2 parts, split.count says 1");
}

TEST(SplitGgufTest, KeysOfSplitsThatDisagreeAreRefused) {
  const auto change = [](size_t part, const char* key, std::string value) {
    return MessageOf(OpenChanged(
        [&](std::vector<GgufBytes>& parts) { KeyOf(parts[part], key).value = std::move(value); }));
  };
  const std::string four = LittleEndian(uint16_t{4});

  EXPECT_EQ(change(1, "split.count", four),
            "load: m-00002-of-00003.gguf: split.count: differs from the first part's");
  EXPECT_EQ(change(2, "split.tensors.count", LittleEndian(int32_t{3})),
            "load: m-00003-of-00003.gguf: split.tensors.count: differs from the first part's");
  EXPECT_EQ(change(2, "split.no", four),
            "load: m-00003-of-00003.gguf: split.no: must be 2 (got 4)");
}

TEST(SplitGgufTest, KeysOfSplitsThatAreMissingAreRefused) {
  const auto without = [](size_t part, const char* key) {
    return MessageOf(OpenChanged([&](std::vector<GgufBytes>& parts) { Remove(parts[part], key); }));
  };
  const std::string rule = ": is missing, but the model is split";

  EXPECT_EQ(without(0, "split.no"), "load: m-00001-of-00003.gguf: split.no" + rule);
  EXPECT_EQ(without(1, "split.no"), "load: m-00002-of-00003.gguf: split.no" + rule);
  EXPECT_EQ(without(1, "split.count"), "load: m-00002-of-00003.gguf: split.count" + rule);
  EXPECT_EQ(without(2, "split.tensors.count"),
            "load: m-00003-of-00003.gguf: split.tensors.count" + rule);
}

TEST(SplitGgufTest, ANumberOfTensorsThatIsNotTheSumOfThePartsIsRefused) {
  EXPECT_EQ(MessageOf(OpenChanged([](std::vector<GgufBytes>& parts) {
              parts[2].AddTensor("e", {1}, GgmlType::kI8, "e");
            })),
            "load: m-00001-of-00003.gguf: split.tensors.count: must be 5 (got 4)");
}

TEST(SplitGgufTest, TheLimitOfTensorsIsForAllPartsTogether) {
  EXPECT_EQ(MessageOf(OpenChanged([](std::vector<GgufBytes>& parts) {
              for (int64_t i = 0; i < kMaxGgufTensors - 2; ++i) {
                parts[0].AddTensor(std::to_string(i), {1}, GgmlType::kI8, "x");
              }
            })),
            "load: m-00002-of-00003.gguf: too many tensors up to here (got 100001, limit 100000)");
}

// The texts are sparse: they take no space on the disk.
TEST(SplitGgufTest, TheLimitOfHeadersIsForAllPartsTogether) {
  const GgufDir dir;
  Parts model;
  const uint64_t text_bytes = uint64_t{kMaxGgufHeaderBytes} / 2;
  for (size_t i = 0; i < 2; ++i) {
    GgufBytes& part = model.parts[i];
    part.tensors.clear();
    part.keys.push_back(
        {"text", static_cast<uint32_t>(GgufValueType::kString), LittleEndian(text_bytes)});
    dir.Write(i == 0 ? kFirst : kSecond, part.Header());
    const std::string path = dir.path(i == 0 ? kFirst : kSecond);
    std::filesystem::resize_file(path, std::filesystem::file_size(path) + text_bytes);
  }

  const std::string message = MessageOf(dir.Open(kFirst));

  EXPECT_TRUE(
      message.starts_with("load: m-00002-of-00003.gguf: text: the header is too long (limit 1342"))
      << message;
}

TEST(SplitGgufTest, ATensorInTwoPartsIsRefused) {
  EXPECT_EQ(
      MessageOf(OpenChanged([](std::vector<GgufBytes>& parts) { parts[2].tensors[0].name = "a"; })),
      "load: m-00001-of-00003.gguf: a: this tensor is there twice");
}

TEST(SplitGgufTest, AKeyOfALaterPartMustEqualTheFirstPartsKey) {
  const auto with_key = [](const char* key, const char* text) {
    return OpenChanged([&](std::vector<GgufBytes>& parts) { parts[2].Add(key, text); });
  };

  EXPECT_EQ(with_key("general.architecture", "llama").status(), absl::OkStatus());
  EXPECT_EQ(MessageOf(with_key("general.architecture", "qwen2")),
            "load: m-00003-of-00003.gguf: general.architecture: differs from the first part's");
  EXPECT_EQ(MessageOf(with_key("general.name", "x")),
            "load: m-00003-of-00003.gguf: general.name: is not in the first part");
}

TEST(SplitGgufTest, ALinkOutOfTheFolderIsRefusedForALaterPart) {
  const GgufDir dir;
  const GgufDir other;
  Parts().Write(dir);
  Parts().Write(other);
  std::filesystem::remove(dir.path(kSecond));
  std::filesystem::create_symlink(other.path(kSecond), dir.path(kSecond));

  EXPECT_EQ(
      MessageOf(dir.Open(kFirst)),
      "load: m-00002-of-00003.gguf: is a symbolic link out of the model folder (part 2 of 3)");
}

TEST(SplitGgufTest, AFileInTheCurrentFolderFindsItsParts) {
  const GgufDir dir;
  Parts().Write(dir);
  const std::filesystem::path before = std::filesystem::current_path();
  std::filesystem::current_path(dir.path(""));

  const auto file = GgufFile::Open(kFirst);

  std::filesystem::current_path(before);
  EXPECT_EQ(file.status(), absl::OkStatus());
}

// llama.cpp's tool that joins parts leaves the keys in place and sets split.count to 0.
TEST(SplitGgufTest, AJoinedFileIsOnePart) {
  const GgufDir dir;
  GgufBytes bytes;
  bytes.Add("split.no", GgufValueType::kUint16, uint16_t{0});
  bytes.Add("split.count", GgufValueType::kUint16, uint16_t{0});
  bytes.Add("split.tensors.count", GgufValueType::kInt32, int32_t{1});
  bytes.AddTensor("a", {1}, GgmlType::kI8, "a");
  dir.Write("m.gguf", bytes.File());
  dir.Write("m-00001-of-00001.gguf", bytes.File());

  EXPECT_EQ(dir.Open("m.gguf").status(), absl::OkStatus());
  EXPECT_EQ(dir.Open("m-00001-of-00001.gguf").status(), absl::OkStatus());
}

TEST(GgufSplitNameTest, OnlyTheExactFormIsAPart) {
  const auto split = ParseGgufSplitName("a-b-00002-of-00010.gguf");
  ASSERT_TRUE(split.has_value());
  EXPECT_EQ(split->prefix, "a-b");
  EXPECT_EQ(split->number, 2);
  EXPECT_EQ(split->num_parts, 10);
  EXPECT_EQ(split->OfPart(10), "a-b-00010-of-00010.gguf");
  for (const char* other : {"a-00000-of-00002.gguf",
                            "a-00003-of-00002.gguf",
                            "a-0001-of-00002.gguf",
                            "a-00001-of-0000x.gguf",
                            "a-00001-of-00002.GGUF",
                            "a_00001-of-00002.gguf",
                            "a-00001-to-00002.gguf",
                            "a-00001-of-000022.gguf",
                            "00001-of-00002.gguf",
                            ""}) {
    EXPECT_FALSE(ParseGgufSplitName(other).has_value()) << other;
  }
}

}  // namespace
}  // namespace quire
