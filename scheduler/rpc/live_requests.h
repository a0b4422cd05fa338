// LiveRequests knows the requests that clients gave a name, or that we gave one, while they live: a
// name is taken once, and Abort finds its request by it.
//
// Thread safety: safe from any thread.
#ifndef QUIRE_SCHEDULER_RPC_LIVE_REQUESTS_H_
#define QUIRE_SCHEDULER_RPC_LIVE_REQUESTS_H_

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"

#include "common/base/clock.h"

namespace quire {

class LiveRequests {
 public:
  class Abortable {
   public:
    virtual ~Abortable() = default;
    virtual void Abort(absl::Status status) = 0;
    // When its client asked for it.
    virtual Instant arrival() const = 0;
  };

  // Tenants of API keys have names of their own: none can see, end or take over another one's
  // request by its id. tenant: empty without keys.
  static std::string NameOf(std::string_view tenant, std::string_view request_id);

  // Errors: kAlreadyExists REQUEST_ID_IN_USE.
  absl::Status Add(const std::string& name, std::weak_ptr<Abortable> request);

  // A resumed request waits for its place. Its name is taken meanwhile, and Abort finds it, beside
  // the one of this name that may still live. Until TakeOver, or Remove.
  void AddResumed(const std::string& name, std::weak_ptr<Abortable> request);

  // The request has a place; one of its name that lives ends with ABORTED RESUMED, for its client
  // is back.
  // Errors: the same reason, when that one arrived later: then the client has left this one.
  absl::Status TakeOver(const std::string& name, const std::shared_ptr<Abortable>& request);

  // It is found no more, wherever it stood; nothing else of this name changes.
  void Remove(const std::string& name, const Abortable* request);

  // All of them.
  void AbortAll(const absl::Status& status);

  // Names that are taken.
  int64_t size() const;

  // Errors: kNotFound REQUEST_ID.
  absl::Status Abort(const std::string& name, const absl::Status& status);

 private:
  mutable absl::Mutex mutex_;
  // Weak: the map finds a call, and keeps none alive.
  struct Holders {
    std::weak_ptr<Abortable> live;
    std::vector<std::weak_ptr<Abortable>> resumed;  // that wait
  };
  static void RemoveResumed(Holders& holders, const Abortable* request);
  // Adds those that live.
  static void Collect(const Holders& holders, std::vector<std::shared_ptr<Abortable>>* requests);

  absl::flat_hash_map<std::string, Holders> requests_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace quire

#endif  // QUIRE_SCHEDULER_RPC_LIVE_REQUESTS_H_
