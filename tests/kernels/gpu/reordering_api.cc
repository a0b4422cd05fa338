#include "tests/kernels/gpu/reordering_api.h"

#include <cstring>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <utility>
#include <vector>

#include "common/base/check.h"
#include "tests/support/random.h"

namespace quire {
namespace {

using gpu::GpuApi;
using gpu::Stream;

struct QueuedEvent {
  uint64_t recorded = 0;  // how often, by the host
  uint64_t happened = 0;  // how often, on the streams
};

struct Task {
  std::function<int()> run;
  const QueuedEvent* event = nullptr;  // runs after the event's record of this number
  uint64_t record = 0;

  bool is_blocked() const { return event != nullptr && event->happened < record; }
};

struct Queue {
  bool computes = false;
  std::deque<Task> tasks;
};

struct State {
  State(const GpuApi& below_api, StreamOrder stream_order, uint64_t seed)
      : below(below_api), order(stream_order), random(seed) {}

  const GpuApi& below;
  const StreamOrder order;
  Random random;
  std::vector<std::unique_ptr<Queue>> queues;
  std::set<std::unique_ptr<QueuedEvent>> events;
  std::map<const std::byte*, size_t> pinned;
  bool is_recording = false;
  int error = 0;

  bool RunOne(Queue& queue) {
    if (queue.tasks.empty() || queue.tasks.front().is_blocked()) {
      return false;
    }
    Task task = std::move(queue.tasks.front());
    queue.tasks.pop_front();
    const int result = task.run ? task.run() : 0;
    error = error != 0 ? error : result;
    return true;
  }

  void RunAll(bool computing) {
    bool has_run = true;
    while (has_run) {
      has_run = false;
      for (auto& queue : queues) {
        has_run = (queue->computes == computing && RunOne(*queue)) || has_run;
      }
    }
  }

  // After something was enqueued.
  void RunSome() {
    switch (order) {
      case StreamOrder::kCopiesLate:
        RunAll(/*computing=*/true);
        break;
      case StreamOrder::kCopiesEarly:
        RunAll(/*computing=*/false);
        break;
      case StreamOrder::kRandom:
        for (int32_t i = random.Below(4); i > 0; --i) {
          RunOne(*queues[static_cast<size_t>(random.Below(static_cast<int32_t>(queues.size())))]);
        }
        break;
    }
  }

  // No more than is needed: what blocks the stream runs first.
  template <typename Done>
  void RunUntil(Queue& queue, const Done& done) {
    while (!done()) {
      if (RunOne(queue)) {
        continue;
      }
      QUIRE_CHECK(!queue.tasks.empty());  // else nobody will ever do it
      bool has_run = false;
      for (auto& other : queues) {
        has_run = has_run || (other.get() != &queue && RunOne(*other));
      }
      QUIRE_CHECK(has_run);  // else the streams wait for each other
    }
  }

  int Enqueue(Stream stream, std::function<int()> run) {
    if (is_recording) {
      return run();
    }
    auto* queue = static_cast<Queue*>(stream);
    queue->tasks.push_back({.run = std::move(run)});
    RunSome();
    return std::exchange(error, 0);
  }

