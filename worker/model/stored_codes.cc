#include "worker/model/stored_codes.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstring>

#include "common/base/math.h"
#include "common/base/status_macros.h"
#include "common/model/load_error.h"

namespace quire {
namespace {

constexpr int64_t kWordBytes = 4;
// Columns that are transposed at a time: 64 codes of a row fill a cache line.
constexpr int64_t kTurnedCols = 64;

absl::Status ReadBytes(const WeightRef& tensor, int64_t begin, std::span<uint8_t> out) {
  return tensor.Read(begin, std::as_writable_bytes(out));
}

// Reads a part of a row-major matrix of bytes. Reads whole rows in one call, and parts of rows row
// by row.
absl::Status ReadRows(
    const WeightRef& tensor, int64_t row_bytes, Slice rows, Slice bytes, std::span<uint8_t> out) {
  if (bytes.count == row_bytes) {
    return ReadBytes(tensor, rows.begin * row_bytes, out);
  }
  for (int64_t row = 0; row < rows.count; ++row) {
    QUIRE_RETURN_IF_ERROR(ReadBytes(
        tensor,
        (rows.begin + row) * row_bytes + bytes.begin,
        out.subspan(static_cast<size_t>(row * bytes.count), static_cast<size_t>(bytes.count))));
  }
  return absl::OkStatus();
}

// Unpacks codes of 4 bits, the lower half of each byte first. `from` points to the byte of the
// first code. is_odd: the first code is that byte's upper half.
void UnpackNibbles(const uint8_t* from, bool is_odd, std::span<uint8_t> out) {
  size_t i = 0;
  if (is_odd && !out.empty()) {
    out[i++] = *from++ >> 4;
  }
  for (; i + 1 < out.size(); i += 2, ++from) {
    out[i] = *from & 0xF;
    out[i + 1] = *from >> 4;
  }
  if (i < out.size()) {
    out[i] = *from & 0xF;
  }
}

// Reads weight_packed. A word holds codes of adjacent columns of a row, the first column in the
// lowest bits. Words are little-endian, so their bytes are in the order of the columns.
absl::Status ReadPackedRows(const WeightScheme& scheme,
                            const WeightRef& tensor,
                            Slice rows,
                            Slice cols,
                            std::span<uint8_t> out) {
  const int64_t row_bytes = tensor.tensor->shape[1] * kWordBytes;
  const int64_t first = cols.begin * scheme.bits / 8;
  const int64_t end = DivCeil((cols.begin + cols.count) * scheme.bits, 8);
  std::vector<uint8_t> packed(static_cast<size_t>(rows.count * (end - first)));
  QUIRE_RETURN_IF_ERROR(
      ReadRows(tensor, row_bytes, rows, {.begin = first, .count = end - first}, packed));
  for (int64_t row = 0; row < rows.count; ++row) {
    const uint8_t* const from = packed.data() + row * (end - first);
    const auto codes =
        out.subspan(static_cast<size_t>(row * cols.count), static_cast<size_t>(cols.count));
    if (scheme.bits == 4) {
      UnpackNibbles(from, cols.begin % 2 != 0, codes);
    } else {
      std::copy_n(from, codes.size(), codes.begin());
    }
  }
  return absl::OkStatus();
}

// Reads out[outer.count, words.count] from a tensor of words [outer, inner], whose inner index runs
// along the matrix's rows: qweight of GPTQ and AWQ.
absl::Status ReadWords(const WeightRef& tensor,
                       Slice outer,
                       Slice words,
                       std::vector<uint32_t>& out) {
  out.resize(static_cast<size_t>(outer.count * words.count));
  const auto bytes = std::as_writable_bytes(std::span(out));
  return ReadRows(tensor,
                  tensor.tensor->shape[1] * kWordBytes,
                  outer,
                  {.begin = words.begin * kWordBytes, .count = words.count * kWordBytes},
                  {reinterpret_cast<uint8_t*>(bytes.data()), bytes.size()});
}

// Reads GPTQ's qweight [cols / codes per word, rows]. A word holds codes of adjacent columns of one
// row.
absl::Status ReadGptq(const WeightScheme& scheme,
                      const WeightRef& tensor,
                      Slice rows,
                      Slice cols,
                      std::span<uint8_t> out) {
  const int64_t per_word = CodesPerWord(scheme.bits);
  const int64_t words_at_once = kTurnedCols / per_word;
  const int64_t end_col = cols.begin + cols.count;
  std::vector<uint32_t> words;
  std::array<uint32_t, kTurnedCols> turned = {};
  std::array<uint8_t, kTurnedCols> codes = {};
  for (int64_t word = cols.begin / per_word; word * per_word < end_col; word += words_at_once) {
    const int64_t count = std::min(words_at_once, DivCeil(end_col, per_word) - word);
    QUIRE_RETURN_IF_ERROR(ReadWords(tensor, {.begin = word, .count = count}, rows, words));
    const int64_t first = std::max(word * per_word, cols.begin);
    const int64_t end = std::min((word + count) * per_word, end_col);
    for (int64_t row = 0; row < rows.count; ++row) {
      for (int64_t i = 0; i < count; ++i) {
        turned[static_cast<size_t>(i)] = words[static_cast<size_t>(i * rows.count + row)];
      }
      const auto* const bytes = reinterpret_cast<const uint8_t*>(turned.data());
      if (scheme.bits == 4) {
        UnpackNibbles(bytes, false, std::span(codes).first(static_cast<size_t>(count * per_word)));
      } else {
        std::copy_n(bytes, count * per_word, codes.begin());
      }
      std::copy(codes.begin() + (first - word * per_word),
                codes.begin() + (end - word * per_word),
                out.begin() + row * cols.count + (first - cols.begin));
    }
  }
  return absl::OkStatus();
}

// Reads AWQ's qweight [cols, rows / 8]. A word holds codes of eight rows of one column.
absl::Status ReadAwq(const WeightRef& tensor, Slice rows, Slice cols, std::span<uint8_t> out) {
  const int64_t first_word = rows.begin / 8;
  const int64_t num_words = DivCeil(rows.begin + rows.count, 8) - first_word;
  std::vector<uint32_t> words;
  std::array<uint32_t, kTurnedCols> column_words = {};
  for (int64_t col = 0; col < cols.count; col += kTurnedCols) {
    const int64_t count = std::min(kTurnedCols, cols.count - col);
    QUIRE_RETURN_IF_ERROR(ReadWords(tensor,
                                    {.begin = cols.begin + col, .count = count},
                                    {.begin = first_word, .count = num_words},
                                    words));
    for (int64_t word = 0; word < num_words; ++word) {
      for (int64_t i = 0; i < count; ++i) {
        column_words[static_cast<size_t>(i)] = words[static_cast<size_t>(i * num_words + word)];
      }
      const int64_t first_row = word * 8;
      for (int64_t row = first_row; row < std::min(first_row + 8, rows.count); ++row) {
        const int64_t shift = 4 * AwqPlace(row - first_row);
        uint8_t* const to = out.data() + row * cols.count + col;
        for (int64_t i = 0; i < count; ++i) {
          to[i] = static_cast<uint8_t>(column_words[static_cast<size_t>(i)] >> shift & 0xF);
        }
      }
    }
  }
  return absl::OkStatus();
}

}  // namespace

std::vector<int64_t> ShapeOfCodes(const WeightScheme& scheme, int64_t rows, int64_t cols) {
  switch (scheme.storage) {
    case WeightStorage::kPacked:
      return {rows, DivCeil(cols, CodesPerWord(scheme.bits))};
    case WeightStorage::kGptq:
      return {cols / CodesPerWord(scheme.bits), rows};
    case WeightStorage::kAwq:
      return {cols, rows / CodesPerWord(scheme.bits)};
    default:
      return {rows, cols};
  }
}

absl::Status ReadCodes(const WeightScheme& scheme,
                       const WeightRef& tensor,
                       Slice rows,
                       Slice cols,
                       std::span<uint8_t> out) {
  switch (scheme.storage) {
    case WeightStorage::kPacked:
      return ReadPackedRows(scheme, tensor, rows, cols, out);
    case WeightStorage::kGptq:
      return ReadGptq(scheme, tensor, rows, cols, out);
    case WeightStorage::kAwq:
      return ReadAwq(tensor, rows, cols, out);
    case WeightStorage::kInt8:
    case WeightStorage::kFloat8:
      break;
  }
  QUIRE_RETURN_IF_ERROR(ReadRows(tensor, tensor.tensor->shape[1], rows, cols, out));
  if (scheme.storage == WeightStorage::kInt8) {
    for (uint8_t& code : out) {
      code ^= 0x80;
    }
    return absl::OkStatus();
  }
  constexpr uint8_t kNan = 0x7F;
  const bool has_nan =
      std::any_of(out.begin(), out.end(), [](uint8_t code) { return (code & kNan) == kNan; });
  return has_nan ? TensorError(tensor.file->name(), tensor.tensor->name, "holds a NaN")
                 : absl::OkStatus();
}

}  // namespace quire
