// OperatorPages serves a scheduler's pages (metrics, /top) on the gateway's port. The gateway's own
// metrics follow those of the scheduler.
//
// Metrics and the data of /top show how tenants use the prefix cache. If the API needs keys, these
// pages therefore need a key of operators (--admin-api-keys-file).
//
// Thread safety: handlers: the HTTP server's thread; they do not wait. One thread of its own asks
//                the scheduler.
#ifndef QUIRE_DEPLOY_GATEWAY_OPERATOR_PAGES_H_
#define QUIRE_DEPLOY_GATEWAY_OPERATOR_PAGES_H_

#include <cstddef>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"

#include "common/base/mutex.h"
#include "common/http/http_client.h"
#include "common/http/http_responder.h"
#include "common/http/http_route.h"
#include "common/metrics/registry.h"
#include "common/wire/address.h"
#include "common/wire/api_keys.h"

#include <boost/asio/thread_pool.hpp>

namespace quire {

class OperatorPages {
 public:
  // needs_key: true if the API needs keys. keys: those of operators. If `keys` is null, pages about
  // requests admit every caller, or no caller if needs_key. The registry must outlive this object.
  OperatorPages(const Address& scheduler_http,
                bool needs_key,
                std::shared_ptr<ApiKeys> keys,
                const MetricsRegistry& registry);
  // Cancels the fetch that runs.
  ~OperatorPages();

  std::vector<HttpRoute> Routes();

 private:
  // Returns the refusal, or nullopt if the caller may see the page.
  std::optional<HttpResponse> Refusal(const HttpRequest& request) const;
  // Answers with the page, or with 503 if max_waiting requests already wait for this page.
  void Ask(const std::string& path, size_t max_waiting, HttpResponder responder);
  // Fetches the page once for all requests that wait for it.
  void AnswerAll(const std::string& path);
  HttpResponse Fetch(const std::string& path);

  HttpClient client_;  // used by the thread of pool_
  const bool needs_key_;
  const std::shared_ptr<ApiKeys> keys_;
  const MetricsRegistry& registry_;
  Mutex mutex_;
  std::map<std::string, std::vector<HttpResponder>> waiting_ ABSL_GUARDED_BY(mutex_);  // by path
  boost::asio::thread_pool pool_{1};
};

}  // namespace quire

#endif  // QUIRE_DEPLOY_GATEWAY_OPERATOR_PAGES_H_
