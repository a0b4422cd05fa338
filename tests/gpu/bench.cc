#include "tests/gpu/bench.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <utility>

#include "kernels/cuda/gemm.h"
#include "tests/gpu/bench_kernels.h"

namespace quire::gpu {
namespace {

constexpr int kRepeats = 21;
constexpr int kWarmUps = 3;
// Shorter runs of a graph are made longer by more calls: the clock of events ticks in half
// microseconds, and the host must enqueue a run in less time than the device takes for it.
constexpr double kMinRepeatUs = 400.0;
constexpr int kMaxCalls = 1024;
// Three times the 60 MB of an H200's L2 cache.
constexpr double kRotationBytes = 192e6;

}  // namespace

void Require(int error, const char* what) {
  if (error != 0) {
    fprintf(stderr, "gpu_bench: %s: error %d: %s\n", what, error, ErrorText(error));
    exit(EXIT_FAILURE);
  }
}

// ---- Buffer -------------------------------------------------------------------------------------

Buffer::Buffer(int64_t bytes) : bytes_(bytes) {
  if (bytes > 0) {
    Require(Allocate(&data_, static_cast<size_t>(bytes)), "allocate");
  }
  Poison();
}

Buffer::Buffer(Buffer&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)), bytes_(std::exchange(other.bytes_, 0)) {}

Buffer& Buffer::operator=(Buffer&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(bytes_, other.bytes_);
  return *this;
}

Buffer::~Buffer() {
  if (data_ != nullptr) {
    Require(Free(data_), "free");
  }
}

// The default stream is not ordered against the one that is measured on: wait.
void Buffer::Poison() {
  constexpr int kNan = 0xFF;
  if (bytes_ > 0) {
    Require(FillBytes(data_, kNan, static_cast<size_t>(bytes_), nullptr), "poison");
    Require(Synchronize(nullptr), "poison");
  }
}

void Buffer::FromHost(const void* values) {
  if (bytes_ > 0) {
    Require(CopyToDevice(data_, values, static_cast<size_t>(bytes_), nullptr), "upload");
    Require(Synchronize(nullptr), "upload");
  }
}

void Buffer::CopyOut(void* values) const {
  if (bytes_ > 0) {
    Require(CopyToHost(values, data_, static_cast<size_t>(bytes_), nullptr), "read back");
    Require(Synchronize(nullptr), "read back");
  }
}

PinnedBuffer::PinnedBuffer(int64_t bytes) {
  Require(AllocatePinned(&data_, static_cast<size_t>(bytes)), "allocate pinned");
  uint32_t state = 1;
  for (int64_t i = 0; i < bytes; ++i) {
    state = state * 1664525 + 1013904223;
    *at(i) = static_cast<uint8_t>(state >> 24);
  }
}

PinnedBuffer::~PinnedBuffer() { Require(FreePinned(data_), "free pinned"); }

// ---- Bench --------------------------------------------------------------------------------------

Bench::Bench(const BenchOptions& options)
    : options_(options),
      report_(options.json_path),
      ceilings_(options.ceilings),
      start_(std::chrono::steady_clock::now()) {
  Require(QueryDevice(0, &device_), "query device");
  Require(CreateStream(&stream_), "create stream");
  counter_.emplace(int64_t{sizeof(int32_t)});
  for (int i = 0; i < 2 * kRepeats; ++i) {
    Event event = nullptr;
    Require(CreateTimedEvent(&event), "create event");
    events_.push_back(event);
  }
  RaiseClocks();
}

Bench::~Bench() {
  for (Event event : events_) {
    DestroyEvent(event);
  }
  for (void* gemm : gemms_) {
    if (gemm != nullptr) {
      DestroyGemm(gemm);
    }
  }
  counter_.reset();
  DestroyStream(stream_);
}

// An idle GPU runs at a fraction of its clock and needs a while to leave it.
void Bench::RaiseClocks() {
  const double seconds = rehearse() ? 0.0 : 0.5;
  const auto begin = std::chrono::steady_clock::now();
  Buffer buffer(rehearse() ? 4096 : 256 << 20);
  std::chrono::duration<double> elapsed(0.0);
  do {
    Randomize(buffer.at(0), DType::kF32, buffer.bytes() / SizeOf(DType::kF32));
    elapsed = std::chrono::steady_clock::now() - begin;
  } while (elapsed.count() < seconds);
}

void* Bench::gemm(bool batch_invariant) {
  void*& gemm = gemms_[batch_invariant ? 1 : 0];
  if (gemm == nullptr && !gemm_is_missing_) {
    const int error = CreateGemm(
        {.batch_invariant = batch_invariant ? 1 : 0,
         .library_path = options_.library_path.empty() ? nullptr : options_.library_path.c_str()},
        &gemm);
    if (error == kNoGemmLibrary) {
      gemm_is_missing_ = true;
      report_.Say(std::string("products: ") + ErrorText(error));
      return nullptr;
    }
    Require(error, "create gemm");
  }
  return gemm;
}

bool Bench::IsOutOfTime() {
  const std::chrono::duration<double> elapsed = std::chrono::steady_clock::now() - start_;
  if (elapsed.count() < options_.limit_seconds) {
    return false;
  }
  if (!has_said_out_of_time_) {
    report_.Say("  out of time: what would follow is left out");
    has_said_out_of_time_ = true;
  }
  return true;
}

