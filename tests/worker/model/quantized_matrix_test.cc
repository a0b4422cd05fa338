// Matrices of published formats decode to the bits that the formats' own tools give
// (make_quantized_goldens.py), in whatever pieces they are read.
#include "worker/model/quantized_matrix.h"

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "gtest/gtest.h"

#include "common/base/check.h"
#include "common/base/math.h"
#include "common/base/read_file.h"
#include "common/json/json.h"
#include "common/model/element_float.h"
#include "common/model/half_float.h"
#include "common/model/quantization_config.h"
#include "tests/support/random.h"
#include "worker/model/quantized_tensors.h"
#include "worker/model/stored_codes.h"
#include "worker/model/weight_files.h"

namespace quire {
namespace {

constexpr char kFolder[] = "tests/worker/model/quantized_matrices";

Json ReadCases() {
  const auto text = ReadFile(std::string(kFolder) + "/cases.json", 1 << 20);
  QUIRE_CHECK(text.ok());
  return *ParseJson(*text);
}

const WeightFiles& Files() {
  static const auto* const files =
      new absl::StatusOr<WeightFiles>(WeightFiles::Open(kFolder));  // leaked on purpose
  QUIRE_CHECK(files->ok());
  return **files;
}

// Rounds as the tool that made the golden did.
float RoundTo(DType dtype, float value) {
  if (dtype == DType::kF32) {
    return value;
  }
  return dtype == DType::kF16 ? HalfToFloat(FloatToHalf(value))
                              : std::bit_cast<float>(uint32_t{FloatToBFloat16(value)} << 16);
}

class QuantizedMatrixTest : public testing::TestWithParam<Json> {
 protected:
  void SetUp() override {
    const Json json = {{"quantization_config", GetParam()["quantization_config"]}};
    const auto config = ParseQuantizationConfig(ConfigReader(json, "config.json"));
    ASSERT_TRUE(config.ok()) << config.status();
    config_ = *config;
    module_ = GetParam()["name"].get<std::string>();
    const auto scheme = config_.SchemeFor(module_, "Linear");
    ASSERT_TRUE(scheme.ok()) << scheme.status();
    ASSERT_NE(*scheme, nullptr);
    auto matrix = QuantizedMatrix::Open(Files(), module_, **scheme, rows(), cols());
    ASSERT_TRUE(matrix.ok()) << matrix.status();
    matrix_ = std::make_unique<QuantizedMatrix>(*std::move(matrix));
  }

  int64_t rows() const { return GetParam()["rows"].get<int64_t>(); }
  int64_t cols() const { return GetParam()["cols"].get<int64_t>(); }
  DType expected_type() const {
    return PlainTypeOf(*Files().Find(module_ + ".expected").tensor->format);
  }

  // The golden, [rows, cols].
  std::vector<float> Expected() const {
    const WeightRef golden = Files().Find(module_ + ".expected");
    std::vector<std::byte> raw(static_cast<size_t>(golden.tensor->bytes));
    EXPECT_TRUE(golden.Read(0, raw).ok());
    std::vector<float> expected;
    const auto size = static_cast<size_t>(SizeOf(expected_type()));
    for (size_t at = 0; at < raw.size(); at += size) {
      expected.push_back(ElementToFloat(raw.data() + at, expected_type()));
    }
    return expected;
  }

  // A part of the matrix, rounded to the type of the golden.
  std::vector<float> Decode(Slice rows, Slice cols) const {
    const auto strip = matrix_->Load(rows, cols);
    EXPECT_TRUE(strip.ok()) << strip.status();
    std::vector<float> weights(static_cast<size_t>(rows.count * cols.count));
    for (int64_t row = 0; strip.ok() && row < rows.count; ++row) {
      DecodeRow(*strip,
                row,
                0,
                std::span(weights).subspan(static_cast<size_t>(row * cols.count),
                                           static_cast<size_t>(cols.count)));
    }
    for (float& weight : weights) {
      weight = RoundTo(expected_type(), weight);
    }
    return weights;
  }

  TensorShape Shape(Slice rows_held, Slice cols_held) const {
    return {.name = module_ + ".weight",
            .rows = rows(),
            .cols = cols(),
            .held_rows = rows_held,
            .held_cols = cols_held,
            .use = TensorUse::kPacked};
  }

