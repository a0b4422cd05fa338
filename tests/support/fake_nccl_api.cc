#include "tests/support/fake_nccl_api.h"

#include <dlfcn.h>

#include <cstdint>
#include <functional>
#include <set>
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

bool IsRecording(void* stream) {
  bool is_recording = false;
  return gpu::IsRecording(stream, &is_recording) == 0 && is_recording;
}

using Product = std::pair<const void*, int64_t>;  // weight, rows

std::set<Product>& PlannedProducts() {
  static std::set<Product> planned;
  return planned;
}

int IsPlanned(void* /*gemm*/, const gpu::GemmArgs& args, bool* is_planned) {
  *is_planned = PlannedProducts().contains({args.weight, args.rows});
  return 0;
}

// Waits for the device at first, like a product whose algorithms are timed.
int PlanAndRun(void* gemm, const gpu::GemmArgs& args, gpu::Stream stream) {
  const bool is_new = PlannedProducts().emplace(args.weight, args.rows).second;
  const int error = is_new ? gpu::Synchronize(stream) : 0;
  return error != 0 ? error : gpu::RunGemm(gemm, args, stream);
}

}  // namespace

FakeNccl& FakeNcclLibrary() {
  static FakeNccl& fake = *[] {
    void* library = dlopen(QUIRE_FAKE_NCCL, RTLD_NOW | RTLD_LOCAL);
    QUIRE_CHECK(library != nullptr);
    auto get = reinterpret_cast<gpu::FakeNcclFunction>(dlsym(library, gpu::kFakeNcclSymbol));
    FakeNccl* opened = get();
    opened->enqueue = &Enqueue;
    opened->is_recording = &IsRecording;
    return opened;
  }();
  return fake;
}

const GpuApi& FakeNcclApi() {
  static const GpuApi& locked = []() -> const GpuApi& {
    FakeNcclLibrary();
    static GpuApi api = *quire_gpu_api();
    api.open_nccl = [](const char*) { return gpu::OpenNccl(QUIRE_FAKE_NCCL); };
    api.is_gemm_planned = &IsPlanned;
    api.run_gemm = &PlanAndRun;
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
