// ReadCodes reads the codes of a quantized matrix [rows, cols] from a model file. Files store codes
// in several orders; ReadCodes converts each to one order: a byte per code, row by row.
//
// Thread safety: free functions, safe from any thread.
// Errors:        those of RegularFile::ReadAt; kInvalidArgument, reason MODEL_FILE, if a code is
//                NaN.
// Cost:          reads the bytes of these codes, and at most a word more at each end of a range of
//                adjacent bytes. The buffer takes as much memory as `out` for packed codes of 8
//                bits, half of it for packed codes of 4 bits; words of 64 columns for GPTQ and AWQ.
#ifndef QUIRE_WORKER_MODEL_STORED_CODES_H_
#define QUIRE_WORKER_MODEL_STORED_CODES_H_

#include <cstdint>
#include <span>
#include <vector>

#include "absl/status/status.h"

#include "common/model/quantization_config.h"
#include "worker/model/weight_files.h"
#include "worker/model/weight_layout.h"

namespace quire {

// ReadCodes starts at a row that is a multiple of this number, so that no word of a file holds
// codes of two strips.
inline constexpr int64_t kStripAlignment = 32;

// Returns the number of codes of `bits` bits in a word of 32 bits.
constexpr int64_t CodesPerWord(int32_t bits) { return 32 / bits; }

// Returns true if codes, scales and zeros are stored transposed: with the matrix's rows along the
// last dimension.
constexpr bool HasWordsAcrossRows(WeightStorage storage) {
  return storage == WeightStorage::kGptq || storage == WeightStorage::kAwq;
}

// Returns the shape that the tensor of codes must have. REQUIRES: codes fill whole words along the
// columns with kGptq, along the rows with kAwq.
std::vector<int64_t> ShapeOfCodes(const WeightScheme& scheme, int64_t rows, int64_t cols);

// Fills out[rows.count, cols.count]. Adds 128 to codes that the file stores as signed integers.
// REQUIRES: the tensor has ShapeOfCodes; rows.begin is a multiple of kStripAlignment.
absl::Status ReadCodes(const WeightScheme& scheme,
                       const WeightRef& tensor,
                       Slice rows,
                       Slice cols,
                       std::span<uint8_t> out);

// Returns the place of code `index` in AWQ's words of eight 4-bit codes, in units of 4 bits from
// the lowest bit.
constexpr int64_t AwqPlace(int64_t index) { return index / 2 + index % 2 * 4; }

}  // namespace quire

#endif  // QUIRE_WORKER_MODEL_STORED_CODES_H_
