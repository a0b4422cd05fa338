#include <cstring>

#include "kernels/cuda/device_group.h"
#include "kernels/cuda/emulator/emulator.h"
#include "kernels/cuda/emulator/memory.h"
#include "kernels/cuda/emulator/streams.h"
#include "kernels/cuda/runtime.h"

namespace quire::gpu {
namespace emulator {
namespace {

thread_local int32_t current_device = 0;

bool IsDevice(int32_t device) { return device >= 0 && device < kNumDevices; }

}  // namespace

int32_t CurrentDevice() { return current_device; }

}  // namespace emulator

int CountDevices(int32_t* count) {
  *count = emulator::kNumDevices;
  return 0;
}

int SetDevice(int32_t device) {
  if (!emulator::IsDevice(device)) {
    return emulator::kErrorInvalidDevice;
  }
  emulator::current_device = device;
  return 0;
}

int QueryDevice(int32_t device, DeviceInfo* info) {
  if (!emulator::IsDevice(device)) {
    return emulator::kErrorInvalidDevice;
  }
  strncpy(info->name, "emulator", sizeof(info->name) - 1);
  info->uuid[0] = static_cast<uint8_t>(device + 1);
  info->index = device;
  info->compute_capability = 90;
  info->num_multiprocessors = 1;
  info->total_bytes = emulator::kDeviceBytes;
  info->free_bytes = emulator::kDeviceBytes - emulator::NumUsedBytes(device);
  return 0;
}

const char* ErrorText(int error) {
  switch (error) {
    case 0:
      return "no error";
    case kUnsupported:
      return "no kernel for this type or head_dim";
    case kNoNccl:
      return "emulated devices have no NCCL";
    case emulator::kErrorInvalidValue:
      return "invalid argument";
    case emulator::kErrorMemoryAllocation:
      return "out of memory";
    case emulator::kErrorInvalidConfiguration:
      return "invalid configuration argument";
    case emulator::kErrorInvalidDevice:
      return "invalid device ordinal";
    case emulator::kErrorInvalidResourceHandle:
      return "no such stream, event or graph on the current device";
    case emulator::kErrorIllegalAddress:
      return "memory of another device";
    case emulator::kErrorLaunchFailure:
      return "a fault in a kernel or on a stream, reported when it happened";
    case emulator::kErrorCaptureUnsupported:
      return "not allowed while recording a graph";
    case emulator::kErrorCaptureInvalidated:
      return "the recording became invalid by what was called during it";
    case emulator::kErrorCaptureIsolation:
      return "a recorded stream waits for an event that is not recorded";
    case emulator::kErrorCapturedEvent:
      return "the event was last recorded in a graph";
    case emulator::kErrorCaptureWrongThread:
      return "another thread began the recording";
    default:
      return error <= kNcclError ? "NCCL failed" : "unknown error";
  }
}

}  // namespace quire::gpu
