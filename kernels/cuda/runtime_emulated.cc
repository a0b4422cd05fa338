#include <chrono>
#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>

#include "kernels/cuda/emulator/emulator.h"
#include "kernels/cuda/runtime.h"

namespace quire::gpu {
namespace {

// The memory of the emulated device: enough for small models, and small enough to fill in a test.
constexpr int64_t kDeviceBytes = int64_t{1} << 30;

using Clock = std::chrono::steady_clock;

std::mutex memory_mutex;
int64_t used_bytes = 0;
std::map<void*, int64_t> sizes;

}  // namespace

int QueryDevice(int32_t device, DeviceInfo* info) {
  if (device != 0) {
    return emulator::kErrorInvalidValue;
  }
  strncpy(info->name, "emulator", sizeof(info->name) - 1);
  info->compute_capability = 90;
  info->num_multiprocessors = 1;
  info->total_bytes = kDeviceBytes;
  const std::lock_guard<std::mutex> lock(memory_mutex);
  info->free_bytes = kDeviceBytes - used_bytes;
  return 0;
}

// Of the exact size: ASan sees where it ends.
int Allocate(void** pointer, size_t bytes) {
  constexpr size_t kAlignment = 256;
  constexpr int kPoison = 0xFF;
  *pointer = nullptr;
  if (bytes == 0) {
    return 0;
  }
  const std::lock_guard<std::mutex> lock(memory_mutex);
  const bool fits = static_cast<int64_t>(bytes) <= kDeviceBytes - used_bytes;
  if (!fits || posix_memalign(pointer, kAlignment, bytes) != 0) {
    return emulator::kErrorMemoryAllocation;
  }
  used_bytes += static_cast<int64_t>(bytes);
  sizes[*pointer] = static_cast<int64_t>(bytes);
  memset(*pointer, kPoison, bytes);
  return 0;
}

int Free(void* pointer) {
  const std::lock_guard<std::mutex> lock(memory_mutex);
  if (const auto found = sizes.find(pointer); found != sizes.end()) {
    used_bytes -= found->second;
    sizes.erase(found);
  }
  free(pointer);
  return 0;
}

int AllocatePinned(void** pointer, size_t bytes) { return Allocate(pointer, bytes); }

int FreePinned(void* pointer) { return Free(pointer); }

int CopyToDevice(void* device, const void* host, size_t bytes, Stream /*stream*/) {
  if (bytes != 0) {
    memcpy(device, host, bytes);
  }
  return 0;
}

int CopyToHost(void* host, const void* device, size_t bytes, Stream /*stream*/) {
  if (bytes != 0) {
    memcpy(host, device, bytes);
  }
  return 0;
}

int CopyMany(
    void* const* to, const void* const* from, const size_t* bytes, size_t count, Stream stream) {
  for (size_t i = 0; i < count; ++i) {
    CopyToHost(to[i], from[i], bytes[i], stream);
  }
  return 0;
}

int CopyOnDevice(void* to, const void* from, size_t bytes, Stream stream) {
  if (emulator::Record* record = emulator::CurrentRecord(); record != nullptr) {
    record->push_back([=] { return CopyOnDevice(to, from, bytes, stream); });
    return 0;
  }
  memmove(to, from, bytes);
  return 0;
}

int FillBytes(void* device, int byte, size_t bytes, Stream /*stream*/) {
  if (bytes != 0) {
    memset(device, byte, bytes);
  }
  return 0;
}

int Synchronize(Stream /*stream*/) { return 0; }

int CreateStream(Stream* stream) {
  *stream = nullptr;
  return 0;
}

int DestroyStream(Stream /*stream*/) { return 0; }

// Everything is done when its call returns: of an event only the time is left.
int CreateEvent(Event* event) {
  *event = new Clock::time_point();
  return 0;
}

int DestroyEvent(Event event) {
  delete static_cast<Clock::time_point*>(event);
  return 0;
}

int RecordEvent(Event event, Stream /*stream*/) {
  *static_cast<Clock::time_point*>(event) = Clock::now();
  return 0;
}

int WaitForEvent(Event /*event*/, Stream /*stream*/) { return 0; }

int QueryEvent(Event /*event*/, bool* has_happened) {
  *has_happened = true;
  return 0;
}

int SynchronizeEvent(Event /*event*/) { return 0; }

int ElapsedMilliseconds(Event begin, Event end, float* milliseconds) {
  const auto elapsed =
      *static_cast<Clock::time_point*>(end) - *static_cast<Clock::time_point*>(begin);
  *milliseconds = std::chrono::duration<float, std::milli>(elapsed).count();
  return 0;
}

int BeginGraph(Stream /*stream*/) { return emulator::BeginRecord(); }

int EndGraph(Stream /*stream*/, Graph* graph) {
  *graph = emulator::EndRecord();
  return *graph == nullptr ? emulator::kErrorInvalidValue : 0;
}

int LaunchGraph(Graph graph, Stream /*stream*/) {
  return emulator::RunRecord(*static_cast<emulator::Record*>(graph));
}

int DestroyGraph(Graph graph) {
  delete static_cast<emulator::Record*>(graph);
  return 0;
}

int IsRecording(Stream /*stream*/, bool* is_recording) {
  *is_recording = emulator::CurrentRecord() != nullptr;
  return 0;
}

const char* ErrorText(int error) {
  switch (error) {
    case 0:
      return "no error";
    case kUnsupported:
      return "no kernel for this type or head_dim";
    case emulator::kErrorInvalidValue:
      return "invalid argument";
    case emulator::kErrorMemoryAllocation:
      return "out of memory";
    case emulator::kErrorInvalidConfiguration:
      return "invalid configuration argument";
    case emulator::kErrorLaunchFailure:
      return "a fault in a kernel, reported when it happened";
    default:
      return "unknown error";
  }
}

}  // namespace quire::gpu
