// FakeNcclApi is the emulated kernel library, linked into the test, with FakeNccl as its NCCL.
//
// Thread safety: any thread.
#ifndef QUIRE_TESTS_SUPPORT_FAKE_NCCL_API_H_
#define QUIRE_TESTS_SUPPORT_FAKE_NCCL_API_H_

#include "kernels/cuda/gpu_api.h"
#include "tests/kernels/cuda/fake_nccl.h"

namespace quire {

gpu::FakeNccl& FakeNcclLibrary();
const gpu::GpuApi& FakeNcclApi();
// Like FakeNcclApi, for a rank without NCCL.
const gpu::GpuApi& ApiWithoutNccl();

}  // namespace quire

#endif  // QUIRE_TESTS_SUPPORT_FAKE_NCCL_API_H_
