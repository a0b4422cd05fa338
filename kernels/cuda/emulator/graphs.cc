// Graphs of runtime.h: operations recorded with their arguments, to be run later.
#include <algorithm>
#include <map>
#include <memory>
#include <optional>
#include <utility>

#include "kernels/cuda/emulator/early_start.h"
#include "kernels/cuda/emulator/emulator.h"
#include "kernels/cuda/emulator/memory.h"
#include "kernels/cuda/emulator/streams.h"
#include "kernels/cuda/runtime.h"

namespace quire::gpu {
namespace emulator {
namespace {

thread_local Recording* current_recording = nullptr;

// Device memory that each recorded operation takes.
constexpr size_t kBytesPerOperation = 4096;

struct GraphState {
  GraphState(int32_t on_device, std::vector<Operation> recorded)
      : device(on_device), operations(std::move(recorded)) {}
  ~GraphState() {
    if (const std::optional<Allocation> found = FindAllocation(memory); found.has_value()) {
      FreeMemory(*found);
    }
  }
  GraphState(const GraphState&) = delete;
  GraphState& operator=(const GraphState&) = delete;

  const int32_t device;
  const std::vector<Operation> operations;
  void* memory = nullptr;

  bool NeedsRanks() const {
    return std::any_of(operations.begin(), operations.end(), [](const Operation& each) {
      return each.is_ready != nullptr;
    });
  }
  // Stops at the first error.
  int Run() const {
    for (size_t i = 0; i < operations.size(); ++i) {
      const Operation* next = i + 1 < operations.size() ? &operations[i + 1] : nullptr;
      if (const int error = RunOperationBefore(operations[i], next); error != 0) {
        return error;
      }
    }
    return 0;
  }
};

// Never destroyed, because static objects of a program can destroy graphs after main returns. Each
// enqueued launch shares ownership of its graph's state, so that a graph can be destroyed before
// its launches are done.
std::map<void*, std::shared_ptr<const GraphState>>& AllGraphs() {
  static auto& graphs = *new std::map<void*, std::shared_ptr<const GraphState>>();
  return graphs;
}

}  // namespace

int RefuseWhileRecording() {
  if (current_recording == nullptr) {
    return 0;
  }
  current_recording->is_invalid = true;
  return kErrorCaptureUnsupported;
}

}  // namespace emulator

int BeginGraph(Stream stream) {
  emulator::StreamQueue* queue = emulator::FindStream(stream);
  if (queue == nullptr) {
    return emulator::kErrorInvalidResourceHandle;
  }
  if (queue->is_default()) {
    return emulator::kErrorCaptureUnsupported;
  }
  if (queue->recording != nullptr || emulator::current_recording != nullptr) {
    return emulator::kErrorInvalidValue;
  }
  queue->recording = std::make_unique<emulator::Recording>();
  emulator::current_recording = queue->recording.get();
  return 0;
}

int EndGraph(Stream stream, Graph* graph) {
  *graph = nullptr;
  emulator::StreamQueue* queue = emulator::FindStream(stream);
  if (queue == nullptr || queue->recording == nullptr) {
    return emulator::kErrorInvalidValue;
  }
  if (queue->recording->thread != std::this_thread::get_id()) {
    return emulator::kErrorCaptureWrongThread;
  }
  const std::unique_ptr<emulator::Recording> recorded = std::move(queue->recording);
  emulator::current_recording = nullptr;
  if (recorded->is_invalid) {
    return emulator::kErrorCaptureInvalidated;
  }
  auto made =
      std::make_shared<emulator::GraphState>(queue->device(), std::move(recorded->operations));
  const size_t bytes = made->operations.size() * emulator::kBytesPerOperation;
  if (const int error = emulator::AllocateMemory(made->device, &made->memory, bytes); error != 0) {
    return error;
  }
  *graph = made.get();
  emulator::AllGraphs()[*graph] = std::move(made);
  return 0;
}

int LaunchGraph(Graph graph, Stream stream) {
  auto found = emulator::AllGraphs().find(graph);
  emulator::StreamQueue* queue = emulator::FindStream(stream);
  if (found == emulator::AllGraphs().end() || queue == nullptr ||
      found->second->device != queue->device()) {
    return emulator::kErrorInvalidResourceHandle;
  }
  if (const int error = queue->RefuseIfRecorded(); error != 0) {
    return error;
  }
  const std::shared_ptr<const emulator::GraphState> state = found->second;
  if (!state->NeedsRanks()) {
    return emulator::Enqueue(stream,
                             {.name = "LaunchGraph", .run = [state] { return state->Run(); }});
  }
  // Enqueues each operation separately, because the stream must stop at each one that waits for
  // other ranks (Operation::is_ready).
  int error = 0;
  for (const emulator::Operation& recorded : state->operations) {
    emulator::Operation operation = recorded;
    operation.run = [state, run = recorded.run] { return run ? run() : 0; };
    error = error != 0 ? error : emulator::Enqueue(stream, std::move(operation));
  }
  return error;
}

int DestroyGraph(Graph graph) {
  return emulator::AllGraphs().erase(graph) == 0 ? emulator::kErrorInvalidResourceHandle : 0;
}

int IsRecording(Stream stream, bool* is_recording) {
  const emulator::StreamQueue* queue = emulator::FindStream(stream);
  *is_recording = queue != nullptr && queue->recording != nullptr;
  return queue == nullptr ? emulator::kErrorInvalidResourceHandle : 0;
}

}  // namespace quire::gpu
