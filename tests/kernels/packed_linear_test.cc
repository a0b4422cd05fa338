// The bytes of packed weights against plain loops over the layout that packed_linear.h promises.
#include "kernels/cpu/packed_linear.h"

#include <malloc.h>
#include <unistd.h>

#include <cmath>
#include <cstdint>
#include <cstring>
#include <fstream>
#include <iostream>
#include <memory>
#include <random>
#include <span>
#include <utility>
#include <vector>

#include "gtest/gtest.h"

#include "kernels/api/dense.h"
#include "kernels/api/row_reader.h"
#include "tests/kernels/float_bits.h"

#include <sys/resource.h>

namespace quire {
namespace {

// A part of a source: random bits, at an odd address as in a file. Parts that are widened have no
// exponent of all ones, because it has several NaN patterns.
struct Part {
  Part(DType type, int64_t num_rows, int64_t num_cols, bool is_finite, std::mt19937& random)
      : dtype(type), rows(num_rows), cols(num_cols) {
    bytes.resize(static_cast<size_t>(rows * cols * SizeOf(dtype)) + 1);
    for (std::byte& byte : bytes) {
      byte = static_cast<std::byte>(random());
    }
    for (size_t i = static_cast<size_t>(SizeOf(dtype)); is_finite && i < bytes.size();
         i += static_cast<size_t>(SizeOf(dtype))) {
      bytes[i] &= std::byte{0xBF};  // the upper bit of the exponent
    }
  }

  MatrixView view() const { return {bytes.data() + 1, FormatOf(dtype), rows, cols}; }
  const std::byte* at(int64_t row, int64_t col) const {
    return bytes.data() + 1 + (row * cols + col) * SizeOf(dtype);
  }
  float Widened(int64_t row, int64_t col) const {
    uint16_t bits = 0;
    float value = 0.0F;
    if (dtype == DType::kF32) {
      std::memcpy(&value, at(row, col), sizeof(value));
      return value;
    }
    std::memcpy(&bits, at(row, col), sizeof(bits));
    return dtype == DType::kBF16 ? BF16Value(bits) : F16Value(bits);
  }

  DType dtype;
  int64_t rows;
  int64_t cols;
  std::vector<std::byte> bytes;
};

// Where the number of this output column and this index of k lies in the packed bytes.
int64_t OffsetOf(const CpuPackedLinear& packed, int64_t row, int64_t k) {
  const int64_t panel = row / packed.shape().panel;
  const int64_t column = row % packed.shape().panel;
  const int64_t columns = packed.panel_columns(panel);
  const int64_t length = packed.segment_length();
  const int64_t depth = k / length * packed.padded_segment_length() + k % length;
  const int64_t depth_of_all = packed.num_segments() * packed.padded_segment_length();
  const int64_t in_panel = packed.dtype() == DType::kBF16
                               ? (depth / 2 * columns + column) * 2 + depth % 2
                               : depth * columns + column;
  return (panel * packed.shape().panel * depth_of_all + in_panel) * SizeOf(packed.dtype());
}

std::vector<std::byte> PackedByLoops(const CpuPackedLinear& packed,
                                     const std::vector<Part>& parts) {
  std::vector<std::byte> bytes(static_cast<size_t>(packed.bytes()));
  int64_t first_row = 0;
  for (const Part& part : parts) {
    for (int64_t row = 0; row < part.rows; ++row) {
      for (int64_t k = 0; k < part.cols; ++k) {
        std::byte* const to = bytes.data() + OffsetOf(packed, first_row + row, k);
        const float widened = part.Widened(row, k);
        const void* const from = part.dtype == packed.dtype()
                                     ? static_cast<const void*>(part.at(row, k))
                                     : static_cast<const void*>(&widened);
        std::memcpy(to, from, static_cast<size_t>(SizeOf(packed.dtype())));
      }
    }
    first_row += part.rows;
  }
  return bytes;
}

// The same parts, read as if from a file of which one part cannot be read.
class PartsInFile final : public RowReader {
 public:
  PartsInFile(const std::vector<Part>& parts, size_t bad_part)
      : parts_(parts), bad_part_(bad_part) {}

