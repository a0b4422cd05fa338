#include "common/http/http_client.h"

#include <atomic>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"

#include "common/base/check.h"
#include "common/base/error.h"
#include "common/base/status_macros.h"
#include "common/http/http_caller.h"

#include <boost/asio/io_context.hpp>
#include <boost/asio/post.hpp>

namespace quire {

class HttpClient::Impl {
 public:
  explicit Impl(Options options)
      : options_(std::move(options)), tls_(HttpTls::Side::kClient, options_.tls) {}

  absl::StatusOr<HttpResponse> Stream(const HttpClientRequest& request,
                                      int64_t timeout_ns,
                                      const HttpPieceCallback& on_piece) {
    std::optional<absl::StatusOr<HttpResponse>> result;
    context_.restart();
    running_ = ++num_calls_;
    caller_->Start(request, timeout_ns, on_piece, [&result](absl::StatusOr<HttpResponse> head) {
      result = std::move(head);
    });
    while (!result.has_value()) {
      QUIRE_CHECK(context_.run_one() > 0);
    }
    running_ = 0;
    context_.poll();  // runs the call's cancelled operations, which frees them
    return *std::move(result);
  }

  void Cancel() {
    if (const uint64_t call = running_; call != 0) {
      boost::asio::post(context_, [this, call] {
        if (running_ == call) {
          caller_->Cancel();
        }
      });
    }
  }

 private:
  const Options options_;
  boost::asio::io_context context_{/*concurrency_hint=*/1};
  HttpTls tls_;
  const std::shared_ptr<HttpCaller> caller_ =
      std::make_shared<HttpCaller>(context_, options_, tls_);
  uint64_t num_calls_ = 0;
  std::atomic<uint64_t> running_ = 0;  // number of the call that runs; 0: none
};

HttpClient::HttpClient(Options options) : impl_(std::make_unique<Impl>(std::move(options))) {}

HttpClient::~HttpClient() = default;

absl::StatusOr<HttpResponse> HttpClient::Send(const HttpClientRequest& request,
                                              size_t max_body_bytes,
                                              int64_t timeout_ns) {
  std::string body;
  bool is_too_large = false;
  absl::StatusOr<HttpResponse> answer =
      impl_->Stream(request, timeout_ns, [&](const HttpResponse& /*head*/, std::string_view piece) {
        is_too_large = piece.size() > max_body_bytes - body.size();
        if (!is_too_large) {
          body.append(piece);
        }
        return !is_too_large;
      });
  if (is_too_large) {
    return Error(
        absl::StatusCode::kInternal,
        "HTTP_ANSWER_SIZE",
        absl::StrCat("http: the server's answer is too large (limit ", max_body_bytes, " bytes)"));
  }
  QUIRE_RETURN_IF_ERROR(answer.status());
  answer->body = std::move(body);
  return answer;
}

absl::StatusOr<HttpResponse> HttpClient::Stream(const HttpClientRequest& request,
                                                int64_t timeout_ns,
                                                const HttpPieceCallback& on_piece) {
  return impl_->Stream(request, timeout_ns, on_piece);
}

void HttpClient::Cancel() { impl_->Cancel(); }

}  // namespace quire
