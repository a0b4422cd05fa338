// ReadCodes reads the codes of a quantized matrix [rows, cols] from a model file, in any of the
// orders that files have, into one order: a byte a code, row by row.
//
// Thread safety: free functions, safe from any thread.
// Errors:        those of RegularFile::ReadAt; kInvalidArgument, reason MODEL_FILE, if a code is
//                NaN.
// Cost:          reads the bytes of these codes, and at most a word around each run of them. Takes
//                at most half as much memory as `out` beside it.
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

// Rows that ReadCodes starts at are multiples of this number, so that no word of a file has codes
// of two strips.
inline constexpr int64_t kStripAlignment = 32;

// Returns the number of codes of `bits` bits in a word of 32 bits.
constexpr int64_t CodesPerWord(int32_t bits) { return 32 / bits; }

// Whether codes, scales and zeros are stored with the matrix's rows along the last dimension.
constexpr bool HasWordsAcrossRows(WeightStorage storage) {
  return storage == WeightStorage::kGptq || storage == WeightStorage::kAwq;
}

// Returns the shape that the tensor of codes must have. REQUIRES: GPTQ's and AWQ's words are whole.
std::vector<int64_t> ShapeOfCodes(const WeightScheme& scheme, int64_t rows, int64_t cols);

// Fills out[rows.count, cols.count]. Signed integers are stored with 128 added.
// REQUIRES: the tensor has ShapeOfCodes; rows.begin is a multiple of kStripAlignment.
absl::Status ReadCodes(const WeightScheme& scheme,
                       const WeightRef& tensor,
                       Slice rows,
                       Slice cols,
                       std::span<uint8_t> out);

// Returns where in its word of eight 4-bit codes AWQ stores a code: the index of the code's bits,
// counted from the lowest.
constexpr int64_t AwqPlace(int64_t index) { return index / 2 + index % 2 * 4; }

}  // namespace quire

#endif  // QUIRE_WORKER_MODEL_STORED_CODES_H_
