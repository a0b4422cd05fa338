#include "tests/gpu/bench.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <thread>
#include <utility>

#include "kernels/cuda/gemm.h"
#include "tests/gpu/bench_kernels.h"

namespace quire::gpu {
namespace {

constexpr int kRepeats = 21;
constexpr size_t kMaxInTurn = 6;
constexpr int kWarmUps = 3;
// If a run of a graph is shorter than this, the graph gets more calls. The clock of events ticks in
// half microseconds, and the host must enqueue a run in less time than the device takes for it.
constexpr double kMinRepeatUs = 400.0;
constexpr int kMaxCalls = 1024;
// Bytes of all sets of inputs: three times the 60 MB of an H200's L2 cache.
constexpr double kRotationBytes = 192e6;

// Returns the SM clock between two readings: the median over the SMs that have both readings.
double MegahertzBetween(const ClockReading* begin, const ClockReading* end, int num_sms) {
  std::vector<double> of_sms;
  for (int sm = 0; sm < num_sms; ++sm) {
    const auto ns = static_cast<double>(end[sm].ns - begin[sm].ns);
    // A reading that was not written is negative.
    if (begin[sm].ns > 0 && ns > 0.0) {
      constexpr double kMegahertz = 1e3;  // cycles a nanosecond
      of_sms.push_back(static_cast<double>(end[sm].cycles - begin[sm].cycles) / ns * kMegahertz);
    }
  }
  std::sort(of_sms.begin(), of_sms.end());
  return of_sms.empty() ? 0.0 : of_sms[of_sms.size() / 2];
}

double Median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

// A graph of num_calls calls, which go round through the sets.
class RecordedCalls {
 public:
  RecordedCalls(Stream stream, const Bench::Call& call, int num_sets, int num_calls)
      : stream_(stream), num_calls_(num_calls) {
    Require(BeginGraph(stream), "begin graph");
    for (int i = 0; i < num_calls; ++i) {
      Require(call(i % num_sets), "measured call");
    }
    Require(EndGraph(stream, &graph_), "end graph");
  }
  RecordedCalls(RecordedCalls&& other) noexcept
      : stream_(other.stream_),
        graph_(std::exchange(other.graph_, nullptr)),
        num_calls_(other.num_calls_) {}
  RecordedCalls(const RecordedCalls&) = delete;
  RecordedCalls& operator=(const RecordedCalls&) = delete;
  RecordedCalls& operator=(RecordedCalls&&) = delete;
  ~RecordedCalls() {
    if (graph_ != nullptr) {
      Require(DestroyGraph(graph_), "destroy graph");
    }
  }

  void Run() const { Require(LaunchGraph(graph_, stream_), "launch graph"); }
  int num_calls() const { return num_calls_; }

