// Reloaded is what was read from files that may be replaced while the process runs.
//
// Files that are missing, half written or wrong are no reason to stop: what they last held stays in
// use, and the log says so once for each cause.
//
// Thread safety: any thread.
// Cost:          a lock; once in kMaxAgeNs the files are read, under it.
#ifndef QUIRE_COMMON_WIRE_RELOADED_H_
#define QUIRE_COMMON_WIRE_RELOADED_H_

#include <functional>
#include <memory>
#include <string>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"

#include "common/base/clock.h"
#include "common/base/log.h"
#include "common/base/mutex.h"

namespace quire {

template <typename Value>
class Reloaded {
 public:
  // What Get returns is at most so old.
  static constexpr int64_t kMaxAgeNs = kNanosPerSecond;

  // Its errors tell of no contents: they are logged.
  using Reader = std::function<absl::StatusOr<Value>()>;

  // what: for the log, in the plural; file: likewise, the one to look at. first: what `read` gave.
  Reloaded(std::string what, std::string file, Reader read, Value first)
      : what_(std::move(what)),
        file_(std::move(file)),
        read_(std::move(read)),
        value_(std::make_shared<const Value>(std::move(first))),
        read_at_(SteadyNow()) {}

  // The newest that could be read.
  std::shared_ptr<const Value> Get() {
    MutexLock lock(mutex_);
    if (SteadyNow() - read_at_ >= kMaxAgeNs) {
      read_at_ = SteadyNow();
      Reload();
    }
    return value_;
  }

 private:
  void Reload() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    absl::StatusOr<Value> value = read_();
    const std::string fault(value.status().message());
    if (!value.ok() && fault != last_fault_) {
      LogWarning(absl::StrCat("new ", what_, " are not used, the old ones stay"),
                 {{"cause", fault}});
    }
    last_fault_ = fault;
    if (value.ok() && *value != *value_) {
      value_ = std::make_shared<const Value>(*std::move(value));
      LogInfo(absl::StrCat("new ", what_, " are in use"), {{"file", file_}});
    }
  }

  const std::string what_;
  const std::string file_;
  const Reader read_;
  Mutex mutex_;
  std::shared_ptr<const Value> value_ ABSL_GUARDED_BY(mutex_);
  Instant read_at_ ABSL_GUARDED_BY(mutex_);
  std::string last_fault_ ABSL_GUARDED_BY(mutex_);  // empty: none
};

}  // namespace quire

#endif  // QUIRE_COMMON_WIRE_RELOADED_H_
