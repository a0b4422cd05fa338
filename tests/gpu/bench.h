// Bench is what the benchmarks share: the stream, the clock, the ceilings of the machine, random
// inputs and checks of outputs.
//
// Method: inputs are random and lie in several sets, together more than the L2 cache holds, so that
//         each call reads from memory. The calls of all sets are recorded as a graph; the graph is
//         run at least 21 times back to back, each run between two events; the median counts. Every
//         output is poisoned (NaN) before and checked after. Kernels that are compared run in turn,
//         one repeat each, so that all meet the same clock.
// Clock:  before and after each repeat a kernel reads every SM's cycle counter and the device's
//         time. Their ratio is the SM clock of that repeat, which varies under the power limit.
// Errors: anything that fails ends the process with a message: after a device error nothing more
//         can be measured.
#ifndef QUIRE_TESTS_GPU_BENCH_H_
#define QUIRE_TESTS_GPU_BENCH_H_

#include <chrono>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "kernels/cuda/gpu_ops.h"
#include "kernels/cuda/runtime.h"
#include "tests/gpu/bench_device.h"
#include "tests/gpu/bench_report.h"

namespace quire::gpu {

// Ends the process when error is not 0.
void Require(int error, const char* what);

// Memory of the device; 0xFF bytes, NaN in every type, until something is written.
class Buffer {
 public:
  explicit Buffer(int64_t bytes);
  template <typename T>
  static Buffer Of(const std::vector<T>& values) {
    Buffer buffer(static_cast<int64_t>(values.size() * sizeof(T)));
    buffer.FromHost(values.data());
    return buffer;
  }
  Buffer(Buffer&& other) noexcept;
  Buffer& operator=(Buffer&& other) noexcept;
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;
  ~Buffer();

  int64_t bytes() const { return bytes_; }
  void* at(int64_t offset) const { return static_cast<char*>(data_) + offset; }
  template <typename T>
  T* as() const {
    return static_cast<T*>(data_);
  }
  void Poison();
  template <typename T>
  std::vector<T> ToHost() const {
    std::vector<T> values(static_cast<size_t>(bytes_) / sizeof(T));
    CopyOut(values.data());
    return values;
  }

 private:
  void FromHost(const void* values);
  void CopyOut(void* values) const;

  void* data_ = nullptr;
  int64_t bytes_ = 0;
};

// Pinned host memory, which the device reads and writes directly. Filled with numbers.
class PinnedBuffer {
 public:
  explicit PinnedBuffer(int64_t bytes);
  PinnedBuffer(const PinnedBuffer&) = delete;
  PinnedBuffer& operator=(const PinnedBuffer&) = delete;
  ~PinnedBuffer();

  uint8_t* at(int64_t offset) const { return static_cast<uint8_t*>(data_) + offset; }

 private:
  void* data_ = nullptr;
};

struct BenchOptions {
  std::vector<std::string> groups;  // empty: all
  bool only_device = false;         // measure nothing
  bool quick = false;               // few cases
  bool rehearse = false;            // tiny sizes: tries the program, measures nothing
  // Runs each call twice, the second time between the profiler's start and stop, and measures
  // nothing: ncu --profile-from-start off.
  bool profile = false;
  std::string only_case;                     // of those with names; empty: all
  std::vector<std::string> decode_kernels;   // empty: all
  std::vector<std::string> prefill_kernels;  // empty: all
  double limit_seconds = 1e9;                // after which no new case is begun
  std::string json_path;
  std::string library_path;  // of cuBLASLt, or empty
  std::string peers_path;    // of other projects' kernels (peer_library.h), or empty
  Ceilings ceilings;         // measured when 0
};

// One repeat: its time, and the SM clock while it ran.
struct Repeat {
  double us = 0.0;
  double sm_mhz = 0.0;
};

class Bench {
 public:
  explicit Bench(const BenchOptions& options);
  ~Bench();
  Bench(const Bench&) = delete;
  Bench& operator=(const Bench&) = delete;

