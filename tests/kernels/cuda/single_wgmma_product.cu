#include "kernels/cuda/device/dispatch.h"
#include "kernels/cuda/device/element.h"
#include "kernels/cuda/device/portability.h"
#include "kernels/cuda/device/vector.h"
#include "kernels/cuda/device/warpgroup.h"
#include "tests/kernels/cuda/single_wgmma_product.h"

namespace quire::gpu {
namespace {

constexpr int kUnitElements = 8;  // 16 bytes

// rows x columns elements to panels, each all rows of kRowBytes swizzled bytes.
template <int kRowBytes>
QUIRE_DEVICE void FillPanels(uint8_t* panels, const uint8_t* matrix, int rows, int columns) {
  constexpr int kPanelUnits = kRowBytes / 16;
  const int row_units = columns / kUnitElements;
  for (int i = static_cast<int>(threadIdx.x); i < rows * row_units; i += kWarpgroupSize) {
    const int row = i / row_units;
    const int unit = i % row_units;
    uint32_t words[4];
    LoadWords<16>(matrix + i * 16, words);
    const int stored = (unit % kPanelUnits) ^ ((row & 7) * kPanelUnits >> 3);
    StoreWords<16>(panels + (unit / kPanelUnits * rows + row) * kRowBytes + stored * 16, words);
  }
}

template <int kColumns>
constexpr int SharedBytes() {
  return kSwizzleBytes + (kProductRows + kColumns) * kSwizzleRowBytes;
}

// One warpgroup.
template <typename T, int kColumns, int kRowBytes, bool kAIsShared>
QUIRE_KERNEL void QUIRE_LAUNCH_BOUNDS(kWarpgroupSize, 1) MultiplyOnce(const SingleProduct product) {
  QUIRE_SHARED_MEMORY(shared);
  shared += -SharedAddress(shared) & (kSwizzleBytes - 1);
  uint8_t* const a_panel = shared;
  uint8_t* const b_panels = shared + kProductRows * kSwizzleRowBytes;
  constexpr int kRowElements = kRowBytes / 2;
  const auto* const a = static_cast<const uint8_t*>(product.a);
  const auto* const b = static_cast<const uint8_t*>(product.b);
  if constexpr (kAIsShared) {
    FillPanels<kRowBytes>(a_panel, a, kProductRows, kRowElements);
    FillPanels<kRowBytes>(b_panels, b, kColumns, kRowElements);
  } else {
    FillPanels<kRowBytes>(b_panels, b, kFragmentDepth, kColumns);
  }
  FenceAsyncProxy();
  __syncthreads();

  const int warp = static_cast<int>(threadIdx.x / kWarpSize);
  const int group = static_cast<int>(threadIdx.x % kWarpSize / 4);
  const int quad = static_cast<int>(threadIdx.x % 4);
  uint32_t fragment[1][4] = {};
  QUIRE_UNROLL
  for (int r = 0; r < 4 && !kAIsShared; ++r) {
    const int row = 16 * warp + group + 8 * (r & 1);
    const int column = kProductDepth * product.slice + 2 * quad + 8 * (r >> 1);
    fragment[0][r] = reinterpret_cast<const uint32_t*>(a)[(row * kFragmentDepth + column) / 2];
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
    WarpgroupMma<T, kColumns>(d,
                              Advance(MakeDescriptor<kRowBytes>(a_panel, 0, 8 * kRowBytes),
                                      product.slice * kProductDepth * 2),
                              Advance(MakeDescriptor<kRowBytes>(b_panels, 0, 8 * kRowBytes),
                                      product.slice * kProductDepth * 2),
                              product.accumulates);
  } else {
    WarpgroupMmaOfRegisters<T, kColumns>(
        d,
        fragment[0],
        Advance(MakeDescriptor<kRowBytes>(b_panels, kFragmentDepth * kRowBytes, 8 * kRowBytes),
                product.slice * kProductDepth * kRowBytes));
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

template <int kColumns, int kRowElements, bool kAIsShared>
int Run(const SingleProduct& product, Stream stream) {
  return DispatchElement(product.dtype, [&]<typename T>() {
    return QUIRE_LAUNCH((MultiplyOnce<T, kColumns, kRowElements * 2, kAIsShared>),
                        dim3(1),
                        dim3(kWarpgroupSize),
                        SharedBytes<kColumns>(),
                        stream,
                        product);
  });
}

template <int kColumns>
int RunShared(const SingleProduct& product, Stream stream) {
  switch (product.row_elements) {
    case 64:
      return Run<kColumns, 64, true>(product, stream);
    case 32:
      return Run<kColumns, 32, true>(product, stream);
    case 16:
      return Run<kColumns, 16, true>(product, stream);
    default:
      return kUnsupported;
  }
}

template <int kColumns>
int RunRegisters(const SingleProduct& product, Stream stream) {
  constexpr int kRowElements = kColumns < 64 ? kColumns : 64;
  return product.row_elements == kRowElements ? Run<kColumns, kRowElements, false>(product, stream)
                                              : kUnsupported;
}

}  // namespace

int RunSingleProduct(const SingleProduct& product, Stream stream) {
  const bool is_shared = product.a_is_shared;
  switch (product.columns) {
    case 16:
      return is_shared ? kUnsupported : RunRegisters<16>(product, stream);
    case 32:
      return is_shared ? kUnsupported : RunRegisters<32>(product, stream);
    case 64:
      return is_shared ? RunShared<64>(product, stream) : RunRegisters<64>(product, stream);
    case 128:
      return is_shared ? RunShared<128>(product, stream) : RunRegisters<128>(product, stream);
    default:
      return kUnsupported;
  }
}

}  // namespace quire::gpu
