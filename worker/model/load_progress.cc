#include "worker/model/load_progress.h"

#include <unistd.h>

#include <algorithm>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

#include "common/base/log.h"
#include "common/base/lossy_writer.h"

namespace quire {
namespace {

constexpr auto kRedrawInterval = std::chrono::milliseconds(50);
// Longest time between two log lines. A line is also logged after each quarter, but a quarter of a
// large model takes minutes to load.
constexpr auto kLogInterval = std::chrono::seconds(10);
constexpr double kBytesPerMb = 1e6;

std::string MinutesAndSeconds(double seconds) {
  const auto whole = static_cast<int64_t>(std::llround(std::clamp(seconds, 0.0, 359999.0)));
  return absl::StrFormat("%02d:%02d", whole / 60, whole % 60);
}

double FractionDone(const LoadProgress& progress) {
  if (progress.bytes_total <= 0) {
    return 1.0;
  }
  return static_cast<double>(progress.bytes_done) / static_cast<double>(progress.bytes_total);
}

}  // namespace

std::string FormatLoadProgress(const LoadProgress& progress, double elapsed_seconds) {
  const double done = FractionDone(progress);
  const double megabytes = static_cast<double>(progress.bytes_done) / kBytesPerMb;
  const double speed = elapsed_seconds > 0.0 ? megabytes / elapsed_seconds : 0.0;
  const double left = done > 0.0 ? elapsed_seconds * (1.0 - done) / done : 0.0;
  return absl::StrFormat(
      "Loading weights: %3d%% Completed | %d/%d tensors, %.0f/%.0f MB [%s<%s, %.0f MB/s]",
      static_cast<int>(done * 100.0),
      progress.tensors_done,
      progress.tensors_total,
      megabytes,
      static_cast<double>(progress.bytes_total) / kBytesPerMb,
      MinutesAndSeconds(elapsed_seconds),
      MinutesAndSeconds(left),
      speed);
}

LoadProgressBar::LoadProgressBar()
    : is_terminal_(::isatty(STDERR_FILENO) == 1),
      start_(std::chrono::steady_clock::now()),
      last_drawn_(start_) {}

LoadProgressBar::~LoadProgressBar() {
  if (line_is_open_) {
    StandardError().Write("\n");
  }
}

void LoadProgressBar::Update(const LoadProgress& progress) {
  const SteadyTime now = std::chrono::steady_clock::now();
  const bool is_finished = progress.tensors_done >= progress.tensors_total;
  const auto quarter = static_cast<int64_t>(FractionDone(progress) * 4.0);
  const auto since_last = now - last_drawn_;
  const bool is_due = is_terminal_ ? since_last >= kRedrawInterval
                                   : quarter != last_quarter_ || since_last >= kLogInterval;
  if (!is_finished && !is_due) {
    return;
  }
  if (is_finished && last_quarter_ > 4) {
    return;  // last_quarter_ is 5: the line of 100 % was shown before
  }
  last_drawn_ = now;
  last_quarter_ = is_finished ? 5 : quarter;
  const double elapsed = std::chrono::duration<double>(now - start_).count();
  const std::string line = FormatLoadProgress(progress, elapsed);
  if (!is_terminal_) {
    LogInfo(line);
    return;
  }
  StandardError().Write(absl::StrCat("\r", line, "\x1b[K", is_finished ? "\n" : ""));
  line_is_open_ = !is_finished;
}

}  // namespace quire
