#include "scheduler/rpc/live_requests.h"

#include <utility>

#include "absl/strings/str_cat.h"

#include "common/base/error.h"
#include "common/base/string_view.h"

namespace quire {
namespace {

absl::Status Resumed() {
  return Error(absl::StatusCode::kAborted, "RESUMED", "stream: the request goes on in another one");
}

}  // namespace

std::string LiveRequests::NameOf(std::string_view tenant, std::string_view request_id) {
  return absl::StrCat(ToAbsl(tenant), "/", ToAbsl(request_id));  // neither has a slash
}

absl::Status LiveRequests::Add(const std::string& name, std::weak_ptr<Abortable> request) {
  absl::MutexLock lock(&mutex_);
  const auto [entry, is_new] = requests_.try_emplace(name);
  if (!is_new) {
    return Error(absl::StatusCode::kAlreadyExists,
                 "REQUEST_ID_IN_USE",
                 "request_id: a request with this id is running");
  }
  entry->second = std::move(request);
  return absl::OkStatus();
}

absl::Status LiveRequests::TakeOver(const std::string& name,
                                    const std::shared_ptr<Abortable>& request) {
  std::shared_ptr<Abortable> before;
  {
    absl::MutexLock lock(&mutex_);
    std::weak_ptr<Abortable>& entry = requests_[name];
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

void LiveRequests::Remove(const std::string& name, const Abortable* request) {
  absl::MutexLock lock(&mutex_);
  auto it = requests_.find(name);
  if (it != requests_.end() && it->second.lock().get() == request) {
    requests_.erase(it);
  }
}

absl::Status LiveRequests::Abort(const std::string& name, absl::Status status) {
  std::shared_ptr<Abortable> request;
  {
    absl::MutexLock lock(&mutex_);
    auto it = requests_.find(name);
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
