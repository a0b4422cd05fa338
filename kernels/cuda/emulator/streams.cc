#include "kernels/cuda/emulator/streams.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "kernels/cuda/emulator/early_start.h"
#include "kernels/cuda/emulator/emulator.h"
#include "kernels/cuda/emulator/places.h"

namespace quire::gpu::emulator {
namespace {

constexpr uint8_t kInFlight = 0xFF;

using Streams = std::vector<std::unique_ptr<StreamQueue>>;

// The default streams of the devices come first. Never destroyed, because static objects of a
// program can destroy streams after main returns.
Streams& AllStreams() {
  static Streams& streams = *[] {
    auto* made = new Streams();
    for (int32_t device = 0; device < kNumDevices; ++device) {
      made->push_back(std::make_unique<StreamQueue>(device, /*runs_at_once=*/true));
    }
    return made;
  }();
  return streams;
}

thread_local const References* references_now = nullptr;

bool IsInFlight(const HostCopy& copy) {
  const auto* to = static_cast<const uint8_t*>(copy.to);
  return std::all_of(to, to + copy.bytes, [](uint8_t byte) { return byte == kInFlight; });
}

}  // namespace

int RunOperation(const Operation& operation) {
  if (!operation.references.AreAllocated()) {
    return ReportStreamFault(FaultKind::kFreedMemory,
                             operation.name,
                             "an operation refers to memory that was freed after it was recorded "
                             "or enqueued");
  }
  const References* const outer = std::exchange(references_now, &operation.references);
  const int error = operation.run ? operation.run() : 0;
  references_now = outer;
  return error;
}

const References* ReferencesNow() { return references_now; }

int Enqueue(void* stream, Operation operation) {
  StreamQueue* queue = FindStream(stream);
  if (queue == nullptr || queue->device() != CurrentDevice()) {
    return kErrorInvalidResourceHandle;
  }
  if (!operation.references.AreReachableFrom(queue->device())) {
    return kErrorIllegalAddress;
  }
  return queue->Add(std::move(operation));
}

// ---- StreamQueue --------------------------------------------------------------------------------

int StreamQueue::Add(Operation operation) {
  if (recording != nullptr) {
    const int error = RecordingError();
    if (error == 0) {
      recording->operations.push_back(std::move(operation));
    }
    return error;
  }
  Push({.operation = std::move(operation)});
  if (!runs_at_once_) {
    return 0;
  }
  RunAll();
  return TakeError();
}

int StreamQueue::RecordingError() const {
  return recording != nullptr && recording->is_invalid ? kErrorCaptureInvalidated : 0;
}

int StreamQueue::RefuseIfRecorded() {
  if (recording == nullptr) {
    return 0;
  }
  recording->is_invalid = true;
  return kErrorCaptureUnsupported;
}

void StreamQueue::AddCopies(Operation operation, std::vector<HostCopy> copies) {
  Push({.operation = std::move(operation), .copies = std::move(copies)});
}

std::shared_ptr<Mark> StreamQueue::AddMark() {
  auto mark = std::make_shared<Mark>(Mark{.stream = this});
  Push({.mark = mark});
  return mark;
}

void StreamQueue::AddWait(std::shared_ptr<Mark> mark) { Push({.awaited = std::move(mark)}); }

void StreamQueue::Push(Task task) {
  task.num_place_changes = NumPlaceChanges();
  tasks_.push_back(std::move(task));
  SettleAll();
}

void StreamQueue::RunUntil(const Mark& mark) {
  while (!mark.has_happened) {
    RunFirst();
  }
}

void StreamQueue::RunUntilBlocked(const Mark& mark) {
  while (!mark.has_happened && IsFirstReady()) {
    if (const auto awaited = tasks_.front().awaited; awaited != nullptr) {
      awaited->stream->RunUntilBlocked(*awaited);
      if (!awaited->has_happened) {
        return;
      }
    } else {
      RunFirst();
    }
  }
}

bool StreamQueue::IsFirstReady() const {
  const Operation& first = tasks_.front().operation;
  return first.is_ready == nullptr || first.is_ready();
}

void StreamQueue::RunAll() {
  while (!tasks_.empty()) {
    RunFirst();
  }
}

int StreamQueue::TakeError() { return std::exchange(error_, 0); }

void StreamQueue::RunFirst() {
  // A mark is put on its stream before any wait for it, so no streams wait in a circle. The
  // shared_ptr keeps the mark alive after its stream has dropped it.
  if (const std::shared_ptr<Mark> awaited = tasks_.front().awaited; awaited != nullptr) {
    // RunUntil also removes this stream's wait: after each task it calls SettleAll, which drops
    // waits whose mark has happened.
    awaited->stream->RunUntil(*awaited);
    return;
  }
  const bool is_ready = IsFirstReady();
  const Task task = std::move(tasks_.front());
  tasks_.pop_front();
  const int error =
      is_ready
          ? Run(task, tasks_.empty() ? nullptr : &tasks_.front().operation)
          : ReportStreamFault(
                FaultKind::kDeadlock,
                task.operation.name,
                "is waited for without a timeout, although it needs ranks that have not joined");
  error_ = error_ != 0 ? error_ : error;
  SettleAll();
}

int StreamQueue::Run(const Task& task, const Operation* next) {
  const RunningOperation running(task.num_place_changes);
  return task.copies.empty() ? RunOperationBefore(task.operation, next) : Land(task);
}

bool StreamQueue::Settle() {
  bool has_marked = false;
  while (!tasks_.empty()) {
    Task& first = tasks_.front();
    if (first.mark != nullptr) {
      first.mark->has_happened = true;
      first.mark->time = std::chrono::steady_clock::now();
      has_marked = true;
    } else if (first.awaited == nullptr || !first.awaited->has_happened) {
      break;
    }
    tasks_.pop_front();
  }
  if (!tasks_.empty()) {
    Begin(&tasks_.front());
  }
  return has_marked;
}

void StreamQueue::SettleAll() {
  bool has_marked = true;
  while (has_marked) {
    has_marked = false;
    for (const auto& stream : AllStreams()) {
      has_marked = stream->Settle() || has_marked;
    }
  }
}

void StreamQueue::Begin(Task* task) {
  if (task->has_begun || task->copies.empty() || !task->operation.references.AreAllocated()) {
    return;
  }
  task->has_begun = true;
  for (const HostCopy& copy : task->copies) {
    const auto* from = static_cast<const std::byte*>(copy.from);
    task->sources.emplace_back(from, from + copy.bytes);
  }
  for (const HostCopy& copy : task->copies) {
    memset(copy.to, kInFlight, copy.bytes);
  }
}

int StreamQueue::Land(const Task& task) {
  const char* name = task.operation.name;
  if (!task.operation.references.AreAllocated()) {
    return RunOperation(task.operation);
  }
  for (size_t i = 0; i < task.copies.size(); ++i) {
    const HostCopy& copy = task.copies[i];
    if (memcmp(copy.from, task.sources[i].data(), copy.bytes) != 0) {
      return ReportStreamFault(FaultKind::kChangedInFlight,
                               name,
                               "the source of a copy was written before the copy was waited for");
    }
    if (!IsInFlight(copy)) {
      return ReportStreamFault(
          FaultKind::kChangedInFlight,
          name,
          "the destination of a copy was written before the copy was waited for");
    }
    memcpy(copy.to, copy.from, copy.bytes);
  }
  return 0;
}

// ---- All streams --------------------------------------------------------------------------------

StreamQueue* FindStream(void* handle) {
  Streams& streams = AllStreams();
  if (handle == nullptr) {
    return streams[static_cast<size_t>(CurrentDevice())].get();
  }
  auto found = std::find_if(streams.begin() + kNumDevices,
                            streams.end(),
                            [handle](const auto& each) { return each.get() == handle; });
  return found == streams.end() ? nullptr : found->get();
}

void* NewStream() {
  AllStreams().push_back(std::make_unique<StreamQueue>(CurrentDevice(), /*runs_at_once=*/false));
  return AllStreams().back().get();
}

void EraseStream(StreamQueue* stream) {
  std::erase_if(AllStreams(), [stream](const auto& each) { return each.get() == stream; });
}

void RunAllStreams(int32_t device) {
  for (const auto& stream : AllStreams()) {
    if (stream->device() == device) {
      stream->RunAll();
    }
  }
}

}  // namespace quire::gpu::emulator
