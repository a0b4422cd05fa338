// LiveRequests finds requests by name, until they end. A name has at most one live request. Resumed
// requests of the same name can wait to take over the name.
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
    virtual Instant arrival() const = 0;
  };

  // Returns the name of a request. The name includes the tenant of the API key, so that no tenant
  // can see, abort or take over another tenant's request by its id. tenant: empty without API keys.
  static std::string NameOf(std::string_view tenant, std::string_view request_id);

  // Errors: kAlreadyExists REQUEST_ID_IN_USE.
  absl::Status Add(const std::string& name, std::weak_ptr<Abortable> request);

  // Adds a resumed request that waits for a place in the queue. Until TakeOver or Remove, the name
  // is in use, and Abort ends both this request and a live request of the same name.
  void AddResumed(const std::string& name, std::weak_ptr<Abortable> request);

  // Makes `request` the live request of its name. The previous live request ends with ABORTED
  // RESUMED, since its client now reads the new stream. Errors: ABORTED RESUMED if the live request
  // arrived after `request`, because the client has then resumed once more and abandoned `request`.
  // REQUIRES: `request` is resumed and has a place in the queue.
  absl::Status TakeOver(const std::string& name, const std::shared_ptr<Abortable>& request);

  // Removes the request, live or waiting. Other requests of the same name stay.
  void Remove(const std::string& name, const Abortable* request);

  void AbortAll(const absl::Status& status);

  // Number of names in use.
  int64_t size() const;

  // Errors: kNotFound REQUEST_ID.
  absl::Status Abort(const std::string& name, const absl::Status& status);

 private:
  mutable absl::Mutex mutex_;
  // The requests of one name. The pointers are weak, so that the map keeps no call alive.
  struct Holders {
    std::weak_ptr<Abortable> live;
    std::vector<std::weak_ptr<Abortable>> resumed;  // waiting to take over the name
  };
  static void RemoveResumed(Holders& holders, const Abortable* request);
  // Appends the requests of `holders` that are still alive.
  static void Collect(const Holders& holders, std::vector<std::shared_ptr<Abortable>>* requests);

  absl::flat_hash_map<std::string, Holders> requests_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace quire

#endif  // QUIRE_SCHEDULER_RPC_LIVE_REQUESTS_H_
