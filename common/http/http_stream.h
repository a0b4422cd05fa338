// HttpStream is the socket of a connection, with or without TLS over it.
//
// Thread safety: the thread of the socket's io_context.
#ifndef QUIRE_COMMON_HTTP_HTTP_STREAM_H_
#define QUIRE_COMMON_HTTP_HTTP_STREAM_H_

#include <memory>
#include <utility>

#include <boost/asio/buffer.hpp>
#include <boost/asio/generic/stream_protocol.hpp>
#include <boost/asio/ssl/context.hpp>
#include <boost/asio/ssl/stream.hpp>

namespace quire {

class HttpStream {
 public:
  using Socket = boost::asio::generic::stream_protocol::socket;

  // tls: null for plain text; not needed after the constructor.
  HttpStream(Socket socket, boost::asio::ssl::context* tls) : socket_(std::move(socket)) {
    if (tls != nullptr) {
      tls_ = std::make_unique<boost::asio::ssl::stream<Socket&>>(socket_, *tls);
    }
  }

  bool is_tls() const { return tls_ != nullptr; }
  Socket& socket() { return socket_; }

  // REQUIRES: is_tls().
  template <typename Handler>
  void Handshake(Handler&& handler) {
    tls_->async_handshake(boost::asio::ssl::stream_base::server, std::forward<Handler>(handler));
  }
  // Sends close_notify, and waits for the client's close_notify. REQUIRES: is_tls().
  template <typename Handler>
  void Shutdown(Handler&& handler) {
    tls_->async_shutdown(std::forward<Handler>(handler));
  }

  // Read and Write transfer some bytes, at least one.
  template <typename Handler>
  void Read(boost::asio::mutable_buffer buffer, Handler&& handler) {
    tls_ == nullptr ? socket_.async_read_some(buffer, std::forward<Handler>(handler))
                    : tls_->async_read_some(buffer, std::forward<Handler>(handler));
  }
  template <typename Handler>
  void Write(boost::asio::const_buffer buffer, Handler&& handler) {
    tls_ == nullptr ? socket_.async_write_some(buffer, std::forward<Handler>(handler))
                    : tls_->async_write_some(buffer, std::forward<Handler>(handler));
  }

 private:
  Socket socket_;
  std::unique_ptr<boost::asio::ssl::stream<Socket&>> tls_;
};

}  // namespace quire

#endif  // QUIRE_COMMON_HTTP_HTTP_STREAM_H_
