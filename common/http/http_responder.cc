#include "common/http/http_responder.h"

#include <utility>

#include "common/http/http_exchange.h"

namespace quire {

HttpResponder::HttpResponder(std::shared_ptr<HttpExchange> exchange)
    : exchange_(std::move(exchange)) {}

HttpResponder::~HttpResponder() {
  if (exchange_ != nullptr) {
    exchange_->Abandon();
  }
}

void HttpResponder::Answer(HttpResponse response) {
  exchange_->SetHead(std::move(response), /*is_stream=*/false);
}

void HttpResponder::Begin(HttpResponse response) {
  response.body.clear();
  exchange_->SetHead(std::move(response), /*is_stream=*/true);
}

bool HttpResponder::Write(std::string_view text) { return exchange_->Write(text); }

void HttpResponder::Finish() { exchange_->Finish(); }

bool HttpResponder::is_gone() const { return exchange_->is_gone(); }

size_t HttpResponder::unsent_bytes() const { return exchange_->unsent_bytes(); }

void HttpResponder::OnDrained(size_t max_unsent_bytes, std::function<void()> callback) {
  exchange_->OnDrained(max_unsent_bytes, std::move(callback));
}

void HttpResponder::OnDisconnect(std::function<void()> callback) {
  exchange_->OnDisconnect(std::move(callback));
}

void HttpResponder::Post(std::function<void()> task) { exchange_->Post(std::move(task)); }

}  // namespace quire
