#include "common/model/gguf_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "common/base/error.h"
#include "common/base/file_descriptor.h"
#include "tests/common/model/gguf_bytes.h"
#include "tests/common/model/gguf_dir.h"

#include <sys/stat.h>

namespace quire {
namespace {

std::string MessageOf(const absl::StatusOr<GgufFile>& file) {
  EXPECT_EQ(ReasonOf(file.status()), "MODEL_FILE");
  return std::string(file.status().message());
}

TEST(GgufFileTest, ATensorHasARowMajorShapeAndItsBytes) {
  const GgufDir dir;
  GgufBytes bytes;
  bytes.AddTensor("matrix", {64, 3}, GgmlType::kQ4_0, std::string(108, 'm'));
  bytes.AddTensor("scalar", {}, GgmlType::kF16, "sc");
  bytes.AddTensor("cube", {256, 1, 2, 1}, GgmlType::kQ6K, std::string(420, 'c'));
  dir.Write("m.gguf", bytes.File());

  const auto file = dir.Open("m.gguf");

  ASSERT_TRUE(file.ok()) << file.status();
  const GgufTensor* matrix = file->Find("matrix");
  const GgufTensor* scalar = file->Find("scalar");
  const GgufTensor* cube = file->Find("cube");
  ASSERT_TRUE(matrix != nullptr && scalar != nullptr && cube != nullptr);
  EXPECT_EQ(matrix->shape, (std::vector<int64_t>{3, 64}));
  EXPECT_EQ(scalar->shape, (std::vector<int64_t>{}));
  EXPECT_EQ(cube->shape, (std::vector<int64_t>{1, 2, 1, 256}));
  EXPECT_EQ(cube->type, GgmlType::kQ6K);
  EXPECT_EQ(BytesOf(*file, *matrix), std::string(108, 'm'));
  EXPECT_EQ(BytesOf(*file, *scalar), "sc");
  EXPECT_EQ(BytesOf(*file, *cube), std::string(420, 'c'));
  EXPECT_EQ(file->Find("matri"), nullptr);
  EXPECT_EQ(file->Find("matrix "), nullptr);
}

TEST(GgufFileTest, APartOfATensorIsRead) {
  const GgufDir dir;
  GgufBytes bytes;
  bytes.AddTensor("a", {8}, GgmlType::kI8, "01234567");
  dir.Write("m.gguf", bytes.File());
  const auto file = dir.Open("m.gguf");
  ASSERT_TRUE(file.ok()) << file.status();
  std::string middle(3, '\0');

  const absl::Status status =
      file->Read(file->tensors()[0], 4, std::as_writable_bytes(std::span<char>(middle)));

  EXPECT_EQ(status, absl::OkStatus());
  EXPECT_EQ(middle, "456");
  file->DropCached(file->tensors()[0]);
  EXPECT_EQ(BytesOf(*file, file->tensors()[0]), "01234567");
}

TEST(GgufFileTest, TensorsAreSortedByOffsetAndMayLeaveHoles) {
  const GgufDir dir;
  GgufBytes bytes;
  bytes.AddTensor("first", {1}, GgmlType::kI8, "f" + std::string(95, '\0'));
  bytes.AddTensor("second", {1}, GgmlType::kI8, "s");
  std::swap(bytes.tensors[0], bytes.tensors[1]);
  dir.Write("m.gguf", bytes.File() + "bytes after the last tensor");

  const auto file = dir.Open("m.gguf");

  ASSERT_TRUE(file.ok()) << file.status();
  EXPECT_EQ(file->tensors()[0].name, "first");
  EXPECT_EQ(file->tensors()[1].name, "second");
  EXPECT_EQ(file->tensors()[1].offset, file->tensors()[0].offset + 96);
}

TEST(GgufFileTest, AlignmentsFromTheKeyAreObeyedAtBothBounds) {
  for (uint32_t alignment : {8, 65'536}) {
    const GgufDir dir;
    GgufBytes bytes;
    bytes.alignment = alignment;
    bytes.AddUint32("general.alignment", alignment);
    bytes.AddTensor("a", {1}, GgmlType::kI8, "a");
    bytes.AddTensor("b", {1}, GgmlType::kI8, "b");
    dir.Write("m.gguf", bytes.File());

    const auto file = dir.Open("m.gguf");

    ASSERT_TRUE(file.ok()) << file.status();
    EXPECT_EQ(BytesOf(*file, file->tensors()[0]), "a");
    EXPECT_EQ(BytesOf(*file, file->tensors()[1]), "b");
    EXPECT_EQ(file->tensors()[1].offset % alignment, 0);
  }
}

TEST(GgufFileTest, AFileWithoutTensorsMayEndWithItsHeader) {
  const GgufDir dir;
  GgufBytes bytes;
  bytes.version = 2;
  bytes.Add("general.architecture", "llama");
  dir.Write("m.gguf", bytes.Header());

  const auto file = dir.Open("m.gguf");

  ASSERT_TRUE(file.ok()) << file.status();
  EXPECT_TRUE(file->tensors().empty());
  EXPECT_EQ(*file->metadata().GetString("general.architecture"), "llama");
}

// A reader that scans all earlier tensors for each one would need minutes.
TEST(GgufFileTest, AHeaderAtTheLimitsOfTensorsAndNamesIsRead) {
  const GgufDir dir;
  GgufBytes bytes;
  bytes.alignment = 8;
  bytes.AddUint32("general.alignment", 8);
  for (int64_t i = 0; i < kMaxGgufTensors; ++i) {
    std::string name = std::to_string(i);
    name.resize(i == 0 ? kMaxGgufTensorNameBytes : 16, '.');
    bytes.AddTensor(name, {8}, GgmlType::kI8, "12345678");
  }
  for (int64_t i = 1; i < kMaxGgufKeys; ++i) {
    bytes.Add(
        std::string(i == 1 ? kMaxGgufKeyBytes : 8, 'k') + std::to_string(i).substr(i == 1 ? 1 : 0),
        GgufValueType::kBool,
        true);
  }
  dir.Write("m.gguf", bytes.File());

  const auto file = dir.Open("m.gguf");

  ASSERT_TRUE(file.ok()) << file.status();
  EXPECT_EQ(std::ssize(file->tensors()), kMaxGgufTensors);
  EXPECT_EQ(std::ssize(file->metadata().values()), kMaxGgufKeys);
}

TEST(GgufFileTest, AnArrayOfTheMostElementsIsRead) {
  const GgufDir dir;
  GgufBytes bytes;
  bytes.AddArray("ids",
                 GgufValueType::kUint8,
                 std::vector<uint8_t>(static_cast<size_t>(kMaxGgufArrayElements), 7));
  dir.Write("m.gguf", bytes.File());

  const auto file = dir.Open("m.gguf");

  ASSERT_TRUE(file.ok()) << file.status();
  EXPECT_EQ(file->metadata().Find("ids")->num_elements, kMaxGgufArrayElements);
}

// The file is sparse: it has the bytes that its string asks for, but takes no space on the disk.
TEST(GgufFileTest, AHeaderPastTheLimitIsRefusedBeforeItIsRead) {
  const GgufDir dir;
  GgufBytes bytes;
  const uint64_t text_bytes = uint64_t{kMaxGgufHeaderBytes};
  bytes.keys.push_back(
      {"text", static_cast<uint32_t>(GgufValueType::kString), LittleEndian(text_bytes)});
  dir.Write("m.gguf", bytes.Header());
  std::filesystem::resize_file(dir.path("m.gguf"), 2 * text_bytes);

  EXPECT_EQ(MessageOf(dir.Open("m.gguf")),
            "load: m.gguf: text: the header is too long (limit 268435456)");
}

TEST(GgufFileTest, AMissingFileIsNotFound) {
  const GgufDir dir;

  const auto file = dir.Open("m.gguf");

  EXPECT_EQ(file.status().code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(MessageOf(file), "load: m.gguf: no such file");
}

TEST(GgufFileTest, AFolderAndAFifoAreRefusedAtOnce) {
  const GgufDir dir;
  std::filesystem::create_directory(dir.path("folder.gguf"));
  ASSERT_EQ(::mkfifo(dir.path("fifo.gguf").c_str(), 0600), 0);

  EXPECT_EQ(MessageOf(dir.Open("folder.gguf")), "load: folder.gguf: is not a regular file");
  EXPECT_EQ(MessageOf(dir.Open("fifo.gguf")), "load: fifo.gguf: is not a regular file");
}

TEST(GgufFileTest, ReadingAFileThatShrankIsAnError) {
  const GgufDir dir;
  GgufBytes bytes;
  bytes.AddTensor("a", {8}, GgmlType::kI8, "01234567");
  dir.Write("m.gguf", bytes.File());
  const auto file = dir.Open("m.gguf");
  ASSERT_TRUE(file.ok()) << file.status();

  std::filesystem::resize_file(dir.path("m.gguf"), bytes.File().size() - 1);

  EXPECT_EQ(BytesOf(*file, file->tensors()[0]), "load: m.gguf: shrank while being read");
}

TEST(GgufFileTest, ASymbolicLinkToTheFileIsFollowed) {
  const GgufDir dir;
  const GgufDir other;
  GgufBytes bytes;
  bytes.AddTensor("a", {1}, GgmlType::kI8, "a");
  other.Write("m.gguf", bytes.File());
  std::filesystem::create_symlink(other.path("m.gguf"), dir.path("link.gguf"));

  const auto file = dir.Open("link.gguf");

  ASSERT_TRUE(file.ok()) << file.status();
  EXPECT_EQ(file->name(), "link.gguf");
}

}  // namespace
}  // namespace quire
