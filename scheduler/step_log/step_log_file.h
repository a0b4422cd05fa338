// StepLogFile is a step log on disk. A separate thread writes the bytes, so that a slow disk never
// holds up the core. The log ends with a warning, and the service goes on, if the disk is full or
// fails, or if more bytes wait than the buffer holds.
//
// The log is never synced: written bytes survive a crash of the process, but not of the machine.
//
// Thread safety: one thread calls Write; any thread may construct or destroy the object, or call
// Open.
#ifndef QUIRE_SCHEDULER_STEP_LOG_STEP_LOG_FILE_H_
#define QUIRE_SCHEDULER_STEP_LOG_STEP_LOG_FILE_H_

#include <cstddef>
#include <string>
#include <string_view>
#include <thread>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"

#include "common/base/mutex.h"
#include "scheduler/step_log/step_log_sink.h"

namespace quire {

class StepLogFile : public StepLogSink {
 public:
  // Upper bound on the bytes that wait for the disk.
  static constexpr size_t kDefaultBufferBytes = size_t{64} << 20;

  // The constructor makes no file. Until Open has made the file, written bytes wait in memory.
  explicit StepLogFile(std::string path, size_t buffer_bytes = kDefaultBufferBytes);

  // Makes a new file that only its owner may read. An existing file of this name, the log of the
  // previous process, is renamed to path + ".previous". Call once.
  // Errors: kFailedPrecondition STEP_LOG if the file cannot be made.
  absl::Status Open();

  // Writes the waiting bytes, then closes the file.
  ~StepLogFile() override;
  StepLogFile(const StepLogFile&) = delete;
  StepLogFile& operator=(const StepLogFile&) = delete;

  void Write(std::string_view bytes) override;

 private:
  void Run();
  // Makes Write drop all further bytes. Logs the reason once.
  void End(const std::string& reason);

  const std::string path_;
  const size_t buffer_bytes_;
  Mutex mutex_;
  CondVar has_bytes_;
  std::string waiting_ ABSL_GUARDED_BY(mutex_);
  bool closing_ ABSL_GUARDED_BY(mutex_) = false;
  bool has_ended_ ABSL_GUARDED_BY(mutex_) = false;
  int fd_ = -1;         // set before the thread starts
  std::thread thread_;  // declared last, since it uses the other members
};

}  // namespace quire

#endif  // QUIRE_SCHEDULER_STEP_LOG_STEP_LOG_FILE_H_