  absl::Status Read(size_t part, int64_t first_row, std::span<std::byte> buffer) const override {
    if (part == bad_part_) {
      return absl::DataLossError("part");
    }
    std::memcpy(buffer.data(), parts_[part].at(first_row, 0), buffer.size());
    return absl::OkStatus();
  }

 private:
  const std::vector<Part>& parts_;
  const size_t bad_part_;
};

// Expects each packed row, read back, to have the bits of its source; a NaN may become any NaN.
void ExpectRowsAreThoseOf(const std::vector<Part>& parts, const CpuPackedLinear& packed) {
  constexpr float kGuard = 12345.0F;
  std::vector<float> out(static_cast<size_t>(packed.in_features()) + 1, kGuard);
  int64_t first_row = 0;
  for (const Part& part : parts) {
    for (int64_t row = 0; row < part.rows; ++row) {
      packed.WidenRow(first_row + row, out.data());
      for (int64_t k = 0; k < part.cols; ++k) {
        const float got = out[static_cast<size_t>(k)];
        const float expected = part.Widened(row, k);
        ASSERT_TRUE(std::isnan(expected) ? std::isnan(got) : BitsOf(got) == BitsOf(expected))
            << "row " << first_row + row << ", number " << k << ": " << got << ", not " << expected;
      }
    }
    first_row += part.rows;
  }
  EXPECT_EQ(out.back(), kGuard);
}

class PackedLinearTest : public testing::Test {
 protected:
  // Fresh memory would be zero, which filler must be; M_PERTURB fills it with other bytes.
  // No other thread runs yet. NOLINTNEXTLINE(concurrency-mt-unsafe)
  static void SetUpTestSuite() { ::mallopt(M_PERTURB, 0x5A); }
  // NOLINTNEXTLINE(concurrency-mt-unsafe)
  static void TearDownTestSuite() { ::mallopt(M_PERTURB, 0); }

  // Dtypes and rows of the parts; all have `cols` columns.
  void ExpectPackedAsByLoops(const std::vector<std::pair<DType, int64_t>>& parts,
                             int64_t cols,
                             int64_t num_segments) {
    bool is_mixed = false;
    for (const auto& [dtype, rows] : parts) {
      is_mixed = is_mixed || dtype != parts.front().first;
    }
    std::vector<Part> made;
    made.reserve(parts.size());
    std::vector<MatrixView> views;
    views.reserve(parts.size());
    std::vector<MatrixView> unread;
    unread.reserve(parts.size());
    for (const auto& [dtype, rows] : parts) {
      made.emplace_back(dtype, rows, cols, is_mixed, random_);
    }
    for (const Part& part : made) {
      views.push_back(part.view());
      unread.push_back(
          {.data = nullptr, .format = FormatOf(part.dtype), .rows = part.rows, .cols = part.cols});
    }
    const PartsInFile file(made, made.size());
    const LinearSource in_memory = {.parts = views, .bias = {}, .num_segments = num_segments};
    const LinearSource in_file = {
        .parts = unread, .bias = {}, .num_segments = num_segments, .reader = &file};
    for (const PanelShape shape : {PanelShape{16, 64, 32, 16},
                                   PanelShape{16, 64, 32},
                                   PanelShape{16, 64},
                                   PanelShape{8, 16},
                                   PanelShape{4, 8}}) {
      for (const LinearSource& source : {in_memory, in_file}) {
        const auto packed = CpuPackedLinear::Pack(source, shape, arena_, team_);
        ASSERT_TRUE(packed.ok()) << packed.status();
        const std::vector<std::byte> expected = PackedByLoops(**packed, made);
        const auto got = (*packed)->memory().front();
        ASSERT_EQ(got.size(), expected.size());
        ExpectRowsAreThoseOf(made, **packed);
        EXPECT_EQ(std::memcmp(got.data(), expected.data(), got.size()), 0)
            << "parts " << parts.size() << ", the first of " << parts.front().second << " x "
            << cols << " of type " << NameOf(parts.front().first) << ", segments " << num_segments
            << ", panel " << shape.panel << (source.reader == nullptr ? "" : ", in a file");
      }
    }
  }

