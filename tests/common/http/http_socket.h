// HttpSocket is a socket for tests of HttpServer: it sends and reads raw bytes. A read that gets
// nothing for 60 s gives up, and its test fails.
//
// Thread safety: HttpSocket: one thread at a time. Event: any thread.
#ifndef QUIRE_TESTS_COMMON_HTTP_HTTP_SOCKET_H_
#define QUIRE_TESTS_COMMON_HTTP_HTTP_SOCKET_H_

#include <poll.h>

#include <array>
#include <cerrno>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include <gtest/gtest.h>

#include "common/base/file_descriptor.h"
#include "common/base/mutex.h"
#include "common/http/http_server.h"

#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/time.h>

namespace quire {

inline constexpr char kGet[] = "GET /page HTTP/1.1\r\nHost: a\r\n\r\n";
inline constexpr char kGetAndClose[] = "GET /page HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n";

// Returns a request of the first line, with more header lines.
inline std::string Request(const std::string& line,
                           const std::string& headers = "",
                           const std::string& body = "") {
  return line + " HTTP/1.1\r\nHost: a\r\n" + headers + "\r\n" + body;
}

// Returns options for a free port of 127.0.0.1.
inline HttpServerOptions Loopback() {
  return {.address = {.unix_path = "", .host = "127.0.0.1", .port = 0}};
}

inline std::unique_ptr<HttpServer> StartServer(HttpServerOptions options,
                                               std::vector<HttpRoute> routes) {
  auto server = HttpServer::Start(std::move(options), std::move(routes));
  EXPECT_TRUE(server.ok()) << server.status();
  return *std::move(server);
}

// Returns a route GET `path` that answers `text` at once.
inline HttpRoute TextRoute(const std::string& path, const std::string& text) {
  return {.method = "GET",
          .path = path,
          .handler = [text](const HttpRequest& /*request*/, HttpResponder responder) {
            responder.Answer({.body = text});
          }};
}

// As absl::Notification, with a mutex that ThreadSanitizer sees.
class Event {
 public:
  void Notify() {
    const MutexLock lock(mutex_);
    has_come_ = true;
    come_.NotifyAll();
  }
  void Wait() {
    const MutexLock lock(mutex_);
    while (!has_come_) {
      come_.Wait(mutex_);
    }
  }
  bool has_come() {
    const MutexLock lock(mutex_);
    return has_come_;
  }

 private:
  Mutex mutex_;
  CondVar come_;
  bool has_come_ ABSL_GUARDED_BY(mutex_) = false;
};

class HttpSocket {
 public:
  explicit HttpSocket(int port) : socket_(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    const timeval limit = {.tv_sec = 60, .tv_usec = 0};
    ::setsockopt(socket_.fd(), SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof(limit));
    sockaddr_in to = {};
    to.sin_family = AF_INET;
    to.sin_port = htons(static_cast<uint16_t>(port));
    to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    EXPECT_EQ(::connect(socket_.fd(), reinterpret_cast<const sockaddr*>(&to), sizeof(to)), 0);
  }
  explicit HttpSocket(const HttpServer& server) : HttpSocket(server.port()) {}

  int fd() const { return socket_.fd(); }

  void Send(const std::string& bytes) const {
    size_t sent = 0;
    while (sent < bytes.size()) {
      const ssize_t n =
          ::send(socket_.fd(), bytes.data() + sent, bytes.size() - sent, MSG_NOSIGNAL);
      if (n <= 0) {
        return;  // the server may have closed the connection
      }
      sent += static_cast<size_t>(n);
    }
  }

  // Returns all bytes up to `end`, or up to the end of the connection.
  std::string ReadUntil(const std::string& end) {
    while (buffer_.find(end) == std::string::npos && ReadMore()) {
    }
    const size_t at = buffer_.find(end);
    std::string text = buffer_.substr(0, at == std::string::npos ? at : at + end.size());
    buffer_.erase(0, text.size());
    return text;
  }

  std::string ReadToEnd() {
    while (ReadMore()) {
    }
    return std::exchange(buffer_, "");
  }

  // Returns the head of an answer, and the Content-Length bytes of its body.
  std::string ReadAnswer() {
    std::string answer = ReadUntil("\r\n\r\n");
    const std::string name = "Content-Length: ";
    const size_t at = answer.find(name);
    const size_t size = at == std::string::npos ? 0 : std::stoul(answer.substr(at + name.size()));
    while (buffer_.size() < size && ReadMore()) {
    }
    answer += buffer_.substr(0, size);
    buffer_.erase(0, size);
    return answer;
  }

  void EndSending() const { ::shutdown(socket_.fd(), SHUT_WR); }

  // Closes the connection by RST.
  void Reset() {
    const linger at_once = {.l_onoff = 1, .l_linger = 0};
    ::setsockopt(socket_.fd(), SOL_SOCKET, SO_LINGER, &at_once, sizeof(at_once));
    socket_.Close();
  }

  // Waits until the server has reset the connection, and reads nothing. Returns false after 60 s.
  bool WaitForReset() const {
    pollfd poll = {.fd = socket_.fd(), .events = 0, .revents = 0};
    return ::poll(&poll, 1, /*timeout=*/60'000) == 1 && (poll.revents & POLLERR) != 0;
  }

  // How the connection ended for the last read: 0 after the server's end, else the error.
  int error() const { return error_; }

 private:
  bool ReadMore() {
    std::array<char, 65536> bytes;
    const ssize_t n = ::recv(socket_.fd(), bytes.data(), bytes.size(), 0);
    error_ = n < 0 ? errno : 0;
    EXPECT_NE(error_, EAGAIN) << "the server was silent";
    buffer_.append(bytes.data(), n > 0 ? static_cast<size_t>(n) : 0);
    return n > 0;
  }

  FileDescriptor socket_;
  std::string buffer_;
  int error_ = 0;
};

inline std::string Ask(const HttpServer& server, const std::string& request) {
  HttpSocket client(server);
  client.Send(request);
  return client.ReadToEnd();
}

}  // namespace quire

#endif  // QUIRE_TESTS_COMMON_HTTP_HTTP_SOCKET_H_
