#include "tests/support/fake_nccl_api.h"

#include <dlfcn.h>

#include <functional>
#include <utility>

#include "common/base/check.h"
#include "kernels/cuda/emulator/operation.h"
#include "tests/support/locked_gpu_api.h"

extern "C" const quire::gpu::GpuApi* quire_gpu_api();

namespace quire {
namespace {

using gpu::FakeNccl;
using gpu::GpuApi;

int Enqueue(void* stream,
            const void* memory,
            std::function<bool()> is_ready,
            std::function<int()> run) {
  gpu::emulator::Operation operation = {
      .name = "NCCL", .run = std::move(run), .is_ready = std::move(is_ready)};
  operation.references.Add(memory);
  return gpu::emulator::Enqueue(stream, std::move(operation));
}

}  // namespace

FakeNccl& FakeNcclLibrary() {
  static FakeNccl& fake = *[] {
    void* library = dlopen(QUIRE_FAKE_NCCL, RTLD_NOW | RTLD_LOCAL);
    QUIRE_CHECK(library != nullptr);
    auto get = reinterpret_cast<gpu::FakeNcclFunction>(dlsym(library, gpu::kFakeNcclSymbol));
    FakeNccl* opened = get();
    opened->enqueue = &Enqueue;
    return opened;
  }();
  return fake;
}

const GpuApi& FakeNcclApi() {
  static const GpuApi& locked = []() -> const GpuApi& {
    FakeNcclLibrary();
    static GpuApi api = *quire_gpu_api();
    api.open_nccl = [](const char*) { return gpu::OpenNccl(QUIRE_FAKE_NCCL); };
    return LockedGpuApi(api);
  }();
  return locked;
}

const GpuApi& ApiWithoutNccl() {
  static const GpuApi api = [] {
    GpuApi without = FakeNcclApi();
    without.open_nccl = [](const char*) { return gpu::kNoNccl; };
    return without;
  }();
  return api;
}

}  // namespace quire
