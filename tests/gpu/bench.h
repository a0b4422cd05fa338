// Bench holds what the benchmarks share: the stream, the clock, the peak rates of the machine,
// random inputs, and checks of outputs.
//
// Method: inputs are random and lie in several sets. All sets together are larger than the L2
//         cache, so each call reads from memory. The calls of all sets are recorded as a graph. The
//         graph runs at least 21 times back to back, each run between two events; the median
//         counts. Every output is poisoned (NaN), computed and then checked. Kernels that are
//         compared take turns, one repeat each, so all of them run at the same clock.
// Clock:  before and after each repeat a kernel reads every SM's cycle counter and the device's
//         time. Their ratio is the SM clock of that repeat, which varies under the power limit.
// Errors: any failure ends the process with a message, because nothing can be measured after a
//         device error.
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

// Ends the process if error is not 0.
void Require(int error, const char* what);

// Memory of the device. Holds 0xFF bytes, NaN in every type, until something is written.
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

// Pinned host memory, which the device reads and writes directly. The constructor fills it with
// pseudo-random bytes.
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
  // For ncu --profile-from-start off: runs each call twice, the second time between the profiler's
  // start and stop. Measures nothing.
  bool profile = false;
  std::string only_case;                     // name of the only case to measure; empty: all
  std::vector<std::string> decode_kernels;   // empty: all
  std::vector<std::string> prefill_kernels;  // empty: all
  double limit_seconds = 1e9;                // no new case begins after this time
  std::string json_path;
  std::string library_path;  // of cuBLASLt; empty: the usual names and folders
  std::string peers_path;    // library of other projects' kernels (peer_library.h); empty: none
  Ceilings ceilings;         // peak rates; those that are 0 are measured
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

  // Returns the object that computes products, or null if the library for them is missing.
  void* gemm(bool batch_invariant);

  // Returns whether the time limit has passed. Must be called before each case. The first call that
  // returns true says so in the report.
  bool IsOutOfTime();

  // Returns how many sets of inputs, of bytes_a_set bytes each, are together larger than the L2
  // cache.
  int NumSets(double bytes_a_set) const;

  // Returns the full size, or the tiny size in a rehearsal.
  int32_t Small(int32_t full, int32_t tiny) const { return rehearse() ? tiny : full; }

  // call(set) enqueues one call on stream() with the inputs of that set, and returns its error.
  // prepare enqueues what must happen before each repeat; its time does not count.
  using Call = std::function<int(int set)>;
  Timing Measure(int num_sets, const Call& call, const std::function<void()>& prepare = nullptr);
  // Measures several calls that take turns. Returns a timing for each.
  std::vector<Timing> MeasureInTurn(int num_sets,
                                    const std::vector<Call>& calls,
                                    const std::function<void()>& prepare = nullptr);
  // Measures calls that cannot be recorded in a graph. Each repeat has one call.
  Timing MeasureEagerly(const Call& call);

  // Random inputs. Each call uses another seed.
  Buffer RandomBuffer(DType dtype, int64_t count, float scale = 1.0F);
  void Randomize(void* data, DType dtype, int64_t count, float scale = 1.0F);

  // Returns whether all elements are finite. Waits for the stream.
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

// The groups of figures, in the order in which they run. Each function adds figures to the report.
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
