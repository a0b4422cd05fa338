// Figures of the benchmarks: the measured time, the least possible time, and the distance between
// them. Each figure is a line of a table on stdout and a line of JSON in a file. Both are written
// at once, so that an interrupted run loses no figure.
//
// Units:         microseconds and SM cycles per call; bytes and FLOP per call; GB/s and TFLOP/s are
//                powers of ten; work per SM cycle is that of one SM.
// Thread safety: one thread.
#ifndef QUIRE_TESTS_GPU_BENCH_REPORT_H_
#define QUIRE_TESTS_GPU_BENCH_REPORT_H_

#include <cstdint>
#include <cstdio>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

namespace quire::gpu {

// Time of one call. A repeat gives the mean over its calls; median, min and max are over the
// repeats.
struct Timing {
  double median_us = 0.0;
  double min_us = 0.0;
  double max_us = 0.0;
  double sm_mhz = 0.0;  // median; 0: unknown
  double median_cycles = 0.0;
  double min_cycles = 0.0;
  int num_sms = 0;
  int num_repeats = 0;
  int num_calls = 0;  // calls in a repeat
  int num_sets = 0;   // sets of inputs, used in turn
};

// The least possible work: each input read once, each output written once.
struct Work {
  double bytes = 0.0;
  double flops = 0.0;
};

// The machine's peak rates; 0: not measured.
struct Ceilings {
  double bytes_per_us = 0.0;  // of a copy on the device, read and written
  double flops_per_us = 0.0;  // of a large bf16 product

  // Returns the longer of the times for the bytes and for the FLOP. A ceiling that is 0 is ignored.
  double FloorUs(const Work& work) const;
};

class Figure {
 public:
  // group: a word; name: unique in the group.
  Figure(std::string group, std::string name) : group_(std::move(group)), name_(std::move(name)) {}

  Figure& Param(const std::string& key, const std::string& value);
  template <typename T>
  requires std::is_arithmetic_v<T> Figure& Param(const std::string& key, T value) {
    params_.emplace_back(key, Number(static_cast<double>(value)));
    return *this;
  }

  Timing timing;  // if median_us is 0, the figure is a check without a time
  Work work;
  double floor_us = 0.0;  // given if it does not follow from work
  double error = -1.0;    // relative L2 error against a reference; below 0: not checked
  bool ok = true;
  std::string note;

  std::string ToTableLine(const Ceilings& ceilings) const;
  std::string ToJsonLine(const Ceilings& ceilings) const;
  const std::string& group() const { return group_; }

 private:
  static std::string Number(double value);
  std::string WorkPerCycle() const;
  double FloorUs(const Ceilings& ceilings) const;

  std::string group_;
  std::string name_;
  std::vector<std::pair<std::string, std::string>> params_;  // values as JSON
};

class Report {
 public:
  // Appends to the file. If json_path is empty, writes no file.
  explicit Report(const std::string& json_path);
  ~Report();
  Report(const Report&) = delete;
  Report& operator=(const Report&) = delete;

  void Add(const Figure& figure, const Ceilings& ceilings);
  void Say(const std::string& line);
  int num_failed() const { return num_failed_; }
  int num_figures() const { return num_figures_; }

 private:
  FILE* json_ = nullptr;
  std::string last_group_;
  int num_failed_ = 0;
  int num_figures_ = 0;
};

}  // namespace quire::gpu

#endif  // QUIRE_TESTS_GPU_BENCH_REPORT_H_
