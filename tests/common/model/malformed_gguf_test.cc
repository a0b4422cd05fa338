// GGUF files with one fault each: every one is refused, with one line that names the file, the
// tensor or key, and the rule.
#include <functional>
#include <ostream>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "common/base/error.h"
#include "tests/common/model/gguf_bytes.h"
#include "tests/common/model/gguf_dir.h"

namespace quire {
namespace {

constexpr uint64_t kHuge = ~uint64_t{0};
constexpr uint64_t kTwoTo40 = uint64_t{1} << 40;
constexpr uint64_t kTwoTo60 = uint64_t{1} << 60;
constexpr uint64_t kTwoTo63 = uint64_t{1} << 63;

// A file of two keys and two tensors without a fault: "a" at data offset 0, "b" at 32.
GgufBytes WellFormed() {
  GgufBytes file;
  file.Add("general.architecture", "llama");
  file.AddArray<std::string_view>("tokens", GgufValueType::kString, {"x", "yz"});
  file.AddTensor("a", {2, 3}, GgmlType::kF32, std::string(24, 'a'));
  file.AddTensor("b", {32, 2}, GgmlType::kQ4_0, std::string(36, 'b'));
  return file;
}

struct Fault {
  const char* name;
  std::string bytes;
  std::string message;  // after "load: m.gguf: "
};

void PrintTo(const Fault& fault, std::ostream* out) { *out << fault.name; }

std::string With(const std::function<void(GgufBytes&)>& change) {
  GgufBytes file = WellFormed();
  change(file);
  return file.File();
}

// A file of one key with this value, and 100 bytes after it.
std::string WithValue(GgufValueType type, std::string value) {
  GgufBytes file;
  file.keys.push_back({"k", static_cast<uint32_t>(type), std::move(value)});
  return file.Header() + std::string(100, '\0');
}

std::string WithArray(uint32_t element_type, uint64_t num_elements, std::string elements) {
  return WithValue(GgufValueType::kArray,
                   LittleEndian(element_type) + LittleEndian(num_elements) + std::move(elements));
}

std::string WithAlignment(uint32_t alignment) {
  return With([&](GgufBytes& file) { file.AddUint32("general.alignment", alignment); });
}

// A file whose tensor "b" is changed.
std::string WithTensor(const std::function<void(GgufBytes::Tensor&)>& change) {
  return With([&](GgufBytes& file) { change(file.tensors[1]); });
}

std::string WithOffset(uint64_t offset) {
  return WithTensor([&](GgufBytes::Tensor& tensor) { tensor.offset = offset; });
}

std::string WithDims(std::vector<uint64_t> dims, uint32_t type) {
  return WithTensor([&](GgufBytes::Tensor& tensor) {
    tensor.dims = std::move(dims);
    tensor.type = type;
  });
}

std::vector<Fault> FaultsOfTheBeginning() {
  const auto version = [](uint32_t number) {
    return With([&](GgufBytes& file) { file.version = number; });
  };
  return {
      {"Empty", "", "magic and version: header ends beyond the file (got 4 bytes, limit 0)"},
      {"HalfAMagic", "GG", "magic and version: header ends beyond the file (got 4 bytes, limit 2)"},
      {"OnlyAMagic",
       "GGUF",
       "magic and version: header ends beyond the file (got 4 bytes, limit 0)"},
      {"OtherMagic",
       With([](GgufBytes& file) { file.magic = "lmgg"; }),
       "is not a GGUF file (does not start with 'GGUF')"},
      {"Safetensors",
       LittleEndian(uint64_t{2}) + "{}",
       "is not a GGUF file (does not start with 'GGUF')"},
      {"Version0", version(0), "has GGUF version 0; only 2 and 3 are read"},
      {"Version1", version(1), "has GGUF version 1; only 2 and 3 are read"},
      {"Version4", version(4), "has GGUF version 4; only 2 and 3 are read"},
      {"BigEndian",
       version(3U << 24),
       "is a big-endian GGUF file; only little-endian ones are read"},
      {"NoCounts",
       WellFormed().Header().substr(0, 8),
       "number of tensors: header ends beyond the file (got 8 bytes, limit 0)"},
      {"HalfANumberOfKeys",
       WellFormed().Header().substr(0, 20),
       "number of keys: header ends beyond the file (got 8 bytes, limit 4)"},
  };
}

std::vector<Fault> FaultsOfCounts() {
  const auto tensors = [](uint64_t number) {
    return With([&](GgufBytes& file) { file.num_tensors = number; });
  };
  const auto keys = [](uint64_t number) {
    return With([&](GgufBytes& file) { file.num_keys = number; });
  };
  return {
      {"TensorsTwoTo60",
       tensors(kTwoTo60),
       "has too many tensors (got 1152921504606846976, limit 100000)"},
      {"TensorsAllOnes",
       tensors(kHuge),
       "has too many tensors (got 18446744073709551615, limit 100000)"},
      {"TensorsPastTheLimit", tensors(100'001), "has too many tensors (got 100001, limit 100000)"},
      {"TensorsAtTheLimit",
       tensors(100'000),
       "has fewer bytes than its tensors need (got 100000 tensors, room for 6)"},
      {"OneTensorTooMany", tensors(3), "tensor 2: has no name"},
      {"KeysTwoTo60", keys(kTwoTo60), "has too many keys (got 1152921504606846976, limit 65536)"},
      {"KeysAllOnes", keys(kHuge), "has too many keys (got 18446744073709551615, limit 65536)"},
      {"KeysPastTheLimit", keys(65'537), "has too many keys (got 65537, limit 65536)"},
      {"KeysAtTheLimit",
       keys(65'536),
       "has fewer bytes than its keys need (got 65536 keys, room for 19)"},
      {"OneKeyTooMany",
       keys(3),
       "tensor 0: name is too long (got 844424930131968 bytes, limit 256)"},
  };
}

std::vector<Fault> FaultsOfKeys() {
  const auto key_bytes = [](const std::string& bytes) {
    return "GGUF" + LittleEndian(uint32_t{3}) + LittleEndian(uint64_t{0}) +
           LittleEndian(uint64_t{1}) + bytes + std::string(64, '\0');
  };
  const auto type = [](uint32_t number) {
    return With([&](GgufBytes& file) { file.keys[1].type = number; });
  };
  return {
      {"KeyTwoTo40",
       key_bytes(LittleEndian(kTwoTo40)),
       "key 0: name is too long (got 1099511627776 bytes, limit 65535)"},
      {"KeyAllOnes",
       key_bytes(LittleEndian(kHuge)),
       "key 0: name is too long (got 18446744073709551615 bytes, limit 65535)"},
      {"KeyPastTheLimit",
       key_bytes(LittleEndian(uint64_t{65'536})),
       "key 0: name is too long (got 65536 bytes, limit 65535)"},
      {"KeyBeyondTheFile",
       key_bytes(LittleEndian(uint64_t{65'535})),
       "key 0: name ends beyond the file (got 65535 bytes, limit 64)"},
      {"KeyWithoutAName", key_bytes(LittleEndian(uint64_t{0})), "key 0: has no name"},
      {"KeyTwice",
       With([](GgufBytes& file) { file.Add("tokens", "z"); }),
       "tokens: this key is there twice"},
      {"KeyTwiceWithOtherNames",
       With([](GgufBytes& file) {
         file.Add("\x1b[31m\n", "z");
         file.Add("\x1b[31m\n", "z");
       }),
       "?[31m?: this key is there twice"},
      {"ValueType13", type(13), "tokens: unknown type of value (got 13)"},
      {"ValueTypeAllOnes", type(~uint32_t{0}), "tokens: unknown type of value (got 4294967295)"},
  };
}

std::vector<Fault> FaultsOfValues() {
  constexpr auto kString = static_cast<uint32_t>(GgufValueType::kString);
  constexpr auto kUint64 = static_cast<uint32_t>(GgufValueType::kUint64);
  constexpr auto kBool = static_cast<uint32_t>(GgufValueType::kBool);
  return {
      {"StringTwoTo40",
       WithValue(GgufValueType::kString, LittleEndian(kTwoTo40)),
       "k: string ends beyond the file (got 1099511627776 bytes, limit 100)"},
      {"StringAllOnes",
       WithValue(GgufValueType::kString, LittleEndian(kHuge)),
       "k: string ends beyond the file (got 18446744073709551615 bytes, limit 100)"},
      {"StringOneByteTooLong",
       WithValue(GgufValueType::kString, LittleEndian(uint64_t{101})),
       "k: string ends beyond the file (got 101 bytes, limit 100)"},
      {"ArrayOfArrays",
       WithArray(static_cast<uint32_t>(GgufValueType::kArray), 1, std::string(20, '\0')),
       "k: an array of arrays is not supported"},
      {"ArrayOfType13", WithArray(13, 1, ""), "k: unknown type of value (got 13)"},
      {"ArrayTwoTo60",
       WithArray(kUint64, kTwoTo60, ""),
       "k: array has too many elements (got 1152921504606846976, limit 8388608)"},
      {"ArrayAllOnes",
       WithArray(kBool, kHuge, ""),
       "k: array has too many elements (got 18446744073709551615, limit 8388608)"},
      {"ArrayPastTheLimit",
       WithArray(kBool, 8'388'609, ""),
       "k: array has too many elements (got 8388609, limit 8388608)"},
      {"ArrayAtTheLimit",
       WithArray(kUint64, 8'388'608, ""),
       "k: array ends beyond the file (got 67108864 bytes, limit 100)"},
      {"StringsAtTheLimit",
       WithArray(kString, 8'388'608, ""),
       "k: array ends beyond the file (got 67108864 bytes, limit 100)"},
      {"ArrayOneElementTooLong",
       WithArray(kUint64, 13, ""),
       "k: array ends beyond the file (got 104 bytes, limit 100)"},
      {"SecondStringTwoTo40",
       WithArray(kString, 2, LittleEndian("x") + LittleEndian(kTwoTo40)),
       "k: string ends beyond the file (got 1099511627776 bytes, limit 100)"},
      {"StringsOverrunTheFile",
       WithArray(kString, 2, LittleEndian(uint64_t{93})),
       "k: header ends beyond the file (got 8 bytes, limit 7)"},
      {"BoolOf2", WithValue(GgufValueType::kBool, "\x02"), "k: a bool must be 0 or 1 (got 2)"},
      {"BoolOf255InAnArray",
       WithArray(kBool, 3, std::string("\x00\x01\xFF", 3)),
       "k: a bool must be 0 or 1 (got 255)"},
  };
}

std::vector<Fault> FaultsOfAlignment() {
  const std::string key = "general.alignment: ";
  return {
      {"Alignment0", WithAlignment(0), key + "must be in [8, 65536] (got 0)"},
      {"Alignment3", WithAlignment(3), key + "must be in [8, 65536] (got 3)"},
      {"Alignment4", WithAlignment(4), key + "must be in [8, 65536] (got 4)"},
      {"Alignment12", WithAlignment(12), key + "must be a power of two (got 12)"},
      {"AlignmentPastTheLimit", WithAlignment(131'072), key + "must be in [8, 65536] (got 131072)"},
      {"AlignmentNegative",
       With([](GgufBytes& file) {
         file.Add("general.alignment", GgufValueType::kInt32, int32_t{-32});
       }),
       key + "must be in [8, 65536] (got -32)"},
      {"AlignmentIsAString",
       With([](GgufBytes& file) { file.Add("general.alignment", "32"); }),
       key + "must be an integer (got string)"},
      {"AlignmentDoesNotFitTheOffsets",
       WithAlignment(64),
       "b: offset is not a multiple of 64 (got 32)"},
  };
}

std::vector<Fault> FaultsOfTensors() {
  const auto name = [](const std::string& text) {
    return WithTensor([&](GgufBytes::Tensor& tensor) { tensor.name = text; });
  };
  const std::string header = WellFormed().Header();
  const size_t second_name = header.size() - (8 + 1 + 4 + 2 * 8 + 4 + 8);
  std::string long_name = WellFormed().File();
  long_name.replace(second_name, 8, LittleEndian(kTwoTo40));
  std::string many_dims = WellFormed().File();
  many_dims.replace(second_name + 9, 4, LittleEndian(~uint32_t{0}));
  return {
      {"TensorWithoutAName", name(""), "tensor 1: has no name"},
      {"TensorNamePastTheLimit",
       name(std::string(257, 'n')),
       "tensor 1: name is too long (got 257 bytes, limit 256)"},
      {"TensorNameTwoTo40",
       long_name,
       "tensor 1: name is too long (got 1099511627776 bytes, limit 256)"},
      {"TensorTwice", name("a"), "a: this tensor is there twice"},
      {"FiveDimensions",
       WithDims({32, 1, 1, 1, 1}, 2),
       "b: has too many dimensions (got 5, limit 4)"},
      {"DimensionsAllOnes", many_dims, "b: has too many dimensions (got 4294967295, limit 4)"},
      {"DimensionOf0", WithDims({32, 0}, 2), "b: dimensions must be in [1, 2^63) (got 0)"},
      {"DimensionOfTwoTo63",
       WithDims({32, kTwoTo63}, 2),
       "b: dimensions must be in [1, 2^63) (got 9223372036854775808)"},
      {"DimensionAllOnes",
       WithDims({kHuge, 1}, 2),
       "b: dimensions must be in [1, 2^63) (got 18446744073709551615)"},
      {"ProductOverflows",
       WithDims({uint64_t{1} << 32, uint64_t{1} << 31}, 24),
       "b: the product of the dimensions overflows"},
      {"ProductOverflowsToZero",
       WithDims({uint64_t{1} << 32, uint64_t{1} << 32}, 24),
       "b: the product of the dimensions overflows"},
      {"ProductOfBlocksOverflows",
       WithDims({uint64_t{1} << 32, uint64_t{1} << 31}, 2),
       "b: the product of the dimensions overflows"},
      {"BytesOverflow", WithDims({uint64_t{1} << 61, 1}, 0), "b: the size in bytes overflows"},
      {"Type42", WithDims({32, 2}, 42), "b: has an unknown type (got 42)"},
      {"TypeAllOnes", WithDims({32, 2}, ~uint32_t{0}), "b: has an unknown type (got 4294967295)"},
      {"RemovedTypeQ4_2",
       WithDims({32, 2}, 4),
       "b: has type Q4_2 (4), which ggml removed; convert the model again"},
      {"RemovedTypeQ4_0_4_4",
       WithDims({32, 2}, 31),
       "b: has type Q4_0_4_4 (31), which ggml removed; convert the model again"},
      {"RowOf33InBlocksOf32",
       WithDims({33, 32}, 2),
       "b: rows of 33 elements are not whole blocks of 32 (type Q4_0)"},
      {"RowOf32InBlocksOf256",
       WithDims({32, 8}, 12),
       "b: rows of 32 elements are not whole blocks of 256 (type Q4_K)"},
      {"ScalarInBlocks",
       WithDims({}, 2),
       "b: rows of 1 elements are not whole blocks of 32 (type Q4_0)"},
  };
}

std::vector<Fault> FaultsOfOffsets() {
  const std::string file = WellFormed().File();
  const int64_t size = std::ssize(file);
  const int64_t start = size - 68;
  const std::string limit = ", limit " + std::to_string(size) + ")";
  return {
      {"OffsetOf1", WithOffset(1), "b: offset is not a multiple of 32 (got 1)"},
      {"OffsetOf16", WithOffset(16), "b: offset is not a multiple of 32 (got 16)"},
      {"OffsetOfTwoTo63",
       WithOffset(kTwoTo63),
       "b: offset must be in [0, 2^63) (got 9223372036854775808)"},
      {"OffsetAllOnesButAligned",
       WithOffset(kHuge - 31),
       "b: offset must be in [0, 2^63) (got 18446744073709551584)"},
      {"OffsetAndStartOverflow", WithOffset(kTwoTo63 - 32), "b: offset and size overflow"},
      {"OffsetAndSizeOverflow",
       WithOffset(kTwoTo63 - 32 - static_cast<uint64_t>(start)),
       "b: offset and size overflow"},
      {"OffsetBeyondTheFile",
       WithOffset(96),
       "b: ends beyond the file (got " + std::to_string(start + 132) + limit},
      {"OffsetTwoTo60",
       WithOffset(kTwoTo60),
       "b: ends beyond the file (got " + std::to_string((int64_t{1} << 60) + start + 36) + limit},
      {"EndsAByteBeyondTheFile",
       file.substr(0, file.size() - 1),
       "b: ends beyond the file (got " + std::to_string(size) + ", limit " +
           std::to_string(size - 1) + ")"},
      {"OneRowMoreThanTheFile",
       WithDims({32, 3}, 2),
       "b: ends beyond the file (got " + std::to_string(start + 86) + limit},
      {"SamePlace", WithOffset(0), "b: overlaps tensor a"},
      {"OverlapOfTheLastBytes",
       With([](GgufBytes& bytes) {
         bytes.tensors[0].dims = {3, 3};
       }),
       "b: overlaps tensor a"},
      {"OverlapInTheOtherOrder",
       With([](GgufBytes& bytes) {
         bytes.tensors[0].offset = 32;
         bytes.tensors[1].offset = 0;
       }),
       "a: overlaps tensor b"},
  };
}

std::vector<Fault> FaultsOfSplits() {
  const auto count = [](uint32_t number) {
    return With([&](GgufBytes& file) { file.AddUint32("split.count", number); });
  };
  return {
      {"SplitButNotNamedSo", count(2), "the name says 1 part, split.count says 2"},
      {"SplitInTooManyParts", count(501), "split.count: must be in [0, 500] (got 501)"},
      {"SplitCountIsAString",
       With([](GgufBytes& file) { file.Add("split.count", "2"); }),
       "split.count: must be an integer (got string)"},
  };
}

std::vector<Fault> AllFaults() {
  std::vector<Fault> all;
  for (auto* faults : {FaultsOfTheBeginning,
                       FaultsOfCounts,
                       FaultsOfKeys,
                       FaultsOfValues,
                       FaultsOfAlignment,
                       FaultsOfTensors,
                       FaultsOfOffsets,
                       FaultsOfSplits}) {
    for (Fault& fault : faults()) {
      all.push_back(std::move(fault));
    }
  }
  return all;
}

class MalformedGgufTest : public testing::TestWithParam<Fault> {};

TEST_P(MalformedGgufTest, IsRefusedWithItsOwnMessage) {
  const GgufDir dir;
  dir.Write("m.gguf", GetParam().bytes);

  const auto file = dir.Open("m.gguf");

  ASSERT_FALSE(file.ok());
  EXPECT_EQ(file.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(ReasonOf(file.status()), "MODEL_FILE");
  EXPECT_EQ(std::string(file.status().message()), "load: m.gguf: " + GetParam().message);
}

std::string FaultName(const testing::TestParamInfo<Fault>& fault) { return fault.param.name; }

INSTANTIATE_TEST_SUITE_P(Faults, MalformedGgufTest, testing::ValuesIn(AllFaults()), FaultName);

TEST(MalformedGgufTest, TheFileWithoutAFaultIsRead) {
  const GgufDir dir;
  dir.Write("m.gguf", WellFormed().File());

  EXPECT_EQ(dir.Open("m.gguf").status(), absl::OkStatus());
}

TEST(MalformedGgufTest, AFileCutAnywhereIsRefused) {
  const GgufDir dir;
  const std::string whole = WellFormed().File();
  for (size_t bytes = 0; bytes < whole.size(); ++bytes) {
    dir.Write("m.gguf", std::string_view(whole).substr(0, bytes));
    const auto file = dir.Open("m.gguf");
    EXPECT_EQ(ReasonOf(file.status()), "MODEL_FILE") << bytes;
  }
}

// Each number of the header takes extreme values in turn. Opening may succeed, but each tensor of
// an opened file must be readable.
TEST(MalformedGgufTest, AFileWithAnyByteChangedIsRefusedOrReadable) {
  const GgufDir dir;
  const std::string whole = WellFormed().File();
  const size_t header_bytes = WellFormed().Header().size();
  int num_refused = 0;
  for (size_t i = 0; i < header_bytes; ++i) {
    for (char byte : {'\x00', '\x01', '\x7F', '\x80', '\xFF'}) {
      std::string changed = whole;
      changed[i] = byte;
      dir.Write("m.gguf", changed);
      const auto file = dir.Open("m.gguf");
      if (!file.ok()) {
        EXPECT_EQ(ReasonOf(file.status()), "MODEL_FILE");
        ++num_refused;
        continue;
      }
      for (const GgufTensor& tensor : file->tensors()) {
        EXPECT_EQ(
            BytesOf(*file, tensor),
            changed.substr(static_cast<size_t>(tensor.offset), static_cast<size_t>(tensor.bytes)));
      }
    }
  }
  EXPECT_GT(num_refused, 0);
}

}  // namespace
}  // namespace quire
