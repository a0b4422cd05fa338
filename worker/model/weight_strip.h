// WeightStrip is a part of a quantized matrix in memory: adjacent rows, in one form for all storage
// formats. A weight is scale * (code - zero) if codes are integers, and scale * code if they are
// 8-bit floats (e4m3).
//
// Thread safety: a value type; DecodeRow is safe from any thread.
// Cost:          DecodeRow reads no file and allocates nothing.
// Source:        e4m3: Open Compute Project, OFP8 Formats 1.0.
#ifndef QUIRE_WORKER_MODEL_WEIGHT_STRIP_H_
#define QUIRE_WORKER_MODEL_WEIGHT_STRIP_H_

#include <cstdint>
#include <span>
#include <vector>

namespace quire {

struct WeightStrip {
  // Adjacent columns that share their scales.
  struct Run {
    int64_t begin = 0;
    int64_t end = 0;
    int64_t group = 0;
  };

  int64_t rows = 0;
  int64_t cols = 0;
  int64_t groups = 1;  // groups of columns; a row has a scale for each
  bool has_float_codes = false;
  std::vector<uint8_t> codes;  // [rows, cols], unsigned integers or e4m3 bits
  std::vector<float> scales;   // [rows, groups], finite
  std::vector<int16_t> zeros;  // [rows, groups]; empty with float codes
  std::vector<Run> runs;       // cover all columns, ascending
};

// Fills `out` with the weights of a row's columns from first_col on. Integer codes give the fp32
// product of the exact difference and the scale. REQUIRES: the columns are in the strip.
void DecodeRow(const WeightStrip& strip, int64_t row, int64_t first_col, std::span<float> out);

}  // namespace quire

#endif  // QUIRE_WORKER_MODEL_WEIGHT_STRIP_H_
