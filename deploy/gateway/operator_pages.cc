#include "deploy/gateway/operator_pages.h"

#include <limits>
#include <utility>

#include "common/base/clock.h"
#include "deploy/gateway/openai/error_body.h"

#include <boost/asio/post.hpp>

namespace quire {
namespace {

constexpr int64_t kFetchTimeoutNs = 5 * kNanosPerSecond;
constexpr size_t kMaxPageBytes = 64 << 20;
// Upper bound on the requests that wait for a large page, because each gets a copy of the page.
constexpr size_t kFew = 32;
constexpr size_t kAny = std::numeric_limits<size_t>::max();

constexpr char kMetricsPath[] = "/metrics";
constexpr char kNativeMetricsPath[] = "/metrics/native";  // only metrics with Quire's own names

struct Page {
  const char* path;
  bool is_open;  // needs no key, because it shows nothing about requests
  size_t max_waiting;
};
constexpr Page kPages[] = {{kMetricsPath, false, kFew},
                           {kNativeMetricsPath, false, kFew},
                           {"/top", true, kFew},
                           {"/top.json", false, kFew},
                           {"/admission", true, kAny},
                           {"/healthz", true, kAny}};

HttpResponse JsonError(int status_code, std::string_view message) {
  return {.status_code = status_code,
          .body = HttpErrorBody(status_code, message),
          .content_type = "application/json"};
}

}  // namespace

OperatorPages::OperatorPages(const Address& scheduler_http,
                             bool needs_key,
                             std::shared_ptr<ApiKeys> keys,
                             const MetricsRegistry& registry)
    : client_({.address = scheduler_http}),
      needs_key_(needs_key),
      keys_(std::move(keys)),
      registry_(registry) {}

OperatorPages::~OperatorPages() {
  pool_.stop();  // drops fetches that have not begun
  client_.Cancel();
  pool_.join();
}

std::vector<HttpRoute> OperatorPages::Routes() {
  std::vector<HttpRoute> routes;
  for (const Page& page : kPages) {
    auto handler = [this, page](const HttpRequest& request, HttpResponder responder) {
      if (const auto refusal = page.is_open ? std::nullopt : Refusal(request)) {
        responder.Answer(*refusal);
        return;
      }
      Ask(page.path, page.max_waiting, std::move(responder));
    };
    // is_open: the HTTP server does not check clients' keys on this route. The handler checks
    // operators' keys instead (Refusal).
    routes.push_back(
        {.method = "GET", .path = page.path, .handler = std::move(handler), .is_open = true});
  }
  return routes;
}

std::optional<HttpResponse> OperatorPages::Refusal(const HttpRequest& request) const {
  if (!needs_key_ && keys_ == nullptr) {
    return std::nullopt;
  }
  if (keys_ == nullptr) {
    return JsonError(403, "this page is for operators; the server needs --admin-api-keys-file");
  }
  if (keys_->TenantOf(request.Header("authorization")).ok()) {
    return std::nullopt;
  }
  HttpResponse response = JsonError(401, "this page needs the API key of an operator");
  response.headers.emplace_back("WWW-Authenticate", "Bearer");
  return response;
}

void OperatorPages::Ask(const std::string& path, size_t max_waiting, HttpResponder responder) {
  const MutexLock lock(mutex_);
  std::vector<HttpResponder>& waiting = waiting_[path];
  if (waiting.size() >= max_waiting) {
    responder.Answer(JsonError(503, "too many requests for this page"));
    return;
  }
  waiting.push_back(std::move(responder));
  if (waiting.size() == 1) {
    boost::asio::post(pool_, [this, path] { AnswerAll(path); });
  }
}

void OperatorPages::AnswerAll(const std::string& path) {
  std::vector<HttpResponder> waiting;
  {
    const MutexLock lock(mutex_);
    waiting_[path].swap(waiting);
  }
  const HttpResponse page = Fetch(path);
  for (HttpResponder& responder : waiting) {
    responder.Answer(page);
  }
}

HttpResponse OperatorPages::Fetch(const std::string& path) {
  absl::StatusOr<HttpResponse> page =
      client_.Send({.method = "GET", .target = path}, kMaxPageBytes, kFetchTimeoutNs);
  if (!page.ok()) {
    return JsonError(503, "the scheduler does not answer");
  }
  HttpResponse response = {.status_code = page->status_code,
                           .body = std::move(page->body),
                           .content_type = std::move(page->content_type)};
  // Passes on only this header, because all others are about the connection to the scheduler.
  for (auto& [name, value] : page->headers) {
    if (name == "Content-Security-Policy") {
      response.headers.emplace_back(name, std::move(value));
    }
  }
  const bool has_metrics = path == kMetricsPath || path == kNativeMetricsPath;
  if (has_metrics && response.status_code == 200) {
    response.body += registry_.NativeText();
  }
  return response;
}

}  // namespace quire