  std::mt19937 random_{1};
  HugeArena arena_;
  ThreadTeam team_{2};
};

TEST_F(PackedLinearTest, BytesAreThoseOfLoopsForEveryTypeAndSize) {
  for (const DType dtype : {DType::kBF16, DType::kF16, DType::kF32}) {
    for (const int64_t rows : {1, 3, 4, 15, 16, 17, 63, 64, 65, 130}) {
      for (const int64_t cols : {1, 2, 3, 31, 32, 33, 64, 255, 256, 257, 290, 600}) {
        ExpectPackedAsByLoops({{dtype, rows}}, cols, 1);
      }
    }
  }
}

TEST_F(PackedLinearTest, BytesAreThoseOfLoopsForEverySegmentation) {
  for (const DType dtype : {DType::kBF16, DType::kF16, DType::kF32}) {
    for (const int64_t segments : {2, 4, 8}) {
      for (const int64_t length : {1, 2, 5, 16, 33, 64, 129}) {
        ExpectPackedAsByLoops({{dtype, 70}}, segments * length, segments);
      }
    }
  }
}

TEST_F(PackedLinearTest, PartsMayEndAnywhereInAPanel) {
  for (const DType dtype : {DType::kBF16, DType::kF16, DType::kF32}) {
    ExpectPackedAsByLoops({{dtype, 64}, {dtype, 64}}, 66, 1);
    ExpectPackedAsByLoops({{dtype, 5}, {dtype, 30}, {dtype, 101}}, 67, 1);
    ExpectPackedAsByLoops({{dtype, 1}, {dtype, 1}, {dtype, 200}}, 66, 2);
  }
}

TEST_F(PackedLinearTest, PartsOfSeveralTypesAreWidened) {
  ExpectPackedAsByLoops({{DType::kBF16, 9}, {DType::kF16, 60}, {DType::kF32, 7}}, 35, 1);
  ExpectPackedAsByLoops({{DType::kF32, 3}, {DType::kBF16, 64}}, 36, 4);
}

TEST_F(PackedLinearTest, ErrorOfTheReaderIsReturned) {
  const std::vector<Part> parts = {{DType::kBF16, 300, 8, false, random_},
                                   {DType::kBF16, 300, 8, false, random_}};
  const MatrixView unread = {
      .data = nullptr, .format = WeightFormat::kBF16, .rows = 300, .cols = 8};
  const MatrixView views[] = {unread, unread};
  const PartsInFile file(parts, 0);

  const auto packed = CpuPackedLinear::Pack(
      {.parts = views, .bias = {}, .reader = &file}, PanelShape{16, 64}, arena_, team_);

  EXPECT_EQ(packed.status(), absl::DataLossError("part"));
}

#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)  // which need more of it
// Packs a matrix of few, long rows. There is room for the matrix, and none for the buffer that
// reads a piece of it.
[[noreturn]] void PackWithoutRoomToRead() {
  const int64_t matrix_bytes = int64_t{2} << 30;
  const std::vector<Part> none;
  const PartsInFile file(none, 0);
  const MatrixView unread = {
      .data = nullptr, .format = WeightFormat::kBF16, .rows = 64, .cols = matrix_bytes / 64 / 2};
  HugeArena arena;
  ThreadTeam team(2);
  int64_t pages = 0;
  std::ifstream("/proc/self/statm") >> pages;
  const auto room = static_cast<rlim_t>(pages * ::sysconf(_SC_PAGESIZE) + matrix_bytes / 2 * 3);
  const rlimit limit = {.rlim_cur = room, .rlim_max = room};
  ::setrlimit(RLIMIT_AS, &limit);

  const auto packed =
      CpuPackedLinear::Pack({.parts = std::span(&unread, 1), .bias = {}, .reader = &file},
                            PanelShape{16, 64},
                            arena,
                            team);

  std::cerr << packed.status();
  ::_exit(packed.status().code() == absl::StatusCode::kResourceExhausted ? 0 : 1);
}

TEST_F(PackedLinearTest, RowsThatThereIsNoRoomToReadAreAnError) {
  EXPECT_EXIT(PackWithoutRoomToRead(),
              testing::ExitedWithCode(0),
              "weights: no memory to read rows of a matrix .need 2147483648 bytes on each of 2");
}
#endif

}  // namespace
}  // namespace quire