 private:
  Stream stream_;
  Graph graph_ = nullptr;
  int num_calls_;
};

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

// Waits, because the stream of the measurements does not wait for the default stream.
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
  clocks_.emplace(int64_t{2} * kRepeats * static_cast<int64_t>(kMaxInTurn) *
                  device_.num_multiprocessors * int64_t{sizeof(ClockReading)});
  for (size_t i = 0; i < size_t{2} * kRepeats * kMaxInTurn; ++i) {
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
  clocks_.reset();
  DestroyStream(stream_);
}

// Runs a kernel for a while, because an idle GPU has a fraction of its clock and takes time to
// raise it.
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

// All repeats are enqueued before the host waits for the first one. So the device goes from one
// repeat to the next without a gap, and the host's work does not count.
std::vector<std::vector<Repeat>> Bench::TimeRepeats(int num_repeats,
                                                    const std::vector<std::function<void()>>& runs,
                                                    const std::function<void()>& prepare) {
  const int num_sms = device_.num_multiprocessors;
  auto read_clocks = [&](size_t at) {
    auto* readings = clocks_->as<ClockReading>() + at * static_cast<size_t>(num_sms);
    Require(ReadClocks(readings, num_sms, stream_), "read clocks");
  };
  clocks_->Poison();
  const size_t num_runs = static_cast<size_t>(num_repeats) * runs.size();
  for (size_t i = 0; i < num_runs; ++i) {
    if (prepare != nullptr) {
      prepare();
    }
    read_clocks(2 * i);
    Require(RecordEvent(events_[2 * i], stream_), "record event");
    runs[i % runs.size()]();
    Require(RecordEvent(events_[2 * i + 1], stream_), "record event");
    read_clocks(2 * i + 1);
  }
  Wait();
  const std::vector<ClockReading> clocks = clocks_->ToHost<ClockReading>();
  std::vector<std::vector<Repeat>> repeats(runs.size());
  for (size_t i = 0; i < num_runs; ++i) {
    float milliseconds = 0.0F;
    Require(ElapsedMilliseconds(events_[2 * i], events_[2 * i + 1], &milliseconds), "read event");
    const ClockReading* begin = clocks.data() + 2 * i * static_cast<size_t>(num_sms);
    repeats[i % runs.size()].push_back(
        {.us = double{milliseconds} * 1e3,
         .sm_mhz = MegahertzBetween(begin, begin + num_sms, num_sms)});
  }
  return repeats;
}

Timing Bench::Summarize(const std::vector<Repeat>& repeats, int num_calls, int num_sets) const {
  std::vector<double> us;
  std::vector<double> cycles;
  std::vector<double> megahertz;
  for (const Repeat& repeat : repeats) {
    us.push_back(repeat.us / num_calls);
    megahertz.push_back(repeat.sm_mhz);
    cycles.push_back(us.back() * repeat.sm_mhz);
  }
  return {.median_us = Median(us),
          .min_us = *std::min_element(us.begin(), us.end()),
          .max_us = *std::max_element(us.begin(), us.end()),
          .sm_mhz = Median(megahertz),
          .median_cycles = Median(cycles),
          .min_cycles = *std::min_element(cycles.begin(), cycles.end()),
          .num_sms = device_.num_multiprocessors,
          .num_repeats = static_cast<int>(repeats.size()),
          .num_calls = num_calls,
          .num_sets = num_sets};
}

void Bench::Profile(const std::vector<Call>& calls) {
  Require(StartProfiler(), "start profiler");
  for (const Call& call : calls) {
    Require(call(0), "profiled call");
  }
  Wait();
  Require(StopProfiler(), "stop profiler");
}

// Before a long call, leaves the device without load for a second. The call then begins at a full
// clock, whatever ran before.
void Bench::RestBefore(double us_a_call) const {
  constexpr double kLongUs = 5000.0;
  if (us_a_call > kLongUs && !rehearse()) {
    std::this_thread::sleep_for(std::chrono::seconds(1));
  }
}

Timing Bench::Measure(int num_sets, const Call& call, const std::function<void()>& prepare) {
  return MeasureInTurn(num_sets, {call}, prepare)[0];
}

std::vector<Timing> Bench::MeasureInTurn(int num_sets,
                                         const std::vector<Call>& calls,
                                         const std::function<void()>& prepare) {
  Require(calls.size() <= kMaxInTurn ? 0 : -1, "measure so many calls in turn");
  // Calls each set once, so that kernels are loaded, products find their algorithms, and errors
  // show.
  for (const Call& call : calls) {
    for (int set = 0; set < num_sets; ++set) {
      Require(call(set), "measured call");
    }
  }
  Wait();
  if (options_.profile) {
    Profile(calls);
    return std::vector<Timing>(calls.size());
  }
  std::vector<RecordedCalls> recorded;
  double longest_us = 0.0;
  for (const Call& call : calls) {
    RecordedCalls once(stream_, call, num_sets, num_sets);
    const double estimate = TimeRepeats(kWarmUps, {[&] { once.Run(); }}, prepare)[0].back().us;
    longest_us = std::max(longest_us, estimate / num_sets);
    const double rounds = (rehearse() ? 2.0 * estimate : kMinRepeatUs) / std::max(estimate, 1.0);
    // prepare runs only before each repeat, so with it each set can be used only once in a repeat.
    if (rounds > 1.0 && prepare == nullptr) {
      const int num_calls = std::min(kMaxCalls, num_sets * static_cast<int>(rounds + 1.0));
      recorded.emplace_back(stream_, call, num_sets, num_calls);
      TimeRepeats(kWarmUps, {[&] { recorded.back().Run(); }}, prepare);
    } else {
      recorded.push_back(std::move(once));
    }
  }
  RestBefore(longest_us);
  std::vector<std::function<void()>> runs;
  runs.reserve(recorded.size());
  for (const RecordedCalls& of_call : recorded) {
    runs.emplace_back([&of_call] { of_call.Run(); });
  }
  const std::vector<std::vector<Repeat>> repeats = TimeRepeats(NumRepeats(), runs, prepare);
  std::vector<Timing> timings;
  for (size_t i = 0; i < calls.size(); ++i) {
    timings.push_back(Summarize(repeats[i], recorded[i].num_calls(), num_sets));
  }
  return timings;
}

Timing Bench::MeasureEagerly(const Call& call) {
  const std::vector<std::function<void()>> runs = {[&] { Require(call(0), "measured call"); }};
  TimeRepeats(kWarmUps, runs, nullptr);
  return Summarize(TimeRepeats(NumRepeats(), runs, nullptr)[0], 1, 1);
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
