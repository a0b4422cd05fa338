// Parts of quantized tensors, as they are stored and decoded, beside the whole tensor decoded by
// plain loops. Cuts lie anywhere, also inside weight blocks.
#include "worker/model/decoded_tensors.h"

#include <algorithm>
#include <cstring>
#include <map>
#include <string>
#include <vector>

#include "gtest/gtest.h"

#include "kernels/api/dequantize.h"
#include "kernels/reference/element.h"
#include "kernels/reference/reference_backend.h"
#include "tests/common/model/gguf_bytes.h"
#include "tests/common/model/gguf_dir.h"
#include "tests/kernels/weight_blocks.h"
#include "tests/support/random.h"
#include "worker/model/weight_files.h"

namespace quire {
namespace {

constexpr int64_t kRows = 24;
constexpr int64_t kCols = 768;
constexpr char kFile[] = "model.gguf";

std::vector<WeightFormat> QuantizedFormats() {
  std::vector<WeightFormat> formats;
  for (const WeightFormatInfo& info : kWeightFormats) {
    if (IsQuantized(info.format)) {
      formats.push_back(info.format);
    }
  }
  return formats;
}

std::string GgufName(size_t layer) { return "blk." + std::to_string(layer) + ".ffn_down.weight"; }
std::string Name(size_t layer) {
  return "model.layers." + std::to_string(layer) + ".mlp.down_proj.weight";
}

// A file with a matrix of each quantized format, in a layer of its own.
class DecodedTensorsTest : public testing::Test {
 protected:
  void SetUp() override {
    GgufBytes bytes;
    bytes.Add("general.architecture", "qwen2");
    for (size_t i = 0; i < formats_.size(); ++i) {
      const int64_t num_blocks = kRows * kCols / InfoOf(formats_[i]).block_weights;
      blocks_.push_back(FiniteBlocks(formats_[i], num_blocks, random_));
      bytes.AddTensor(GgufName(i),
                      {kCols, kRows},
                      static_cast<GgmlType>(formats_[i]),
                      {reinterpret_cast<const char*>(blocks_[i].data()), blocks_[i].size()});
    }
    dir_.Write(kFile, bytes.File());
    auto files = WeightFiles::Open(dir_.path(kFile));
    ASSERT_TRUE(files.ok()) << files.status();
    files_ = *std::move(files);
  }

  // Reads the part in pieces of random sizes.
  std::vector<std::byte> Read(const TensorSource& source, const TensorShape& part) {
    const int64_t block_bytes = InfoOf(source.format(part.name)).block_bytes;
    std::vector<std::byte> bytes(static_cast<size_t>(BytesOf(part, source)));
    for (size_t at = 0; at < bytes.size();) {
      const size_t most = (bytes.size() - at) / static_cast<size_t>(block_bytes);
      const size_t size =
          static_cast<size_t>(random_.Between(1, static_cast<int32_t>(most)) * block_bytes);
      const absl::Status status =
          source.Read(part, static_cast<int64_t>(at), std::span(bytes).subspan(at, size));
      EXPECT_TRUE(status.ok()) << status;
      at += size;
    }
    return bytes;
  }

  Slice RandomSlice(int64_t size) {
    const int64_t begin = random_.Below(static_cast<int32_t>(size));
    return {.begin = begin, .count = random_.Between(1, static_cast<int32_t>(size - begin))};
  }

  // Row of the file with this row of a model. REQUIRES: paired_rows is 0 or divides kRows.
  static int64_t RowInFile(int64_t row, int64_t paired_rows) {
    for (int64_t head = 0; paired_rows > 0 && head < kRows / paired_rows; ++head) {
      for (int64_t half = 0; half < 2; ++half) {
        for (int64_t i = 0; i < paired_rows / 2; ++i) {
          if (row == head * paired_rows + half * (paired_rows / 2) + i) {
            return head * paired_rows + 2 * i + half;
          }
        }
      }
    }
    return row;
  }

