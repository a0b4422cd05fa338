#include "scheduler/rpc/live_requests.h"

#include <utility>

#include "common/base/error.h"

namespace quire {
namespace {

absl::Status Resumed() {
  return Error(absl::StatusCode::kAborted, "RESUMED", "stream: the request goes on in another one");
}

}  // namespace

absl::Status LiveRequests::Add(const std::string& request_id, std::weak_ptr<Abortable> request) {
  absl::MutexLock lock(&mutex_);
  const auto [entry, is_new] = requests_.try_emplace(request_id);
  if (!is_new) {
    return Error(absl::StatusCode::kAlreadyExists,
                 "REQUEST_ID_IN_USE",
                 "request_id: a request with this id is running");
  }
  entry->second = std::move(request);
  return absl::OkStatus();
}

absl::Status LiveRequests::TakeOver(const std::string& request_id,
                                    const std::shared_ptr<Abortable>& request) {
  std::shared_ptr<Abortable> before;
  {
    absl::MutexLock lock(&mutex_);
    std::weak_ptr<Abortable>& entry = requests_[request_id];
    before = entry.lock();
    if (before != nullptr && before->arrival() > request->arrival()) {
      return Resumed();
    }
    entry = request;
  }
  if (before != nullptr) {
    before->Abort(Resumed());
  }
  return absl::OkStatus();
}

void LiveRequests::Remove(const std::string& request_id, const Abortable* request) {
  absl::MutexLock lock(&mutex_);
  auto it = requests_.find(request_id);
  if (it != requests_.end() && it->second.lock().get() == request) {
    requests_.erase(it);
  }
}

absl::Status LiveRequests::Abort(const std::string& request_id, absl::Status status) {
  std::shared_ptr<Abortable> request;
  {
    absl::MutexLock lock(&mutex_);
    auto it = requests_.find(request_id);
    if (it != requests_.end()) {
      request = it->second.lock();
    }
  }
  if (request == nullptr) {
    return Error(
        absl::StatusCode::kNotFound, "REQUEST_ID", "request_id: no such request is running");
  }
  request->Abort(std::move(status));
  return absl::OkStatus();
}

}  // namespace quire
