#include "tests/gpu/bench_report.h"

#include <algorithm>
#include <cmath>
#include <cstdarg>
#include <cstdlib>

namespace quire::gpu {
namespace {

constexpr double kPerGiga = 1e3;  // bytes a microsecond to GB/s: 1e6 / 1e9
constexpr double kPerTera = 1e6;  // FLOP a microsecond to TFLOP/s: 1e6 / 1e12

__attribute__((format(printf, 1, 2))) std::string Format(const char* format, ...) {
  char text[512];
  va_list arguments;
  va_start(arguments, format);
  vsnprintf(text, sizeof(text), format, arguments);
  va_end(arguments);
  return text;
}

std::string Quoted(const std::string& text) {
  std::string quoted = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') {
      quoted += '\\';
    }
    quoted += static_cast<unsigned char>(c) < ' ' ? ' ' : c;
  }
  return quoted + '"';
}

}  // namespace

double Ceilings::FloorUs(const Work& work) const {
  const double moving = bytes_per_us > 0.0 ? work.bytes / bytes_per_us : 0.0;
  const double computing = flops_per_us > 0.0 ? work.flops / flops_per_us : 0.0;
  return std::max(moving, computing);
}

Figure& Figure::Param(const std::string& key, const std::string& value) {
  params_.emplace_back(key, Quoted(value));
  return *this;
}

std::string Figure::Number(double value) {
  return std::isfinite(value) ? Format("%.7g", value) : "null";
}

double Figure::FloorUs(const Ceilings& ceilings) const {
  return floor_us > 0.0 ? floor_us : ceilings.FloorUs(work);
}

// Returns the clock, and the work of an SM per cycle: FLOP if the figure has any, else bytes.
std::string Figure::WorkPerCycle() const {
  const double amount = work.flops > 0.0 ? work.flops : work.bytes;
  if (timing.sm_mhz <= 0.0 || amount <= 0.0) {
    return "";
  }
  return Format("  %4.0f MHz %6.1f %s/cycle",
                timing.sm_mhz,
                amount / timing.median_cycles / timing.num_sms,
                work.flops > 0.0 ? "FLOP" : "B");
}

std::string Figure::ToTableLine(const Ceilings& ceilings) const {
  std::string line = Format("  %-58s", name_.c_str());
  if (timing.median_us > 0.0) {
    line += Format(" %10.2f us", timing.median_us);
    if (work.bytes > 0.0) {
      line += Format(" %7.0f GB/s", work.bytes / timing.median_us / kPerGiga);
    }
    if (work.flops > 0.0) {
      line += Format(" %6.1f TFLOP/s", work.flops / timing.median_us / kPerTera);
    }
    if (const double floor = FloorUs(ceilings); floor > 0.0) {
      line += Format("  floor %9.2f us  %5.3f", floor, floor / timing.median_us);
    }
    line += WorkPerCycle();
  }
  if (error >= 0.0) {
    line += Format("  error %.1e", error);
  }
  line += note.empty() ? "" : "  " + note;
  return ok ? line : line + "  WRONG";
}

std::string Figure::ToJsonLine(const Ceilings& ceilings) const {
  std::string line = "{\"group\": " + Quoted(group_) + ", \"case\": " + Quoted(name_);
  auto add = [&](const char* key, double value) {
    line += ", \"" + std::string(key) + "\": " + Number(value);
  };
  for (const auto& [key, value] : params_) {
    line += ", " + Quoted(key) + ": " + value;
  }
  if (timing.median_us > 0.0) {
    add("us", timing.median_us);
    add("us_min", timing.min_us);
    add("us_max", timing.max_us);
    add("repeats", timing.num_repeats);
    add("calls_a_repeat", timing.num_calls);
    add("input_sets", timing.num_sets);
    if (timing.sm_mhz > 0.0) {
      add("sm_mhz", timing.sm_mhz);
      add("cycles", timing.median_cycles);
      add("cycles_min", timing.min_cycles);
      if (work.bytes > 0.0) {
        add("bytes_per_sm_cycle", work.bytes / timing.median_cycles / timing.num_sms);
      }
      if (work.flops > 0.0) {
        add("flop_per_sm_cycle", work.flops / timing.median_cycles / timing.num_sms);
        add("flop_per_sm_cycle_max", work.flops / timing.min_cycles / timing.num_sms);
      }
    }
    if (work.bytes > 0.0) {
      add("bytes", work.bytes);
      add("gb_per_s", work.bytes / timing.median_us / kPerGiga);
    }
    if (work.flops > 0.0) {
      add("flops", work.flops);
      add("tflop_per_s", work.flops / timing.median_us / kPerTera);
    }
    if (const double floor = FloorUs(ceilings); floor > 0.0) {
      add("floor_us", floor);
      add("fraction", floor / timing.median_us);
    }
  }
  if (error >= 0.0) {
    add("error", error);
  }
  if (!note.empty()) {
    line += ", \"note\": " + Quoted(note);
  }
  return line + (ok ? ", \"ok\": true}" : ", \"ok\": false}");
}

Report::Report(const std::string& json_path) {
  if (json_path.empty()) {
    return;
  }
  json_ = fopen(json_path.c_str(), "ae");
  if (json_ == nullptr) {
    fprintf(stderr, "gpu_bench: cannot write %s\n", json_path.c_str());
    exit(EXIT_FAILURE);
  }
}

Report::~Report() {
  if (json_ != nullptr) {
    fclose(json_);
  }
}

void Report::Add(const Figure& figure, const Ceilings& ceilings) {
  if (figure.group() != last_group_) {
    last_group_ = figure.group();
    Say(last_group_);
  }
  Say(figure.ToTableLine(ceilings));
  if (json_ != nullptr) {
    fprintf(json_, "%s\n", figure.ToJsonLine(ceilings).c_str());
    fflush(json_);
  }
  ++num_figures_;
  num_failed_ += figure.ok ? 0 : 1;
}

void Report::Say(const std::string& line) {
  printf("%s\n", line.c_str());
  fflush(stdout);
}

}  // namespace quire::gpu