int Bench::NumSets(double bytes_a_set) const {
  if (rehearse()) {
    return 2;
  }
  const double sets = kRotationBytes / std::max(bytes_a_set, 1.0);
  return static_cast<int>(std::clamp(sets + 1.0, 1.0, 128.0));
}

int Bench::NumRepeats() const { return rehearse() ? 3 : kRepeats; }

void Bench::Wait() { Require(Synchronize(stream_), "wait"); }

// All repeats are enqueued before the first is waited for: the device goes from one to the next
// without a gap in which the host's work would count.
std::vector<double> Bench::TimeRepeats(int num_repeats,
                                       const std::function<void()>& run,
                                       const std::function<void()>& prepare) {
  for (int repeat = 0; repeat < num_repeats; ++repeat) {
    const auto at = static_cast<size_t>(2 * repeat);
    if (prepare != nullptr) {
      prepare();
    }
    Require(RecordEvent(events_[at], stream_), "record event");
    run();
    Require(RecordEvent(events_[at + 1], stream_), "record event");
  }
  Wait();
  std::vector<double> us;
  for (int repeat = 0; repeat < num_repeats; ++repeat) {
    const auto at = static_cast<size_t>(2 * repeat);
    float milliseconds = 0.0F;
    Require(ElapsedMilliseconds(events_[at], events_[at + 1], &milliseconds), "read event");
    us.push_back(double{milliseconds} * 1e3);
  }
  return us;
}

Timing Bench::Summarize(const std::vector<double>& us, int num_calls, int num_sets) const {
  std::vector<double> sorted = us;
  std::sort(sorted.begin(), sorted.end());
  return {.median_us = sorted[sorted.size() / 2] / num_calls,
          .min_us = sorted.front() / num_calls,
          .max_us = sorted.back() / num_calls,
          .num_repeats = static_cast<int>(sorted.size()),
          .num_calls = num_calls,
          .num_sets = num_sets};
}

Timing Bench::Measure(int num_sets, const Call& call, const std::function<void()>& prepare) {
  // Each set once: kernels are loaded, products find their algorithms, errors show.
  for (int set = 0; set < num_sets; ++set) {
    Require(call(set), "measured call");
  }
  Wait();
  auto record = [&](int num_calls) {
    Graph graph = nullptr;
    Require(BeginGraph(stream_), "begin graph");
    for (int i = 0; i < num_calls; ++i) {
      Require(call(i % num_sets), "measured call");
    }
    Require(EndGraph(stream_, &graph), "end graph");
    return graph;
  };

  Graph graph = record(num_sets);
  auto run = [&] { Require(LaunchGraph(graph, stream_), "launch graph"); };
  int num_calls = num_sets;
  const double estimate = TimeRepeats(kWarmUps, run, prepare).back();
  const double rounds = (rehearse() ? 2.0 * estimate : kMinRepeatUs) / std::max(estimate, 1.0);
  // With preparation a set is used only once a repeat, because prepare runs only before each
  // repeat.
  if (rounds > 1.0 && prepare == nullptr) {
    num_calls = std::min(kMaxCalls, num_sets * static_cast<int>(rounds + 1.0));
    Require(DestroyGraph(graph), "destroy graph");
    graph = record(num_calls);
    TimeRepeats(kWarmUps, run, prepare);
  }
  const std::vector<double> us = TimeRepeats(NumRepeats(), run, prepare);
  Require(DestroyGraph(graph), "destroy graph");
  return Summarize(us, num_calls, num_sets);
}

Timing Bench::MeasureEagerly(const Call& call) {
  auto run = [&] { Require(call(0), "measured call"); };
  TimeRepeats(kWarmUps, run, nullptr);
  return Summarize(TimeRepeats(NumRepeats(), run, nullptr), 1, 1);
}

// ---- Inputs and checks --------------------------------------------------------------------------

void Bench::Randomize(void* data, DType dtype, int64_t count, float scale) {
  constexpr uint64_t kSeedStep = 0xA0761D6478BD642F;
  Require(FillRandom(data, dtype, count, scale, next_seed_++ * kSeedStep, stream_), "fill");
  Wait();
}

Buffer Bench::RandomBuffer(DType dtype, int64_t count, float scale) {
  constexpr int64_t kMultiple = 8;
  const int64_t rounded = (count + kMultiple - 1) / kMultiple * kMultiple;
  Buffer buffer(rounded * SizeOf(dtype));
  Randomize(buffer.at(0), dtype, rounded, scale);
  return buffer;
}

bool Bench::IsFinite(const void* data, DType dtype, int64_t count) {
  Require(FillBytes(counter_->at(0), 0, sizeof(int32_t), stream_), "clear counter");
  Require(CountNotFinite(data, dtype, count, counter_->as<int32_t>(), stream_), "check");
  Wait();
  return counter_->ToHost<int32_t>()[0] == 0;
}

bool Bench::IsEqual(const void* a, const void* b, int64_t bytes) {
  Require(FillBytes(counter_->at(0), 0, sizeof(int32_t), stream_), "clear counter");
  Require(CountDifferent(a, b, bytes, counter_->as<int32_t>(), stream_), "compare");
  Wait();
  return counter_->ToHost<int32_t>()[0] == 0;
}

}  // namespace quire::gpu
