// Reloaded holds a value read from files that may be replaced while the process runs. A separate
// thread reads the files, so that calls and handshakes never wait for a disk or a hung network
// share.
//
// If files are missing, half written or wrong, the last good value stays in use, and each cause is
// logged once.
//
// Thread safety: any thread.
// Cost:          Get takes a lock and copies a shared_ptr. The thread reads and checks the files
//                twice per kMaxAgeNs.
#ifndef QUIRE_COMMON_WIRE_RELOADED_H_
#define QUIRE_COMMON_WIRE_RELOADED_H_

#include <functional>
#include <memory>
#include <string>
#include <thread>
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
  // Upper bound on the age of the value that Get returns, if the disk answers at once.
  static constexpr int64_t kMaxAgeNs = kNanosPerSecond;
  // Upper bound on the destructor's wait for the thread.
  static constexpr int64_t kMaxEndNs = kNanosPerSecond;

  // Reads the files. Errors are logged, so their messages must not quote the files' contents. If a
  // disk hangs, the reader may outlive the Reloaded object.
  using Reader = std::function<absl::StatusOr<Value>()>;

  // what: name of the contents in log lines, in plural, such as "API keys". file: path for log
  // lines. first: the value that the caller got from a first call of `read`.
  Reloaded(std::string what, std::string file, Reader read, Value first)
      : shared_(std::make_shared<Shared>(
            std::move(what), std::move(file), std::move(read), std::move(first))) {
    thread_ = std::thread([shared = shared_] { shared->Run(); });
  }
  // Joins the thread, else the thread could use OpenSSL while exit() destroys OpenSSL's data. If a
  // disk hangs, the thread is stuck in a system call and is detached after kMaxEndNs.
  ~Reloaded() { shared_->Stop(SteadyNow() + kMaxEndNs) ? thread_.join() : thread_.detach(); }
  Reloaded(const Reloaded&) = delete;
  Reloaded& operator=(const Reloaded&) = delete;

  // Returns the newest good value.
  std::shared_ptr<const Value> Get() const {
    const MutexLock lock(shared_->mutex);
    return shared_->value;
  }

 private:
  // The members that the thread uses. A detached thread keeps them alive.
  struct Shared {
    Shared(std::string name, std::string path, Reader reader, Value first)
        : what(std::move(name)),
          file(std::move(path)),
          read(std::move(reader)),
          value(std::make_shared<const Value>(std::move(first))) {}

    void Run() {
      MutexLock lock(mutex);
      for (;;) {
        const Instant read_at = SteadyNow() + kMaxAgeNs / 2;
        while (!is_stopped && stop.WaitUntil(mutex, read_at)) {
        }
        if (is_stopped) {
          has_ended = true;
          ended.NotifyOne();
          return;
        }
        lock.Unlock();
        absl::StatusOr<Value> newest = read();
        lock.Lock();
        Take(std::move(newest));
      }
    }

    // Tells Run to stop, and waits for its end until the deadline. Returns true if Run has ended.
    bool Stop(Instant deadline) {
      const MutexLock lock(mutex);
      is_stopped = true;
      stop.NotifyOne();
      while (!has_ended && ended.WaitUntil(mutex, deadline)) {
      }
      return has_ended;
    }

    void Take(absl::StatusOr<Value> newest) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex) {
      const std::string fault(newest.status().message());
      if (!newest.ok() && fault != last_fault) {
        LogWarning(absl::StrCat("new ", what, " are not used, the old ones stay"),
                   {{"cause", fault}});
      }
      last_fault = fault;
      if (newest.ok() && *newest != *value) {
        value = std::make_shared<const Value>(*std::move(newest));
        LogInfo(absl::StrCat("new ", what, " are in use"), {{"file", file}});
      }
    }

    const std::string what;
    const std::string file;
    const Reader read;
    Mutex mutex;
    CondVar stop;   // notified while mutex is held
    CondVar ended;  // notified while mutex is held
    bool is_stopped ABSL_GUARDED_BY(mutex) = false;
    bool has_ended ABSL_GUARDED_BY(mutex) = false;
    std::shared_ptr<const Value> value ABSL_GUARDED_BY(mutex);
    std::string last_fault ABSL_GUARDED_BY(mutex);  // empty: the last read succeeded
  };

  const std::shared_ptr<Shared> shared_;
  std::thread thread_;
};

}  // namespace quire

#endif  // QUIRE_COMMON_WIRE_RELOADED_H_
