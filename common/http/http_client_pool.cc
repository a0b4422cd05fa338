#include "common/http/http_client_pool.h"

#include <thread>
#include <unordered_set>
#include <utility>
#include <vector>

#include "common/http/http_caller.h"

#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/post.hpp>

namespace quire {

class HttpClientPool::Impl {
 public:
  explicit Impl(HttpClientOptions options)
      : options_(std::move(options)), tls_(HttpTls::Side::kClient, options_.tls) {
    thread_ = std::thread([this] { context_.run(); });
  }
  ~Impl() {
    boost::asio::post(context_, [this] {
      for (const CallerPtr& caller : std::unordered_set<CallerPtr>(running_)) {
        caller->Cancel();
      }
      work_.reset();
    });
    thread_.join();
  }
  Impl(const Impl&) = delete;
  Impl& operator=(const Impl&) = delete;

  void Start(HttpClientRequest request,
             int64_t timeout_ns,
             HttpPieceCallback on_piece,
             OnEnd on_end) {
    boost::asio::post(context_,
                      [this,
                       timeout_ns,
                       request = std::move(request),
                       on_piece = std::move(on_piece),
                       on_end = std::move(on_end)]() mutable {
                        Run(request, timeout_ns, std::move(on_piece), std::move(on_end));
                      });
  }

 private:
  using CallerPtr = std::shared_ptr<HttpCaller>;

  void Run(const HttpClientRequest& request,
           int64_t timeout_ns,
           HttpPieceCallback on_piece,
           OnEnd on_end) {
    if (idle_.empty()) {
      idle_.push_back(std::make_shared<HttpCaller>(context_, options_, tls_));
    }
    const CallerPtr caller = idle_.back();
    idle_.pop_back();
    running_.insert(caller);
    caller->Start(request,
                  timeout_ns,
                  std::move(on_piece),
                  [this, caller, on_end = std::move(on_end)](absl::StatusOr<HttpResponse> head) {
                    running_.erase(caller);
                    idle_.push_back(caller);
                    on_end(std::move(head));
                  });
  }

  const HttpClientOptions options_;
  boost::asio::io_context context_{/*concurrency_hint=*/1};
  boost::asio::executor_work_guard<boost::asio::io_context::executor_type> work_ =
      boost::asio::make_work_guard(context_);
  HttpTls tls_;
  std::vector<CallerPtr> idle_;
  std::unordered_set<CallerPtr> running_;
  std::thread thread_;
};

HttpClientPool::HttpClientPool(HttpClientOptions options)
    : impl_(std::make_unique<Impl>(std::move(options))) {}

HttpClientPool::~HttpClientPool() = default;

void HttpClientPool::Start(HttpClientRequest request,
                           int64_t timeout_ns,
                           HttpPieceCallback on_piece,
                           OnEnd on_end) {
  impl_->Start(std::move(request), timeout_ns, std::move(on_piece), std::move(on_end));
}

}  // namespace quire