  const BenchOptions& options() const { return options_; }
  bool rehearse() const { return options_.rehearse; }
  bool quick() const { return options_.quick || options_.rehearse; }
  bool IsWantedCase(const std::string& name) const {
    return options_.only_case.empty() || options_.only_case == name;
  }
  Stream stream() const { return stream_; }
  const DeviceInfo& device() const { return device_; }
  Report& report() { return report_; }
  const Ceilings& ceilings() const { return ceilings_; }
  void set_ceilings(const Ceilings& ceilings) { ceilings_ = ceilings; }
  void Add(const Figure& figure) { report_.Add(figure, ceilings_); }

  // The object for products; null without a library for them.
  void* gemm(bool batch_invariant);

  // Asked before each case. The first time that it is true it says so in the report.
  bool IsOutOfTime();

  // Sets of inputs of bytes_a_set to go round through, so that the L2 cache cannot help.
  int NumSets(double bytes_a_set) const;

  // Rounds a size down for a rehearsal.
  int32_t Small(int32_t full, int32_t tiny) const { return rehearse() ? tiny : full; }

  // call(set) enqueues one call on stream() with the inputs of that set and returns its error.
  // prepare: enqueues what must happen before each repeat and does not count.
  using Call = std::function<int(int set)>;
  Timing Measure(int num_sets, const Call& call, const std::function<void()>& prepare = nullptr);
  // Measures several calls in turn. Returns a timing for each.
  std::vector<Timing> MeasureInTurn(int num_sets,
                                    const std::vector<Call>& calls,
                                    const std::function<void()>& prepare = nullptr);
  // Without a graph: for calls that cannot be recorded. One call a repeat.
  Timing MeasureEagerly(const Call& call);

  // Inputs. The seed is another one each time.
  Buffer RandomBuffer(DType dtype, int64_t count, float scale = 1.0F);
  void Randomize(void* data, DType dtype, int64_t count, float scale = 1.0F);

  // Whether all elements are finite; waits.
  bool IsFinite(const void* data, DType dtype, int64_t count);
  bool IsEqual(const void* a, const void* b, int64_t bytes);
  // Waits for the stream.
  void Wait();

 private:
  void RaiseClocks();
  int NumRepeats() const;
  void Profile(const std::vector<Call>& calls);
  void RestBefore(double us_a_call) const;
  Timing Summarize(const std::vector<Repeat>& repeats, int num_calls, int num_sets) const;
  std::vector<std::vector<Repeat>> TimeRepeats(int num_repeats,
                                               const std::vector<std::function<void()>>& runs,
                                               const std::function<void()>& prepare);

  const BenchOptions options_;
  DeviceInfo device_;
  Stream stream_ = nullptr;
  Report report_;
  Ceilings ceilings_;
  std::optional<Buffer> counter_;
  std::optional<Buffer> clocks_;  // ClockReadings of all SMs, [2 * kRepeats * kMaxInTurn]
  std::vector<Event> events_;
  void* gemms_[2] = {};
  bool gemm_is_missing_ = false;
  uint64_t next_seed_ = 1;
  std::chrono::steady_clock::time_point start_;
  bool has_said_out_of_time_ = false;
};

// The groups, in the order in which they run. Each adds figures to the report.
void MeasureCeilings(Bench& bench, bool print);
void MeasureMemoryKernels(Bench& bench);
void MeasureSampling(Bench& bench);
void MeasureGemm(Bench& bench);
void CheckBits(Bench& bench);
void MeasureLoads(Bench& bench);
void MeasureDecode(Bench& bench);
void MeasurePrefill(Bench& bench);
void MeasureCopies(Bench& bench);
void MeasureWindows(Bench& bench);

}  // namespace quire::gpu

#endif  // QUIRE_TESTS_GPU_BENCH_H_
