#include "common/http/http_pages.h"

#include <algorithm>
#include <cstdint>
#include <utility>

#include "common/base/clock.h"

namespace quire {
namespace {

constexpr int64_t kPageTimeoutNs = 10 * kNanosPerSecond;
// A cached page is served for at most this long, even if rendering is slow.
constexpr int64_t kMaxPageAgeNs = 20 * kNanosPerMilli;
// Burst of SharedPage's token bucket, so that a few requests in a row each get a fresh page.
constexpr int64_t kBurstNs = 100 * kNanosPerMilli;

// A page and the requests waiting for it. Concurrent requests share one rendering. A token bucket
// limits rendering to a fifth of the thread's time: a page that takes t ns to render costs 5 t ns
// of the bucket. Over the limit, requests get the previous page.
class SharedPage : public std::enable_shared_from_this<SharedPage> {
 public:
  explicit SharedPage(HttpPage page) : page_(std::move(page)) {}

  void Ask(HttpResponder responder) {
    if (waiting_.empty()) {
      responder.Post([self = shared_from_this()] { self->AnswerAll(); });
    }
    waiting_.push_back(std::move(responder));
  }

 private:
  void AnswerAll() {
    if (const Instant begun = SteadyNow(); begun + kBurstNs >= debt_until_) {
      made_ = page_.make();
      const Instant done = SteadyNow();
      debt_until_ = std::min(std::max(debt_until_, begun) + 5 * (done - begun),
                             done + kMaxPageAgeNs + kBurstNs);
    }
    for (HttpResponder& responder : std::exchange(waiting_, {})) {
      responder.Answer(made_);
    }
  }

  const HttpPage page_;
  HttpResponse made_;
  Instant debt_until_ = 0;
  std::vector<HttpResponder> waiting_;
};

// Returns a page that lists the paths, for people who open the port without a path.
HttpPage IndexOf(const std::vector<HttpPage>& pages) {
  std::string text;
  for (const HttpPage& page : pages) {
    text += page.path + "\n";
  }
  return {"/", [text = std::move(text)] { return HttpResponse{.body = text}; }};
}

}  // namespace

absl::StatusOr<std::unique_ptr<HttpServer>> ServePages(const std::string& host,
                                                       int port,
                                                       std::vector<HttpPage> pages) {
  pages.push_back(IndexOf(pages));
  std::vector<HttpRoute> routes;
  for (HttpPage& page : pages) {
    std::string path = page.path;
    const auto shared = std::make_shared<SharedPage>(std::move(page));
    routes.push_back({.method = "GET",
                      .path = std::move(path),
                      .handler = [shared](const HttpRequest& /*request*/, HttpResponder responder) {
                        shared->Ask(std::move(responder));
                      }});
  }
  return HttpServer::Start({.address = {.unix_path = "", .host = host, .port = port},
                            .max_connections = kMaxPageConnections,
                            .replaces_running = true,
                            .stall_timeout_ns = kPageTimeoutNs},
                           std::move(routes));
}

}  // namespace quire