  bool IsPinned(const void* memory) const {
    auto after = pinned.upper_bound(static_cast<const std::byte*>(memory));
    return after != pinned.begin() && static_cast<const std::byte*>(memory) <
                                          std::prev(after)->first + std::prev(after)->second;
  }
};

State* state = nullptr;

// A function of the api below that takes one struct and a stream.
template <typename Args, int (*GpuApi::*kFunction)(const Args&, Stream)>
int Later(const Args& args, Stream stream) {
  return state->Enqueue(stream, [args] { return (state->below.*kFunction)(args, nullptr); });
}

int RunGemmLater(void* gemm, const gpu::GemmArgs& args, Stream stream) {
  return state->Enqueue(stream,
                        [gemm, args] { return state->below.run_gemm(gemm, args, nullptr); });
}

int AllocatePinned(void** pointer, size_t bytes) {
  const int error = state->below.allocate_pinned(pointer, bytes);
  if (error == 0) {
    state->pinned[static_cast<const std::byte*>(*pointer)] = bytes;
  }
  return error;
}

// Does not wait: whoever frees what a copy still needs is found by ASan.
int FreePinned(void* pointer) {
  state->pinned.erase(static_cast<const std::byte*>(pointer));
  return state->below.free_pinned(pointer);
}

// Waits for the device, as cudaFree does.
int Free(void* pointer) {
  for (auto& queue : state->queues) {
    state->RunUntil(*queue, [&queue] { return queue->tasks.empty(); });
  }
  return state->below.free(pointer);
}

int CopyLater(void* to, const void* from, size_t bytes, Stream stream) {
  if (bytes == 0) {
    return 0;
  }
  return state->Enqueue(stream, [to, from, bytes] {
    memcpy(to, from, bytes);
    return 0;
  });
}

int CopyToDevice(void* device, const void* host, size_t bytes, Stream stream) {
  if (state->IsPinned(host)) {
    return CopyLater(device, host, bytes, stream);
  }
  const auto* first = static_cast<const std::byte*>(host);
  return state->Enqueue(stream, [device, read = std::vector<std::byte>(first, first + bytes)] {
    memcpy(device, read.data(), read.size());
    return 0;
  });
}

int CopyMany(
    void* const* to, const void* const* from, const size_t* bytes, size_t count, Stream stream) {
  for (size_t i = 0; i < count; ++i) {
    CopyLater(to[i], from[i], bytes[i], stream);
  }
  return 0;
}

int FillBytes(void* device, int byte, size_t bytes, Stream stream) {
  return state->Enqueue(stream,
                        [=] { return state->below.fill_bytes(device, byte, bytes, nullptr); });
}

int CreateStream(Stream* stream) {
  state->queues.push_back(std::make_unique<Queue>());
  state->queues.back()->computes = state->queues.size() == 1;
  *stream = state->queues.back().get();
  return 0;
}

int Synchronize(Stream stream) {
  auto* queue = static_cast<Queue*>(stream);
  state->RunUntil(*queue, [queue] { return queue->tasks.empty(); });
  return std::exchange(state->error, 0);
}

int DestroyStream(Stream stream) {
  const int error = Synchronize(stream);
  std::erase_if(state->queues, [stream](const auto& queue) { return queue.get() == stream; });
  return error;
}

int CreateEvent(gpu::Event* event) {
  *event = state->events.insert(std::make_unique<QueuedEvent>()).first->get();
  return 0;
}

int DestroyEvent(gpu::Event event) {
  std::erase_if(state->events, [event](const auto& other) { return other.get() == event; });
  return 0;
}

int RecordEvent(gpu::Event event, Stream stream) {
  auto* queued = static_cast<QueuedEvent*>(event);
  const uint64_t record = ++queued->recorded;
  return state->Enqueue(stream, [queued, record] {
    queued->happened = std::max(queued->happened, record);
    return 0;
  });
}

int WaitForEvent(gpu::Event event, Stream stream) {
  const auto* queued = static_cast<const QueuedEvent*>(event);
  static_cast<Queue*>(stream)->tasks.push_back(
      {.run = nullptr, .event = queued, .record = queued->recorded});
  state->RunSome();
  return 0;
}

int QueryEvent(gpu::Event event, bool* has_happened) {
  const auto* queued = static_cast<const QueuedEvent*>(event);
  *has_happened = queued->happened == queued->recorded;
  return 0;
}

int SynchronizeEvent(gpu::Event event) {
  const auto* queued = static_cast<const QueuedEvent*>(event);
  for (auto& queue : state->queues) {
    state->RunUntil(*queue,
                    [&] { return queued->happened == queued->recorded || queue->tasks.empty(); });
  }
  return std::exchange(state->error, 0);
}

int BeginGraph(Stream /*stream*/) {
  state->is_recording = true;
  return state->below.begin_graph(nullptr);
}

int EndGraph(Stream /*stream*/, gpu::Graph* graph) {
  state->is_recording = false;
  return state->below.end_graph(nullptr, graph);
}

int LaunchGraph(gpu::Graph graph, Stream stream) {
  return state->Enqueue(stream, [graph] { return state->below.launch_graph(graph, nullptr); });
}

GpuApi Reordering(const GpuApi& below) {
  GpuApi api = below;
  api.allocate_pinned = &AllocatePinned;
  api.free_pinned = &FreePinned;
  api.free = &Free;
  api.copy_to_device = &CopyToDevice;
  api.copy_to_host = &CopyLater;
  api.copy_many = &CopyMany;
  api.fill_bytes = &FillBytes;
  api.create_stream = &CreateStream;
  api.destroy_stream = &DestroyStream;
  api.synchronize = &Synchronize;
  api.create_event = &CreateEvent;
  api.destroy_event = &DestroyEvent;
  api.record_event = &RecordEvent;
  api.wait_for_event = &WaitForEvent;
  api.query_event = &QueryEvent;
  api.synchronize_event = &SynchronizeEvent;
  api.begin_graph = &BeginGraph;
  api.end_graph = &EndGraph;
  api.launch_graph = &LaunchGraph;
  api.run_gemm = &RunGemmLater;
  api.embed = &Later<gpu::EmbedArgs, &GpuApi::embed>;
  api.norm = &Later<gpu::NormArgs, &GpuApi::norm>;
  api.activate = &Later<gpu::ActivateArgs, &GpuApi::activate>;
  api.prepare_attention = &Later<gpu::PrepareAttentionArgs, &GpuApi::prepare_attention>;
  api.plan_decode = &Later<gpu::PlanDecodeArgs, &GpuApi::plan_decode>;
  api.decode = &Later<gpu::DecodeArgs, &GpuApi::decode>;
  api.prefill = &Later<gpu::PrefillArgs, &GpuApi::prefill>;
  api.copy_blocks = &Later<gpu::CopyBlocksArgs, &GpuApi::copy_blocks>;
  api.quantize_rows = &Later<gpu::QuantizeRowsArgs, &GpuApi::quantize_rows>;
  api.sample = &Later<gpu::SampleArgs, &GpuApi::sample>;
  return api;
}

}  // namespace

ReorderingApi::ReorderingApi(const GpuApi& below, StreamOrder order, uint64_t seed)
    : api_(Reordering(below)) {
  QUIRE_CHECK(state == nullptr);
  state = new State(below, order, seed);
}

ReorderingApi::~ReorderingApi() {
  QUIRE_CHECK(state->queues.empty() && state->events.empty());
  delete std::exchange(state, nullptr);
}

}  // namespace quire
