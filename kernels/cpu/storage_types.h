// BFloat16 and Float16 are 16-bit floating-point numbers as they lie in memory. They carry no
// arithmetic: the Simd structs widen them to fp32 on load and round them on store.
//
// Thread safety: value types.
#ifndef QUIRE_KERNELS_CPU_STORAGE_TYPES_H_
#define QUIRE_KERNELS_CPU_STORAGE_TYPES_H_

#include <cstdint>

namespace quire {

struct BFloat16 {
  uint16_t bits;
};

struct Float16 {
  uint16_t bits;
};

}  // namespace quire

#endif  // QUIRE_KERNELS_CPU_STORAGE_TYPES_H_
