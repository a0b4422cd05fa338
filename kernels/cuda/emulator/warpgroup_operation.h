// wgmma: products that a warpgroup starts and later waits for. A warpgroup is four warps, the first
// of which has a number that is a multiple of four.
//
// Source: PTX ISA, "Asynchronous Warpgroup Level Matrix Instructions": "Matrix Descriptor Format",
// "Shared Memory Matrix Layout", "Register Fragments", "wgmma.fence", "wgmma.commit_group",
// "wgmma.wait_group" and "Async Proxy". Layouts that the PTX ISA only draws are read as CUTLASS's
// canonical layouts (cute/atom/mma_traits_sm90_gmma.hpp).
//
// Bits of a 64-bit descriptor; start, leading and stride offsets are in units of 16 bytes:
//   0..13 start | 16..29 leading offset | 32..45 stride offset | 49..51 base offset | 62..63 mode
// Mode 0: no swizzle; 1: a swizzle of 128 bytes; 2: of 64; 3: of 32. A row of the swizzle's pattern
// has W 16-byte units: 1, 8, 4 or 2 in modes 0 to 3.
// Offset in bytes of a 16-byte unit (8 elements) from the start, before the swizzle. Here stride
// and leading are the offsets in bytes:
//   K contiguous (row r of M or N, unit u of K):
//     with a swizzle:    r % 8 * 16 W + r / 8 * stride + u * 16
//     without a swizzle: r % 8 * 16   + r / 8 * stride + u * leading
//   M or N contiguous (unit u of M or N, row k of K):
//     with a swizzle:    k % 8 * 16 W + k / 8 * stride + u % W * 16 + u / W * leading
//     without a swizzle: k % 8 * 16   + k / 8 * leading + u * stride
// The swizzle exchanges units: the log2 W lowest of address bits 4 to 6 are xored with the log2 W
// lowest of bits 7 to 9. The swizzle acts on the address, so a pattern must begin at a multiple of
// 128 W; then the base offset is 0.
//
// The emulator assumes the worst timing. An accumulator is NaN from the start of a product until
// the wait for the product. Operands (matrices in shared memory and fragments of A) are read at the
// start and again at the wait, and other warps run in between. A difference is a fault: a thread
// wrote the operand before the wait, or the product started before its data had arrived. Further
// faults:
//   - an accumulator or A fragment without a wgmma.fence since the last wait;
//   - bytes that cp.async wrote, if neither the thread that copied nor the warp that multiplies
//     called FenceAsyncProxy after the bytes landed;
//   - a descriptor that points outside of shared memory, starts within a swizzle pattern, or sets
//     bits other than those of start, leading offset, stride offset and mode;
//   - warps of one warpgroup that start different products;
//   - overlapping accumulators;
//   - a thread that returns before the wait for its product.
//
// Not detected:
//   - a register that is written between wgmma.fence and the product, with no wait in between;
//   - an ordinary store (in contrast to cp.async) without FenceAsyncProxy.
//
// Thread safety: as the emulator.
#ifndef QUIRE_KERNELS_CUDA_EMULATOR_WARPGROUP_OPERATION_H_
#define QUIRE_KERNELS_CUDA_EMULATOR_WARPGROUP_OPERATION_H_

#include <cstdint>

#include "kernels/cuda/emulator/emulator.h"
#include "kernels/cuda/emulator/warp_operation.h"

namespace quire::gpu::emulator {

// A warp's part of the products in flight: 16 of the 64 rows. An object whose bytes are all 0 is
// valid and empty. Fibers use an object in turn, but TSan does not see that order. TSan would
// report races if fibers called malloc, free, memcpy or memset for an object's memory. So an object
// owns no heap memory, and no code copies or clears its large members as a whole.
class WarpProducts {
 public:
  void Reset();
  bool in_flight() const { return num_products_ > 0; }
  uint64_t num_started() const { return num_started_; }
  // Returns whether product `number`, counted from 0, is the same in both warps. Also returns true
  // if a warp has not started that product, or has since started kMaxSignatures more.
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

  // The fields that the warps of a warpgroup must agree on.
  struct Signature {
    SourceLine at;
    uint64_t a_descriptor;
    uint64_t b_descriptor;
  };
  struct Operands {
    uint16_t a[64 * 16];           // [64][16], or the warp's [16][16] if A is in registers
    uint16_t b[16 * kMaxColumns];  // [N][16] if K is contiguous, else [16][N]
  };
  struct Accumulator {
    float* registers[kWarpSize];
    uint32_t num_registers;        // 0 if the accumulator is unused
    float rows[16 * kMaxColumns];  // [16][num_columns]
  };
  struct Product {
    WgmmaArgs args;                      // lane 0's arguments
    const uint32_t* a_lanes[kWarpSize];  // the lanes' fragments if A is in registers
    uint32_t warp_of_group;
    uint32_t group;
    Operands operands;
    SourceLine at;
  };

  // Product 0 is the oldest.
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

// Returns the products of a warp of the running CTA.
WarpProducts& ProductsOf(uint32_t warp);

}  // namespace quire::gpu::emulator

#endif  // QUIRE_KERNELS_CUDA_EMULATOR_WARPGROUP_OPERATION_H_