  const std::vector<WeightFormat> formats_ = QuantizedFormats();
  std::vector<std::vector<std::byte>> blocks_;
  Random random_{1};
  GgufDir dir_;
  WeightFiles files_;
};

TEST_F(DecodedTensorsTest, PartsHoldTheWeightsOfTheirRowsAndColumns) {
  const FileTensors stored(files_);
  for (size_t i = 0; i < formats_.size(); ++i) {
    std::vector<float> weights(size_t{kRows * kCols});
    Dequantize(formats_[i], blocks_[i], weights);
    const DecodedTensors decoded(stored, {.names = {Name(i)}});
    for (int round = 0; round < 40; ++round) {
      const int32_t paired_rows = round % 2 == 0 ? 0 : 8;
      const TensorShape part = {.name = Name(i),
                                .rows = kRows,
                                .cols = kCols,
                                .held_rows = RandomSlice(kRows),
                                .held_cols = round < 4 ? Whole(kCols) : RandomSlice(kCols),
                                .paired_head_rows = paired_rows};

      const std::vector<std::byte> bf16 = Read(decoded, part);
      const std::vector<std::byte> raw = Read(stored, part);

      const MatrixView view = PartOf(part, formats_[i]);
      ASSERT_EQ(raw.size(), static_cast<size_t>(view.rows * RowBytes(view)));
      std::vector<float> row_weights(static_cast<size_t>(
          RowBytes(view) / InfoOf(formats_[i]).block_bytes * InfoOf(formats_[i]).block_weights));
      for (int64_t row = 0; row < view.rows; ++row) {
        const auto row_bytes = static_cast<size_t>(RowBytes(view));
        Dequantize(formats_[i],
                   std::span(raw).subspan(static_cast<size_t>(row) * row_bytes, row_bytes),
                   row_weights);
        for (int64_t col = 0; col < view.cols; ++col) {
          const int64_t file_row = RowInFile(part.held_rows.begin + row, paired_rows);
          const float weight =
              weights[static_cast<size_t>(file_row * kCols + part.held_cols.begin + col)];
          uint16_t bits = 0;
          std::memcpy(&bits, &bf16[static_cast<size_t>((row * view.cols + col) * 2)], sizeof(bits));
          ASSERT_EQ(bits, reference::Bfloat16FromFloat(weight)) << NameOf(formats_[i]);
          ASSERT_EQ(row_weights[static_cast<size_t>(view.skipped_cols + col)], weight)
              << NameOf(formats_[i]);
        }
      }
    }
  }
}

// Cuts the columns in up to four parts, each of which a rank reads, as stored or decoded.
TEST_F(DecodedTensorsTest, RanksCountEveryBlockOnce) {
  for (size_t i = 0; i < formats_.size(); ++i) {
    const FileTensors whole(files_);
    Read(whole, {.name = Name(i), .rows = kRows, .cols = kCols});
    for (int round = 0; round < 20; ++round) {
      uint64_t sum = 0;
      for (int64_t begin = 0; begin < kCols;) {
        const int64_t count =
            round == 0 ? 64 : random_.Between(1, static_cast<int32_t>(kCols - begin));
        const FileTensors stored(files_);
        const DecodedTensors decoded(stored, {.names = {Name(i)}});
        const TensorSource& source =
            round % 2 == 0 ? static_cast<const TensorSource&>(stored) : decoded;
        Read(source, {.name = Name(i), .rows = kRows, .cols = kCols, .held_cols = {begin, count}});
        sum += source.weights_sum();
        begin += count;
      }
      ASSERT_EQ(sum, whole.weights_sum()) << NameOf(formats_[i]);
    }
  }
}

TEST_F(DecodedTensorsTest, AScaleThatIsNotFiniteIsRefused) {
  for (size_t i = 0; i < formats_.size(); ++i) {
    const WeightFormat format = formats_[i];
    const auto block = static_cast<size_t>(
        random_.Below(static_cast<int32_t>(kRows * kCols / InfoOf(format).block_weights)));
    const size_t begin = block * static_cast<size_t>(InfoOf(format).block_bytes);
    std::string bytes(reinterpret_cast<const char*>(blocks_[i].data()), blocks_[i].size());
    if (format == WeightFormat::kMxfp4) {
      bytes[begin] = '\xFF';
    } else {
      const size_t place = begin + static_cast<size_t>(PlacesOfHalves(format).back());
      bytes.replace(place, 2, "\x01\x7E");  // NaN
    }
    GgufBytes file;
    file.Add("general.architecture", "qwen2");
    file.AddTensor(GgufName(0), {kCols, kRows}, static_cast<GgmlType>(format), bytes);
    dir_.Write("nan.gguf", file.File());
    auto files = WeightFiles::Open(dir_.path("nan.gguf"));
    ASSERT_TRUE(files.ok()) << files.status();
    const FileTensors stored(*files);
    const DecodedTensors decoded(stored, {.names = {Name(0)}});
    const TensorShape tensor = {.name = Name(0), .rows = kRows, .cols = kCols};
    for (const TensorSource* source :
         {static_cast<const TensorSource*>(&stored), static_cast<const TensorSource*>(&decoded)}) {
      std::vector<std::byte> out(static_cast<size_t>(BytesOf(tensor, *source)));

      const absl::Status status = source->Read(tensor, 0, out);

      EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
      EXPECT_EQ(std::string(status.message())
                    .find("load: nan.gguf: blk.0.ffn_down.weight: has a scale that is not finite"),
                0U)
          << NameOf(format) << ": " << status;
    }
  }
}

}  // namespace
}  // namespace quire
