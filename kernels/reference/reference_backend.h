// CreateReferenceBackend makes the naive fp32 implementation of KernelBackend, with one plain loop
// nest per operation. It is the readable specification with which tests compare every other
// backend. Tests link it; servers do not.
//
// Thread safety: CreateReferenceBackend is safe from any thread. For the backend see KernelBackend.
#ifndef QUIRE_KERNELS_REFERENCE_REFERENCE_BACKEND_H_
#define QUIRE_KERNELS_REFERENCE_REFERENCE_BACKEND_H_

#include <memory>

#include "kernels/api/kernel_backend.h"

namespace quire {

std::unique_ptr<KernelBackend> CreateReferenceBackend();

}  // namespace quire

#endif  // QUIRE_KERNELS_REFERENCE_REFERENCE_BACKEND_H_
