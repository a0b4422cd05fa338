// LoadProgressBar shows on standard error how far weights are loaded: one line, redrawn. If
// standard error is not a terminal, the bar instead logs a line after every quarter of the bytes,
// and at least every 10 s.
//
//   Loading weights: 100% Completed | 146/146 tensors, 508/508 MB [00:01<00:00, 412 MB/s]
//
// Thread safety: one caller at a time.
#ifndef QUIRE_WORKER_MODEL_LOAD_PROGRESS_H_
#define QUIRE_WORKER_MODEL_LOAD_PROGRESS_H_

#include <chrono>
#include <cstdint>
#include <string>

#include "worker/model/model.h"

namespace quire {

// Returns the line that shows `progress`, reached after `elapsed_seconds`.
std::string FormatLoadProgress(const LoadProgress& progress, double elapsed_seconds);

class LoadProgressBar {
 public:
  LoadProgressBar();
  // Ends the terminal's line if the bar was not finished.
  ~LoadProgressBar();
  LoadProgressBar(const LoadProgressBar&) = delete;
  LoadProgressBar& operator=(const LoadProgressBar&) = delete;

  // Shows a line if enough time has passed since the last line, or if loading is complete. In a log
  // (not on a terminal), also shows a line for each quarter of the bytes. Called from the
  // LoadProgressFn that LoadModel takes.
  void Update(const LoadProgress& progress);

 private:
  using SteadyTime = std::chrono::steady_clock::time_point;

  const bool is_terminal_;
  const SteadyTime start_;
  SteadyTime last_drawn_;
  int64_t last_quarter_ = 0;
  bool line_is_open_ = false;
};

}  // namespace quire

#endif  // QUIRE_WORKER_MODEL_LOAD_PROGRESS_H_
