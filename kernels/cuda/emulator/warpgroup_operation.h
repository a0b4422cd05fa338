// wgmma: products that a warpgroup, four warps from a multiple of four on, starts and waits for.
//
// The rules are those of the PTX ISA, "Asynchronous Warpgroup Level Matrix Instructions": "Matrix
// Descriptor Format", "Shared Memory Matrix Layout", "Register Fragments", "wgmma.fence",
// "wgmma.commit_group", "wgmma.wait_group" and "Async Proxy"; where its text leaves a layout to
// pictures, they are read as CUTLASS's canonical layouts (cute/atom/mma_traits_sm90_gmma.hpp).
//
// Descriptor, 64 bits; addresses and offsets in units of 16 bytes:
//   0..13 start | 16..29 leading offset | 32..45 stride offset | 49..51 base offset | 62..63 mode
// Mode 0: no swizzle, 1: of 128 bytes, 2: of 64, 3: of 32. W, the 16-byte units of a row of the
// swizzle's pattern: 1, 8, 4, 2.
// Where the 16-byte unit of 8 elements lies, before the swizzle:
//   K contiguous (row r of M or N, unit u of K):      r % 8 * 16 W + r / 8 * stride + u * 16,
//                                                     without a swizzle u * leading
//   M or N contiguous (unit u of M or N, row k of K): u % W * 16 + u / W * leading +
//                                                     k % 8 * 16 W + k / 8 * stride,
//                                                     without a swizzle u * stride, k / 8 * leading
// The swizzle exchanges units: address bits 4 to 6 are xored with bits 7 to 9, with the log2 W
// lowest of them. It acts on the address, so a pattern begins at a multiple of 128 W; base offset
// is 0 then.
//
// What is asynchronous is done the way that hurts most. An accumulator is NaN from the start of a
// product until the wait for it. What a product reads, in shared memory and as fragments of A, is
// read when it is started and again at the wait; a difference is a fault, for who writes there
// before the wait, or lets another thread do so, or started before the data were there. Other warps
// run before a wait ends. Faults, besides: a product of which an accumulator or A fragment is
// not fenced since the last wait; bytes of cp.async without a proxy fence after they landed, of the
// thread that copied or of the warp that multiplies; a descriptor that points outside of shared
// memory, has bits set that are none of the above, or starts within a swizzle pattern; warps of one
// warpgroup that start different products; accumulators that overlap; a return with a product that
// was not waited for.
//
// What it cannot see: a fence that precedes a change of registers that no wait follows; ordinary
// stores, not cp.async, that lack the proxy fence.
//
// Thread safety: as the emulator.
#ifndef QUIRE_KERNELS_CUDA_EMULATOR_WARPGROUP_OPERATION_H_
#define QUIRE_KERNELS_CUDA_EMULATOR_WARPGROUP_OPERATION_H_

#include <cstdint>

#include "kernels/cuda/emulator/emulator.h"
#include "kernels/cuda/emulator/warp_operation.h"

namespace quire::gpu::emulator {

// A warp's share of the products in flight: 16 of the 64 rows. Zero bytes are an object without
// any. All in place, and without calls of memcpy and memset: TSan takes what one fiber allocates or
// copies and another frees or copies for a race.
class WarpProducts {
 public:
  void Reset();
  bool in_flight() const { return num_products_ > 0; }
  uint64_t num_started() const { return num_started_; }
  // Whether the product of this number, counted from 0, is the same in both; also where it has not
  // been started or was long ago.
  bool AgreesWith(const WarpProducts& other, uint64_t number) const;

  // lanes: the arguments of the 32 lanes.
  void Start(const WgmmaArgs* const* lanes, uint32_t warp_of_group, SourceLine at);
  void Fence() { fenced_ = true; }
  void Commit() { ++committed_groups_; }
  void Wait(uint32_t max_pending, SourceLine at);

 private:
  static constexpr uint32_t kMaxColumns = 256;
  static constexpr uint32_t kMaxAccumulators = 8;
  static constexpr uint32_t kMaxProducts = 64;
  static constexpr uint32_t kMaxSignatures = 256;

  // What the warps of a warpgroup must agree on.
  struct Signature {
    SourceLine at;
    uint64_t a_descriptor;
    uint64_t b_descriptor;
  };
  struct Operands {
    uint16_t a[64 * 16];           // [64][16]; where A is in registers, the warp's [16][16]
    uint16_t b[16 * kMaxColumns];  // as it lies in shared memory: rows of M or N, or of K
  };
  struct Accumulator {
    float* registers[kWarpSize];
    uint32_t num_registers;        // 0: not used
    float rows[16 * kMaxColumns];  // [16][num_columns]
  };
  struct Product {
    WgmmaArgs args;                      // of lane 0
    const uint32_t* a_lanes[kWarpSize];  // where A is in registers
    uint32_t warp_of_group;
    uint32_t group;
    Operands operands;
    SourceLine at;
  };

  // i: 0 is the oldest.
  Product& ProductAt(uint32_t i) { return products_[(first_product_ + i) % kMaxProducts]; }
  Accumulator* Find(const float* registers);
  void AddAccumulator(const WgmmaArgs* const* lanes, SourceLine at);
  static void ReadOperands(const Product& product, bool starts, Operands& operands);
  void Finish(const Product& product, SourceLine at);
  static void Release(Accumulator& accumulator, SourceLine at);
  bool IsInUse(const Accumulator& accumulator);

  Signature started_[kMaxSignatures];
  uint64_t num_started_;
  Accumulator accumulators_[kMaxAccumulators];
  Product products_[kMaxProducts];
  uint32_t first_product_;
  uint32_t num_products_;
  Operands now_;
  uint32_t committed_groups_;
  bool fenced_;
};

// Of a warp of the running CTA.
WarpProducts& ProductsOf(uint32_t warp);

}  // namespace quire::gpu::emulator

#endif  // QUIRE_KERNELS_CUDA_EMULATOR_WARPGROUP_OPERATION_H_
