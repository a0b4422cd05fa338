// RequestPool runs the work that a request needs before it streams: parsing, rendering, tokenizing.
// Small requests share two threads. Large bodies and large answers share a third thread, so a small
// request waits only for other small ones. The work of a client that has left is dropped.
//
// Thread safety: any thread; Stop: one thread.
#ifndef QUIRE_DEPLOY_GATEWAY_REQUEST_POOL_H_
#define QUIRE_DEPLOY_GATEWAY_REQUEST_POOL_H_

#include <cstddef>
#include <functional>

#include "common/http/http_message.h"
#include "common/http/http_responder.h"

#include <boost/asio/thread_pool.hpp>

namespace quire {

class RequestPool {
 public:
  static constexpr size_t kLargeBodyBytes = 64 << 10;

  // `task` answers the request, now or later.
  void Post(HttpRequest request,
            HttpResponder responder,
            std::function<void(const HttpRequest&, HttpResponder)> task);
  // Runs a task that makes a large answer.
  void PostLarge(std::function<void()> task);

  // Waits for the tasks that run. Drops the tasks that have not begun.
  void Stop();

 private:
  boost::asio::thread_pool small_{2};
  boost::asio::thread_pool large_{1};
};

}  // namespace quire

#endif  // QUIRE_DEPLOY_GATEWAY_REQUEST_POOL_H_
