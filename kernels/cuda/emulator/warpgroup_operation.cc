#include "kernels/cuda/emulator/warpgroup_operation.h"

#include <algorithm>
#include <bit>
#include <cstring>

#include "kernels/cuda/emulator/float16.h"

namespace quire::gpu::emulator {
namespace {

constexpr uint32_t kWarpsOfGroup = 4;
constexpr uint32_t kRows = 16;  // rows of a warp
constexpr uint32_t kRowsOfGroup = kWarpsOfGroup * kRows;
constexpr uint32_t kDepth = 16;  // K dimension of one wgmma of 16-bit elements
constexpr uint32_t kUnit = 16;   // bytes of a unit, which holds 8 elements
// The accumulator registers hold this value while a wgmma runs. If a register holds another value
// when the wgmma ends, the kernel wrote the register too early. The value is a signaling NaN:
// arithmetic makes it quiet, so its bits change even if the kernel only multiplies a register in
// place.
constexpr uint32_t kPoisonFloat = 0xFFBFFFFF;

// ---- Matrices in shared memory ----

// A decoded descriptor. start, leading and stride are in bytes.
struct Matrix {
  uint32_t start;
  uint32_t leading;
  uint32_t stride;
  uint32_t row_units;  // 16-byte units in a row of the swizzle pattern
};

Matrix Decode(uint64_t descriptor, SourceLine at) {
  constexpr uint64_t kField = 0x3FFF;
  constexpr uint64_t kUsed = kField | kField << 16 | kField << 32 | uint64_t{3} << 62;
  constexpr uint32_t kRowUnits[4] = {1, 8, 4, 2};
  Matrix matrix{};
  matrix.start = static_cast<uint32_t>(descriptor & kField) * kUnit;
  matrix.leading = static_cast<uint32_t>(descriptor >> 16 & kField) * kUnit;
  matrix.stride = static_cast<uint32_t>(descriptor >> 32 & kField) * kUnit;
  matrix.row_units = kRowUnits[descriptor >> 62];
  if ((descriptor & ~kUsed) != 0) {
    ReportFault(FaultKind::kBadDescriptor, "a matrix descriptor has bits set that must be 0", at);
  }
  if ((matrix.start >> 7 & (matrix.row_units - 1)) != 0) {
    ReportFault(
        FaultKind::kBadDescriptor, "a matrix does not start where a swizzle pattern does", at);
  }
  return matrix;
}

// Returns the address of unit `unit` (8 elements) of row `row`. If K is contiguous, a row is one
// index of M or N, and its units run along K. Else a row is one index of K, and its units run along
// M or N.
uint32_t UnitAddress(const Matrix& matrix, bool k_is_contiguous, uint32_t row, uint32_t unit) {
  const uint32_t row_units = matrix.row_units;
  uint32_t address = matrix.start + row % 8 * row_units * kUnit;
  if (k_is_contiguous) {
    address += row / 8 * matrix.stride + unit * (row_units == 1 ? matrix.leading : kUnit);
  } else if (row_units == 1) {
    address += unit * matrix.stride + row / 8 * matrix.leading;
  } else {
    address +=
        unit % row_units * kUnit + unit / row_units * matrix.leading + row / 8 * matrix.stride;
  }
  return address ^ ((address >> 7 & (row_units - 1)) << 4);
}

// Reads a matrix into elements[row][unit][8]. starts: true at the start of the product, false at
// the wait for the product. At the start, also reports a fault if bytes of the matrix are not
// fenced.
void ReadMatrix(const Matrix& matrix,
                bool k_is_contiguous,
                uint32_t num_rows,
                uint32_t num_units,
                bool starts,
                SourceLine at,
                uint16_t* elements) {
  for (uint32_t row = 0; row < num_rows; ++row) {
    for (uint32_t unit = 0; unit < num_units; ++unit) {
      const uint8_t* from = AtSharedAddress(UnitAddress(matrix, k_is_contiguous, row, unit), kUnit);
      if (from == nullptr) {
        ReportFault(FaultKind::kOutOfBounds, "a matrix of wgmma outside of shared memory", at);
      }
      if (starts && IsUnfenced(from)) {
        ReportFault(FaultKind::kMissingFence,
                    "wgmma reads what cp.async wrote and no proxy fence followed",
                    at);
      }
      RecordRead(from, kUnit);
      memcpy(elements, from, kUnit);
      elements += kUnit / sizeof(uint16_t);
    }
  }
}

bool IsSame(const uint16_t* a, const uint16_t* b, uint32_t count) {
  for (uint32_t i = 0; i < count; ++i) {
    if (a[i] != b[i]) {
      return false;
    }
  }
  return true;
}

template <bool kBf16>
void ToFloatArray(const uint16_t* from, uint32_t count, float* to) {
  for (uint32_t i = 0; i < count; i += 4) {
    const Words words = {from[i], from[i + 1], from[i + 2], from[i + 3]};
    const Floats floats = ToFloats<kBf16>(words);
    memcpy(to + i, &floats, sizeof(floats));
  }
}

// rows[16][num_columns] = a[16][16] b[16][num_columns], or += if `accumulates`. As in mma, the
// product is summed from 0 before it is added to rows.
void MultiplyAdd(
    const float* a, const float* b, uint32_t num_columns, bool accumulates, float* rows) {
  constexpr uint32_t kVectors = 8;  // vectors of 4 columns that are summed together
  for (uint32_t first = 0; first < num_columns; first += 4 * kVectors) {
    const uint32_t count = std::min(kVectors, (num_columns - first) / 4);
    for (uint32_t row = 0; row < kRows; ++row) {
      Floats sums[kVectors] = {};
      for (uint32_t k = 0; k < kDepth; ++k) {
        const float factor = a[row * kDepth + k];
        for (uint32_t v = 0; v < count; ++v) {
          Floats column;
          memcpy(&column, b + k * num_columns + first + 4 * v, sizeof(column));
          sums[v] += factor * column;
        }
      }
      for (uint32_t v = 0; v < count; ++v) {
        for (uint32_t i = 0; i < 4; ++i) {
          float& number = rows[row * num_columns + first + 4 * v + i];
          number = accumulates ? number + sums[v][i] : sums[v][i];
        }
      }
    }
  }
}

// Returns the index of a lane's register i in Accumulator::rows.
size_t AccumulatorIndex(uint32_t lane, uint32_t i, uint32_t num_columns) {
  return size_t{lane / 4 + i / 2 % 2 * 8} * num_columns + i / 4 * 8 + lane % 4 * 2 + i % 2;
}

// ---- The warp operations ----

struct StartLane {
  const WgmmaArgs* args;
  SourceLine at;
};

void StartProduct(void* const* lanes, uint32_t /*mask*/) {
  const WgmmaArgs* args[kWarpSize];
  for (uint32_t lane = 0; lane < kWarpSize; ++lane) {
    args[lane] = static_cast<const StartLane*>(lanes[lane])->args;
  }
  const SourceLine at = static_cast<const StartLane*>(lanes[0])->at;
  const uint32_t warp = RunningWarp(at);
  const uint32_t first_warp = warp / kWarpsOfGroup * kWarpsOfGroup;
  WarpProducts& products = ProductsOf(warp);
  products.Start(args, warp - first_warp, at);

  for (uint32_t other = first_warp; other < first_warp + kWarpsOfGroup; ++other) {
    if (!products.AgreesWith(ProductsOf(other), products.num_started() - 1)) {
      ReportFault(FaultKind::kDivergentWarp, "warps of one warpgroup are in different wgmma", at);
    }
  }
}

void FenceRegisters(void* const* /*lanes*/, uint32_t /*mask*/) {
  ProductsOf(RunningWarp(SourceLine())).Fence();
}

void CommitProducts(void* const* /*lanes*/, uint32_t /*mask*/) {
  ProductsOf(RunningWarp(SourceLine())).Commit();
}

struct WaitLane {
  uint32_t max_pending;
  SourceLine at;
};

void WaitForProducts(void* const* lanes, uint32_t /*mask*/) {
  const auto& lane = *static_cast<const WaitLane*>(lanes[0]);
  const uint32_t warp = RunningWarp(lane.at);
  YieldToOtherWarps();
  ProductsOf(warp).Wait(lane.max_pending, lane.at);
}

constexpr WarpOperation kStart{"wgmma", &StartProduct, true, false};
constexpr WarpOperation kFence{"wgmma.fence", &FenceRegisters, true, false};
constexpr WarpOperation kCommit{"wgmma.commit_group", &CommitProducts, true, false};
constexpr WarpOperation kWait{"wgmma.wait_group", &WaitForProducts, true, false};

constexpr uint32_t kWholeWarp = 0xFFFFFFFF;

}  // namespace

// ---- A warp's products ----

void WarpProducts::Reset() {
  num_started_ = 0;
  for (Accumulator& accumulator : accumulators_) {
    accumulator.num_registers = 0;
  }
  first_product_ = 0;
  num_products_ = 0;
  committed_groups_ = 0;
  fenced_ = false;
}

bool WarpProducts::AgreesWith(const WarpProducts& other, uint64_t number) const {
  const auto has = [number](const WarpProducts& products) {
    return number < products.num_started_ && number + kMaxSignatures >= products.num_started_;
  };
  const Signature& a = started_[number % kMaxSignatures];
  const Signature& b = other.started_[number % kMaxSignatures];
  return !has(*this) || !has(other) ||
         (a.at.line == b.at.line && a.a_descriptor == b.a_descriptor &&
          a.b_descriptor == b.b_descriptor);
}

WarpProducts::Accumulator* WarpProducts::Find(const float* registers) {
  for (Accumulator& accumulator : accumulators_) {
    if (accumulator.num_registers > 0 && accumulator.registers[0] == registers) {
      return &accumulator;
    }
  }
  return nullptr;
}

// Moves the numbers in the registers d to an accumulator, and leaves NaN in the registers.
void WarpProducts::AddAccumulator(const WgmmaArgs* const* lanes, SourceLine at) {
  const uint32_t num_columns = lanes[0]->num_columns;
  const uint32_t num_registers = num_columns / 2;
  Accumulator* unused = nullptr;
  for (Accumulator& other : accumulators_) {
    if (other.num_registers == 0) {
      unused = &other;
    } else if (lanes[0]->d < other.registers[0] + other.num_registers &&
               other.registers[0] < lanes[0]->d + num_registers) {
      ReportFault(FaultKind::kOperandChanged, "accumulators of wgmma in flight overlap", at);
    }
  }
  if (unused == nullptr) {
    ReportFault(FaultKind::kProductInFlight, "too many accumulators for the emulator", at);
  }
  Accumulator& accumulator = *unused;
  accumulator.num_registers = num_registers;
  for (uint32_t lane = 0; lane < kWarpSize; ++lane) {
    accumulator.registers[lane] = lanes[lane]->d;
    for (uint32_t i = 0; i < num_registers; ++i) {
      accumulator.rows[AccumulatorIndex(lane, i, num_columns)] = lanes[lane]->d[i];
      lanes[lane]->d[i] = std::bit_cast<float>(kPoisonFloat);
    }
  }
}

void WarpProducts::ReadOperands(const Product& product, bool starts, Operands& operands) {
  const WgmmaArgs& args = product.args;
  if (args.a != nullptr) {
    for (uint32_t lane = 0; lane < kWarpSize; ++lane) {
      for (uint32_t i = 0; i < 4; ++i) {
        const uint32_t row = lane / 4 + i % 2 * 8;
        const uint32_t column = lane % 4 * 2 + i / 2 * 8;
        const uint32_t pair = product.a_lanes[lane][i];
        operands.a[row * kDepth + column] = static_cast<uint16_t>(pair);
        operands.a[row * kDepth + column + 1] = static_cast<uint16_t>(pair >> 16);
      }
    }
  } else {
    // Reads all 64 rows, because the PTX ISA does not say which rows a warp reads.
    ReadMatrix(Decode(args.a_descriptor, product.at),
               true,
               kRowsOfGroup,
               kDepth / 8,
               starts,
               product.at,
               operands.a);
  }
  const bool by_columns = args.b_is_column_major;
  ReadMatrix(Decode(args.b_descriptor, product.at),
             by_columns,
             by_columns ? args.num_columns : kDepth,
             (by_columns ? kDepth : args.num_columns) / 8,
             starts,
             product.at,
             operands.b);
}

void WarpProducts::Start(const WgmmaArgs* const* lanes, uint32_t warp_of_group, SourceLine at) {
  const WgmmaArgs& args = *lanes[0];
  if (num_products_ == kMaxProducts || args.num_columns > kMaxColumns) {
    ReportFault(FaultKind::kProductInFlight, "too many wgmma in flight for the emulator", at);
  }
  Product& product = ProductAt(num_products_++);
  product.args = args;
  product.warp_of_group = warp_of_group;
  product.group = committed_groups_;
  product.at = at;
  for (uint32_t lane = 0; lane < kWarpSize; ++lane) {
    product.a_lanes[lane] = lanes[lane]->a;
  }
  started_[num_started_++ % kMaxSignatures] = {at, args.a_descriptor, args.b_descriptor};
  ReadOperands(product, true, product.operands);

  const bool is_new = Find(args.d) == nullptr;
  if ((is_new || args.a != nullptr) && !fenced_) {
    ReportFault(FaultKind::kMissingFence, "no wgmma.fence since registers could change", at);
  }
  if (is_new) {
    AddAccumulator(lanes, at);
  }
}

void WarpProducts::Finish(const Product& product, SourceLine at) {
  const WgmmaArgs& args = product.args;
  const uint32_t num_columns = args.num_columns;
  ReadOperands(product, false, now_);
  const Operands& operands = product.operands;
  const uint32_t rows_of_a = args.a != nullptr ? kRows : kRowsOfGroup;
  const uint16_t* own_a =
      operands.a + (args.a != nullptr ? 0 : product.warp_of_group * kRows * kDepth);
  if (!IsSame(now_.a, operands.a, rows_of_a * kDepth) ||
      !IsSame(now_.b, operands.b, kDepth * num_columns)) {
    ReportFault(FaultKind::kOperandChanged,
                "what a wgmma reads was written between its start and the wait for it",
                product.at);
  }
  float a[kRows * kDepth];
  float read[kDepth * kMaxColumns];
  float b[kDepth * kMaxColumns];
  if (args.is_bf16) {
    ToFloatArray<true>(own_a, kRows * kDepth, a);
    ToFloatArray<true>(operands.b, kDepth * num_columns, read);
  } else {
    ToFloatArray<false>(own_a, kRows * kDepth, a);
    ToFloatArray<false>(operands.b, kDepth * num_columns, read);
  }
  for (uint32_t k = 0; args.b_is_column_major && k < kDepth; ++k) {
    for (uint32_t column = 0; column < num_columns; ++column) {
      b[k * num_columns + column] = read[column * kDepth + k];
    }
  }
  Accumulator* accumulator = Find(args.d);
  if (accumulator == nullptr) {
    ReportFault(FaultKind::kOperandChanged, "an accumulator of wgmma was lost", at);
  }
  MultiplyAdd(
      a, args.b_is_column_major ? b : read, num_columns, args.accumulates, accumulator->rows);
}

// Moves the results to the registers. Reports a fault if a thread wrote a register before the wait.
void WarpProducts::Release(Accumulator& accumulator, SourceLine at) {
  const uint32_t num_columns = accumulator.num_registers * 2;
  for (uint32_t lane = 0; lane < kWarpSize; ++lane) {
    for (uint32_t i = 0; i < accumulator.num_registers; ++i) {
      float& value = accumulator.registers[lane][i];
      if (std::bit_cast<uint32_t>(value) != kPoisonFloat) {
        ReportFault(
            FaultKind::kOperandChanged, "an accumulator was written before wgmma was done", at);
      }
      value = accumulator.rows[AccumulatorIndex(lane, i, num_columns)];
    }
  }
  accumulator.num_registers = 0;
}

bool WarpProducts::IsInUse(const Accumulator& accumulator) {
  for (uint32_t i = 0; i < num_products_; ++i) {
    if (ProductAt(i).args.d == accumulator.registers[0]) {
      return true;
    }
  }
  return false;
}

void WarpProducts::Wait(uint32_t max_pending, SourceLine at) {
  while (num_products_ > 0 && ProductAt(0).group + max_pending < committed_groups_) {
    Finish(ProductAt(0), at);
    first_product_ = (first_product_ + 1) % kMaxProducts;
    --num_products_;
  }
  for (Accumulator& accumulator : accumulators_) {
    if (accumulator.num_registers > 0 && !IsInUse(accumulator)) {
      Release(accumulator, at);
    }
  }
  fenced_ = false;
}

// ---- What kernels call ----

void RunWgmma(const WgmmaArgs& args, SourceLine at) {
  StartLane lane{&args, at};
  RunWarpOperation(kStart, kWholeWarp, &lane, at);
}

void RunWgmmaFence(SourceLine at) { RunWarpOperation(kFence, kWholeWarp, nullptr, at); }

void RunWgmmaCommit(SourceLine at) { RunWarpOperation(kCommit, kWholeWarp, nullptr, at); }

void RunWgmmaWait(uint32_t max_pending, SourceLine at) {
  WaitLane lane{max_pending, at};
  RunWarpOperation(kWait, kWholeWarp, &lane, at);
}

}  // namespace quire::gpu::emulator
