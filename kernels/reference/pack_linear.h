// PackLinear converts the weights of a layer into the form that the reference's Linear reads.
//
// Thread safety: any thread.
#ifndef QUIRE_KERNELS_REFERENCE_PACK_LINEAR_H_
#define QUIRE_KERNELS_REFERENCE_PACK_LINEAR_H_

#include <memory>

#include "absl/status/statusor.h"

#include "kernels/api/dense.h"

namespace quire::reference {

// Errors: as KernelBackend::PackLinear.
absl::StatusOr<std::unique_ptr<PackedLinear>> PackLinear(const LinearSource& source);

}  // namespace quire::reference

#endif  // QUIRE_KERNELS_REFERENCE_PACK_LINEAR_H_
