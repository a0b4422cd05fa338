// OperatorPages serves a scheduler's pages (metrics, /top) on the gateway's port, so that one port
// shows all. Metrics of the gateway itself follow those of the scheduler.
//
// With API keys, tenants must not see each other's use of the prefix cache. Metrics and the data of
// /top then need a key of operators (--admin-api-keys-file).
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
  // needs_key: clients need a key; operators' keys are `keys` (null: no key is admitted). The
  // registry must outlive this.
  OperatorPages(const Address& scheduler_http,
                bool needs_key,
                std::shared_ptr<ApiKeys> keys,
                const MetricsRegistry& registry);
  // Waits for the page that is being fetched.
  ~OperatorPages();

  std::vector<HttpRoute> Routes();

 private:
  // Returns the refusal, or nullopt if the caller may see the pages.
  std::optional<HttpResponse> Refusal(const HttpRequest& request) const;
  // Answers with the page, or with 503 if max_waiting requests wait for it already.
  void Ask(const std::string& path, size_t max_waiting, HttpResponder responder);
  // Fetches the page once for all requests that wait for it.
  void AnswerAll(const std::string& path);
  HttpResponse Fetch(const std::string& path);

  HttpClient client_;  // of the thread of pool_
  const bool needs_key_;
  const std::shared_ptr<ApiKeys> keys_;
  const MetricsRegistry& registry_;
  Mutex mutex_;
  std::map<std::string, std::vector<HttpResponder>> waiting_ ABSL_GUARDED_BY(mutex_);  // by path
  boost::asio::thread_pool pool_{1};
};

}  // namespace quire

#endif  // QUIRE_DEPLOY_GATEWAY_OPERATOR_PAGES_H_