  QuantizationConfig config_;
  std::string module_;
  std::unique_ptr<QuantizedMatrix> matrix_;
};

TEST_P(QuantizedMatrixTest, DecodesToTheBitsOfItsOwnTool) {
  EXPECT_EQ(Decode(Whole(rows()), Whole(cols())), Expected());
}

TEST_P(QuantizedMatrixTest, AnyPartHasTheBitsOfTheWhole) {
  const std::vector<float> expected = Expected();
  Random random(11);
  for (int i = 0; i < 30; ++i) {
    Slice row_part;
    row_part.begin =
        random.Below(static_cast<int32_t>(DivCeil(rows(), kStripAlignment))) * kStripAlignment;
    row_part.count = 1 + random.Below(static_cast<int32_t>(rows() - row_part.begin));
    Slice col_part = {.begin = random.Below(static_cast<int32_t>(cols()))};
    col_part.count = 1 + random.Below(static_cast<int32_t>(cols() - col_part.begin));
    const std::vector<float> part = Decode(row_part, col_part);
    for (int64_t row = 0; row < row_part.count; ++row) {
      for (int64_t col = 0; col < col_part.count; ++col) {
        ASSERT_EQ(
            part[static_cast<size_t>(row * col_part.count + col)],
            expected[static_cast<size_t>((row_part.begin + row) * cols() + col_part.begin + col)])
            << row_part.begin + row << " " << col_part.begin + col;
      }
    }
  }
}

// A layout with this one matrix, as the output matrix of a model.
WeightLayout LayoutOf(const std::string& module, int64_t rows, int64_t cols) {
  WeightLayout layout;
  layout.token_table = {.name = "w4_group32.no_table", .rows = 1, .width = 1};
  layout.lm_head = {.parts = {{.name = module, .rows = rows}}, .cols = cols};
  return layout;
}

// Reads a part of the matrix in pieces that begin and end anywhere in a row.
TEST_P(QuantizedMatrixTest, ASourceRoundsThemToBf16InPiecesOfAnySize) {
  const auto matrices =
      QuantizedMatrices::Open(config_, LayoutOf(module_, rows(), cols()), Files());
  ASSERT_TRUE(matrices.ok()) << matrices.status();
  const FileTensors files(Files());
  const QuantizedTensors source(files, *matrices, {});
  const TensorShape shape = Shape({.begin = 5, .count = rows() - 7}, {.begin = 3, .count = 50});
  ASSERT_EQ(source.format(shape.name), WeightFormat::kBF16);
  std::vector<uint16_t> got(static_cast<size_t>(shape.num_elements()));
  const auto bytes = std::as_writable_bytes(std::span(got));
  Random random(3);
  for (size_t at = 0; at < bytes.size();) {
    const size_t left = (bytes.size() - at) / 2;
    const size_t count = 2 * std::min<size_t>(left, 1 + static_cast<size_t>(random.Below(130)));
    ASSERT_TRUE(source.Read(shape, static_cast<int64_t>(at), bytes.subspan(at, count)).ok());
    at += count;
  }

  // All schemes' fp32 weights, rounded once.
  const auto strip = matrix_->Load(Whole(rows()), Whole(cols()));
  ASSERT_TRUE(strip.ok()) << strip.status();
  std::vector<float> row(static_cast<size_t>(cols()));
  for (int64_t i = 0; i < shape.held_rows.count; ++i) {
    DecodeRow(*strip, shape.held_rows.begin + i, 0, row);
    for (int64_t j = 0; j < 50; ++j) {
      ASSERT_EQ(got[static_cast<size_t>(i * 50 + j)],
                FloatToBFloat16(row[static_cast<size_t>(3 + j)]));
    }
  }
}

TEST_P(QuantizedMatrixTest, PartsCountEachWeightOnceInTheSum) {
  const auto matrices =
      QuantizedMatrices::Open(config_, LayoutOf(module_, rows(), cols()), Files());
  ASSERT_TRUE(matrices.ok()) << matrices.status();
  auto sum_of = [&](const std::vector<TensorShape>& parts) {
    uint64_t sum = 0;
    for (const TensorShape& part : parts) {
      const FileTensors files(Files());
      const QuantizedTensors source(files, *matrices, {});
      std::vector<std::byte> out(static_cast<size_t>(BytesOf(part, source)));
      EXPECT_TRUE(source.Read(part, 0, out).ok());
      sum += source.weights_sum();
    }
    return sum;
  };
  const Slice all_rows = Whole(rows());
  const Slice all_cols = Whole(cols());

  const uint64_t whole = sum_of({Shape(all_rows, all_cols)});

  EXPECT_NE(whole, 0U);
  EXPECT_EQ(sum_of({Shape({.begin = 0, .count = 13}, all_cols),
                    Shape({.begin = 13, .count = rows() - 13}, all_cols)}),
            whole);
  EXPECT_EQ(sum_of({Shape(all_rows, {.begin = 0, .count = 21}),
                    Shape(all_rows, {.begin = 21, .count = cols() - 21})}),
            whole);
}

INSTANTIATE_TEST_SUITE_P(Goldens,
                         QuantizedMatrixTest,
                         testing::ValuesIn(ReadCases().get<std::vector<Json>>()),
                         [](const auto& param_info) {
                           return param_info.param["name"].template get<std::string>();
                         });

}  // namespace
}  // namespace quire
