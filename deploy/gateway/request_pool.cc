#include "deploy/gateway/request_pool.h"

#include <utility>

#include <boost/asio/post.hpp>

namespace quire {

void RequestPool::Post(HttpRequest request,
                       HttpResponder responder,
                       std::function<void(const HttpRequest&, HttpResponder)> task) {
  boost::asio::thread_pool& pool = request.body.size() > kLargeBodyBytes ? large_ : small_;
  boost::asio::post(pool,
                    [request = std::move(request),
                     responder = std::move(responder),
                     task = std::move(task)]() mutable {
                      if (!responder.is_gone()) {
                        task(request, std::move(responder));
                      }
                    });
}

void RequestPool::PostLarge(std::function<void()> task) {
  boost::asio::post(large_, std::move(task));
}

void RequestPool::Stop() {
  for (boost::asio::thread_pool* pool : {&small_, &large_}) {
    pool->stop();
    pool->join();
  }
}

}  // namespace quire
