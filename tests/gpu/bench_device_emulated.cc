#include <chrono>
#include <cstring>

#include "kernels/cuda/emulator/emulator.h"
#include "tests/gpu/bench_device.h"

namespace quire::gpu {
namespace {

using Clock = std::chrono::steady_clock;

}  // namespace

int QueryFacts(DeviceFacts* facts) {
  *facts = {};
  return 0;
}

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

int ElapsedMilliseconds(Event begin, Event end, float* milliseconds) {
  const auto elapsed =
      *static_cast<Clock::time_point*>(end) - *static_cast<Clock::time_point*>(begin);
  *milliseconds = std::chrono::duration<float, std::milli>(elapsed).count();
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

int CopyMany(void* const* to,
             const void* const* from,
             const size_t* bytes,
             size_t count,
             Stream /*stream*/) {
  for (size_t i = 0; i < count; ++i) {
    memcpy(to[i], from[i], bytes[i]);
  }
  return 0;
}

}  // namespace quire::gpu
