#include "scheduler/rpc/live_requests.h"

#include <utility>

#include "absl/strings/str_cat.h"

#include "common/base/error.h"
#include "common/base/string_view.h"

namespace quire {
namespace {

absl::Status Resumed() {
  return Error(absl::StatusCode::kAborted,
               "RESUMED",
               "stream: the client resumed the request on another stream");
}

}  // namespace

std::string LiveRequests::NameOf(std::string_view tenant, std::string_view request_id) {
  return absl::StrCat(ToAbsl(tenant), "/", ToAbsl(request_id));  // tenants and ids contain no slash
}

absl::Status LiveRequests::Add(const std::string& name, std::weak_ptr<Abortable> request) {
  absl::MutexLock lock(&mutex_);
  const auto [entry, is_new] = requests_.try_emplace(name);
  if (!is_new) {
    return Error(absl::StatusCode::kAlreadyExists,
                 "REQUEST_ID_IN_USE",
                 "request_id: a request with this id is running");
  }
  entry->second.live = std::move(request);
  return absl::OkStatus();
}

void LiveRequests::AddResumed(const std::string& name, std::weak_ptr<Abortable> request) {
  absl::MutexLock lock(&mutex_);
  requests_[name].resumed.push_back(std::move(request));
}

absl::Status LiveRequests::TakeOver(const std::string& name,
                                    const std::shared_ptr<Abortable>& request) {
  std::shared_ptr<Abortable> before;
  {
    absl::MutexLock lock(&mutex_);
    Holders& holders = requests_[name];
    before = holders.live.lock();
    if (before != nullptr && before->arrival() > request->arrival()) {
      return Resumed();
    }
    RemoveResumed(holders, request.get());
    holders.live = request;
  }
  if (before != nullptr) {
    before->Abort(Resumed());
  }
  return absl::OkStatus();
}

void LiveRequests::Remove(const std::string& name, const Abortable* request) {
  absl::MutexLock lock(&mutex_);
  auto it = requests_.find(name);
  if (it == requests_.end()) {
    return;
  }
  Holders& holders = it->second;
  RemoveResumed(holders, request);
  if (holders.live.lock().get() == request) {
    holders.live.reset();
  }
  if (holders.live.expired() && holders.resumed.empty()) {
    requests_.erase(it);
  }
}

absl::Status LiveRequests::Abort(const std::string& name, const absl::Status& status) {
  std::vector<std::shared_ptr<Abortable>> found;
  {
    absl::MutexLock lock(&mutex_);
    if (auto it = requests_.find(name); it != requests_.end()) {
      Collect(it->second, &found);
    }
  }
  if (found.empty()) {
    return Error(
        absl::StatusCode::kNotFound, "REQUEST_ID", "request_id: no such request is running");
  }
  for (const std::shared_ptr<Abortable>& each : found) {
    each->Abort(status);
  }
  return absl::OkStatus();
}

void LiveRequests::AbortAll(const absl::Status& status) {
  std::vector<std::shared_ptr<Abortable>> found;
  {
    absl::MutexLock lock(&mutex_);
    for (const auto& [name, holders] : requests_) {
      Collect(holders, &found);
    }
  }
  for (const std::shared_ptr<Abortable>& each : found) {
    each->Abort(status);
  }
}

int64_t LiveRequests::size() const {
  absl::MutexLock lock(&mutex_);
  return static_cast<int64_t>(requests_.size());
}

void LiveRequests::Collect(const Holders& holders,
                           std::vector<std::shared_ptr<Abortable>>* requests) {
  requests->push_back(holders.live.lock());
  for (const std::weak_ptr<Abortable>& each : holders.resumed) {
    requests->push_back(each.lock());
  }
  std::erase(*requests, nullptr);
}

void LiveRequests::RemoveResumed(Holders& holders, const Abortable* request) {
  std::erase_if(holders.resumed, [request](const std::weak_ptr<Abortable>& each) {
    const std::shared_ptr<Abortable> resumed = each.lock();
    return resumed == nullptr || resumed.get() == request;
  });
}

}  // namespace quire
