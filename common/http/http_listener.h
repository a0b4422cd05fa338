// HttpListener listens on an address and accepts connections.
//
// A client of a Unix socket must run as this process's user or as root; connections of other
// clients are closed at once. If accept fails, for example without a free file descriptor, clients
// wait. Accept is retried every 100 ms; a line is logged at most every 10 s.
//
// Thread safety: only the thread of the io_context, except Bind, which must be called before that
//                thread runs, and the destructor, after it has ended.
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

  // Listens on each address of the host, and skips addresses that this machine does not have. With
  // a Unix path, listens on that socket; fails if a process listens there already.
  boost::system::error_code Bind(const Address& address);

  // Calls `take` with each new connection. In one turn of the event loop, a listening socket
  // accepts at most max_accepts_in_a_turn connections, and stops early if `take` returns false.
  // Accepting only one a turn would make a client wait a turn for each client before it.
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
  std::string unix_path_;  // the socket's file, once bound
  int port_ = 0;
  size_t max_accepts_in_a_turn_ = 1;
  std::function<bool(HttpStream::Socket)> take_;
  Instant logged_at_ = 0;  // time of the last line about failed accepts; 0: none yet
};

}  // namespace quire

#endif  // QUIRE_COMMON_HTTP_HTTP_LISTENER_H_
