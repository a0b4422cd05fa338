// RowScan is the set of passes over a whole row of logits that sampling needs. Each instruction set
// has its own passes; the rest of sampling is common code.
//
// Rows are cut into blocks of kScanBlock values (the last may be shorter). A pass gives a result
// per block, so that the caller can skip most blocks afterwards. The order of additions follows
// from the row's length alone.
//
// Thread safety: pure functions.
#ifndef QUIRE_KERNELS_CPU_ROW_SCAN_H_
#define QUIRE_KERNELS_CPU_ROW_SCAN_H_

#include <cstdint>

namespace quire {

inline constexpr int64_t kScanBlock = 64;

struct RowScan {
  // Writes the greatest value of block b to block_max[b]. Returns false if the row holds a NaN or
  // an infinity; accept_banned permits -infinity, the logit of a banned token.
  bool (*block_max)(const float* row, int64_t n, bool accept_banned, float* block_max) = nullptr;

  // Computes weight i as exp((row[i] - shift) * factor), or 0 if the exponential is below `floor`.
  // Writes the weight to weights[i], unless `weights` is null. Writes the sum of the weights of
  // block b to block_sum[b].
  void (*exp_weights)(const float* row,
                      int64_t n,
                      float shift,
                      float factor,
                      float floor,
                      float* weights,
                      float* block_sum) = nullptr;

  // Returns the sum of the weights that are at least `bound`.
  double (*mass_at_least)(const float* weights, int64_t n, float bound) = nullptr;

  // Writes the indices of values >= bound to `ids` in ascending order, and returns their number.
  // REQUIRES: `ids` has room for n indices.
  int64_t (*collect)(const float* row, int64_t n, float bound, int32_t* ids) = nullptr;
};

const RowScan& RowScanAvx512();
const RowScan& RowScanAvx2();
const RowScan& RowScanPortable();

}  // namespace quire

#endif  // QUIRE_KERNELS_CPU_ROW_SCAN_H_
