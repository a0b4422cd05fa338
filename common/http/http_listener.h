// HttpListener listens on an address and accepts connections.
//
// A client of a Unix socket must run as this process's user or as root; others are closed at once.
// While the process has no file descriptor left, clients wait, accept is retried after 100 ms, and
// a line is logged at most every 10 s.
//
// Thread safety: the thread of the io_context; Bind and the destructor before and after it.
#ifndef QUIRE_COMMON_HTTP_HTTP_LISTENER_H_
#define QUIRE_COMMON_HTTP_HTTP_LISTENER_H_

#include <cstddef>
#include <functional>
#include <list>
#include <string>

#include "common/base/clock.h"
#include "common/http/http_stream.h"
#include "common/wire/address.h"

#include <boost/asio/basic_socket_acceptor.hpp>
#include <boost/asio/io_context.hpp>

namespace quire {

class HttpListener {
 public:
  explicit HttpListener(boost::asio::io_context& context) : context_(context) {}
  ~HttpListener() { Close(); }
  HttpListener(const HttpListener&) = delete;
  HttpListener& operator=(const HttpListener&) = delete;

  // Listens on every address that the host resolves to, and skips those that this machine does not
  // have; or on the Unix socket, unless a process listens there.
  boost::system::error_code Bind(const Address& address);

  // Calls `take` with each new connection. Each listening socket accepts several in one turn of the
  // event loop, at most max_accepts_in_a_turn, until `take` returns false: with one connection
  // in each turn a new client would wait a turn for each connection before its own.
  void Start(size_t max_accepts_in_a_turn, std::function<bool(HttpStream::Socket)> take);

  // Accepts no more.
  void Close();

  int port() const { return port_; }

 private:
  using Acceptor = boost::asio::basic_socket_acceptor<boost::asio::generic::stream_protocol>;

  boost::system::error_code BindUnix(const std::string& path);
  boost::system::error_code ListenAt(
      const boost::asio::generic::stream_protocol::endpoint& endpoint, bool takes_ipv4_too);
  void Accept(Acceptor& acceptor);
  void RetryLater(Acceptor& acceptor, const boost::system::error_code& error);

  boost::asio::io_context& context_;
  std::list<Acceptor> acceptors_;
  std::string unix_path_;  // set after a bind to it
  int port_ = 0;
  size_t max_accepts_in_a_turn_ = 1;
  std::function<bool(HttpStream::Socket)> take_;
  Instant logged_at_ = 0;  // time of the last line about failed accepts; 0: none yet
};

}  // namespace quire

#endif  // QUIRE_COMMON_HTTP_HTTP_LISTENER_H_
