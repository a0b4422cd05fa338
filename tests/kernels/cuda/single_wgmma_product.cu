#include "kernels/cuda/device/dispatch.h"
#include "kernels/cuda/device/element.h"
#include "kernels/cuda/device/portability.h"
#include "kernels/cuda/device/vector.h"
#include "kernels/cuda/device/warpgroup.h"
#include "tests/kernels/cuda/single_wgmma_product.h"

namespace quire::gpu {
namespace {

constexpr int kUnitElements = 8;  // 16 bytes
constexpr int kPanelUnits = kPanelColumns / kUnitElements;

// rows x columns elements to panels of 64 columns, each all rows of 128 swizzled bytes.
QUIRE_DEVICE void FillPanels(uint8_t* panels, const uint8_t* matrix, int rows, int columns) {
  const int row_units = columns / kUnitElements;
  for (int i = static_cast<int>(threadIdx.x); i < rows * row_units; i += kWarpgroupSize) {
    const int row = i / row_units;
    const int unit = i % row_units;
    uint32_t words[4];
    LoadWords<16>(matrix + i * 16, words);
    StoreWords<16>(panels + unit / kPanelUnits * rows * kSwizzleRowBytes +
                       SwizzledOffset(row, unit % kPanelUnits),
                   words);
  }
}

template <int kColumns>
constexpr int SharedBytes() {
  return kSwizzleBytes + (kProductRows + kColumns) * kSwizzleRowBytes;
}

// One warpgroup.
template <typename T, int kColumns, bool kAIsShared>
QUIRE_KERNEL void QUIRE_LAUNCH_BOUNDS(kWarpgroupSize, 1) MultiplyOnce(const SingleProduct product) {
  QUIRE_SHARED_MEMORY(shared);
  shared += -SharedAddress(shared) & (kSwizzleBytes - 1);
  uint8_t* const a_panel = shared;
  uint8_t* const b_panels = shared + kProductRows * kSwizzleRowBytes;
  const auto* const a = static_cast<const uint8_t*>(product.a);
  const auto* const b = static_cast<const uint8_t*>(product.b);
  FillPanels(a_panel, a, kProductRows, kPanelColumns);
  if constexpr (kAIsShared) {
    FillPanels(b_panels, b, kColumns, kPanelColumns);
  } else {
    FillPanels(b_panels, b, kPanelColumns, kColumns);
  }
  FenceAsyncProxy();
  __syncthreads();

  const int warp = static_cast<int>(threadIdx.x / kWarpSize);
  const int group = static_cast<int>(threadIdx.x % kWarpSize / 4);
  const int quad = static_cast<int>(threadIdx.x % 4);
  uint32_t fragment[1][4];
  QUIRE_UNROLL
  for (int r = 0; r < 4; ++r) {
    const int row = 16 * warp + group + 8 * (r & 1);
    const int column = kProductDepth * product.slice + 2 * quad + 8 * (r >> 1);
    fragment[0][r] = reinterpret_cast<const uint32_t*>(a)[(row * kPanelColumns + column) / 2];
  }
  float d[kColumns / 8][4];
  QUIRE_UNROLL
  for (int n = 0; n < kColumns / 8; ++n) {
    QUIRE_UNROLL
    for (int r = 0; r < 4; ++r) {
      d[n][r] = product.init;
    }
  }

  FenceAccumulator(d);
  FenceFragments(fragment);
  FenceWarpgroup();
  if constexpr (kAIsShared) {
    WarpgroupMma<T, kColumns>(
        d,
        Advance(MakeDescriptor(a_panel, 0, kSwizzleBytes), product.slice * kProductDepth * 2),
        Advance(MakeDescriptor(b_panels, 0, kSwizzleBytes), product.slice * kProductDepth * 2),
        product.accumulates);
  } else {
    WarpgroupMmaOfRegisters<T, kColumns>(
        d,
        fragment[0],
        Advance(MakeDescriptor(b_panels, kPanelColumns * kSwizzleRowBytes, kSwizzleBytes),
                product.slice * kProductDepth * kSwizzleRowBytes));
  }
  CommitProducts();
  WaitProducts<0>();
  FenceAccumulator(d);
  FenceFragments(fragment);

  QUIRE_UNROLL
  for (int n = 0; n < kColumns / 8; ++n) {
    QUIRE_UNROLL
    for (int r = 0; r < 4; ++r) {
      const int row = 16 * warp + group + 8 * (r >> 1);
      product.out[row * kColumns + 8 * n + 2 * quad + (r & 1)] = d[n][r];
    }
  }
}

template <int kColumns>
int Run(const SingleProduct& product, Stream stream) {
  return DispatchElement(product.dtype, [&]<typename T>() {
    const auto run = [&]<bool kAIsShared>() {
      return QUIRE_LAUNCH((MultiplyOnce<T, kColumns, kAIsShared>),
                          dim3(1),
                          dim3(kWarpgroupSize),
                          SharedBytes<kColumns>(),
                          stream,
                          product);
    };
    return product.a_is_shared ? run.template operator()<true>() : run.template operator()<false>();
  });
}

}  // namespace

int RunSingleProduct(const SingleProduct& product, Stream stream) {
  switch (product.columns) {
    case 64:
      return Run<64>(product, stream);
    case 128:
      return Run<128>(product, stream);
    default:
      return kUnsupported;
  }
}

}  // namespace quire::gpu
