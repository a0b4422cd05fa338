// Streams and events of runtime.h.
#include <chrono>
#include <map>
#include <memory>

#include "kernels/cuda/emulator/emulator.h"
#include "kernels/cuda/emulator/streams.h"
#include "kernels/cuda/runtime.h"

namespace quire::gpu {
namespace emulator {
namespace {

// Number of queries that QueryEvent answers with "not happened" before it runs the stream. With 0,
// tests would not find a caller that queries only once.
constexpr int kNumPatientQueries = 2;

struct EventState {
  int32_t device = 0;
  bool is_timed = false;
  // The point on a stream. Null if the event was never recorded: such an event counts as happened.
  std::shared_ptr<Mark> mark;
  bool is_captured = false;  // whether the last RecordEvent was recorded in a graph
};

// Never destroyed, because static objects of a program can destroy events after main returns.
std::map<void*, std::unique_ptr<EventState>>& AllEvents() {
  static auto& events = *new std::map<void*, std::unique_ptr<EventState>>();
  return events;
}

EventState* FindEvent(void* handle) {
  auto found = AllEvents().find(handle);
  return found == AllEvents().end() ? nullptr : found->second.get();
}

int MakeEvent(bool is_timed, Event* event) {
  auto made = std::make_unique<EventState>();
  made->device = CurrentDevice();
  made->is_timed = is_timed;
  *event = made.get();
  AllEvents()[*event] = std::move(made);
  return 0;
}

// Returns 0 if the host is allowed to query the event or wait for it, else an error.
int CheckAskedByHost(const EventState* event) {
  if (event == nullptr) {
    return kErrorInvalidResourceHandle;
  }
  if (event->is_captured) {
    RefuseWhileRecording();
    return kErrorCapturedEvent;
  }
  return 0;
}

}  // namespace
}  // namespace emulator

int CreateStream(Stream* stream) {
  *stream = emulator::NewStream();
  return 0;
}

// Operations that were enqueued before the call still run, as on a GPU.
int DestroyStream(Stream stream) {
  emulator::StreamQueue* queue = stream == nullptr ? nullptr : emulator::FindStream(stream);
  if (queue == nullptr) {
    return emulator::kErrorInvalidResourceHandle;
  }
  if (const int error = queue->RefuseIfRecorded(); error != 0) {
    return error;
  }
  queue->RunAll();
  const int error = queue->TakeError();
  emulator::EraseStream(queue);
  return error;
}

int Synchronize(Stream stream) {
  emulator::StreamQueue* queue = emulator::FindStream(stream);
  if (queue == nullptr) {
    return emulator::kErrorInvalidResourceHandle;
  }
  if (const int error = queue->RefuseIfRecorded(); error != 0) {
    return error;
  }
  queue->RunAll();
  return queue->TakeError();
}

int CreateEvent(Event* event) { return emulator::MakeEvent(/*is_timed=*/false, event); }

int CreateTimedEvent(Event* event) { return emulator::MakeEvent(/*is_timed=*/true, event); }

int DestroyEvent(Event event) {
  return emulator::AllEvents().erase(event) == 0 ? emulator::kErrorInvalidResourceHandle : 0;
}

int RecordEvent(Event event, Stream stream) {
  emulator::EventState* state = emulator::FindEvent(event);
  emulator::StreamQueue* queue = emulator::FindStream(stream);
  if (state == nullptr || queue == nullptr || state->device != queue->device()) {
    return emulator::kErrorInvalidResourceHandle;
  }
  state->is_captured = queue->recording != nullptr;
  if (state->is_captured) {
    return queue->RecordingError();
  }
  state->mark = queue->AddMark();
  return 0;
}

int WaitForEvent(Event event, Stream stream) {
  const emulator::EventState* state = emulator::FindEvent(event);
  emulator::StreamQueue* queue = emulator::FindStream(stream);
  if (state == nullptr || queue == nullptr) {
    return emulator::kErrorInvalidResourceHandle;
  }
  if (!state->is_captured && queue->RefuseIfRecorded() != 0) {
    return emulator::kErrorCaptureIsolation;
  }
  if (queue->recording != nullptr) {
    // The event was recorded on the same stream, whose order makes the wait unnecessary.
    return queue->RecordingError();
  }
  // In CUDA this wait would add `stream` to the graph that the event was recorded in. The emulator
  // refuses the wait.
  if (state->is_captured) {
    emulator::RefuseWhileRecording();
    return emulator::kErrorCaptureUnsupported;
  }
  if (state->mark != nullptr) {
    queue->AddWait(state->mark);
  }
  return 0;
}

int QueryEvent(Event event, bool* has_happened) {
  *has_happened = false;
  const emulator::EventState* state = emulator::FindEvent(event);
  if (const int error = emulator::CheckAskedByHost(state); error != 0) {
    return error;
  }
  emulator::Mark* mark = state->mark.get();
  *has_happened = mark == nullptr || mark->has_happened;
  if (*has_happened || ++mark->num_queries <= emulator::kNumPatientQueries) {
    return 0;
  }
  emulator::StreamQueue* queue = mark->stream;
  queue->RunUntilBlocked(*mark);
  *has_happened = mark->has_happened;
  return *has_happened ? queue->TakeError() : 0;
}

int SynchronizeEvent(Event event) {
  const emulator::EventState* state = emulator::FindEvent(event);
  const int error = emulator::CheckAskedByHost(state);
  if (error != 0 || state->mark == nullptr || state->mark->has_happened) {
    return error;
  }
  emulator::StreamQueue* queue = state->mark->stream;
  queue->RunUntil(*state->mark);
  return queue->TakeError();
}

int ElapsedMilliseconds(Event begin, Event end, float* milliseconds) {
  const emulator::EventState* first = emulator::FindEvent(begin);
  const emulator::EventState* last = emulator::FindEvent(end);
  if (first == nullptr || last == nullptr || first->device != last->device || !first->is_timed ||
      !last->is_timed || first->mark == nullptr || last->mark == nullptr) {
    return emulator::kErrorInvalidResourceHandle;
  }
  if (!first->mark->has_happened || !last->mark->has_happened) {
    return emulator::kErrorNotReady;
  }
  const auto elapsed = last->mark->time - first->mark->time;
  *milliseconds = std::chrono::duration<float, std::milli>(elapsed).count();
  return 0;
}

}  // namespace quire::gpu
