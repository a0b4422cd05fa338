// RawServer answers the requests on one connection after the other with bytes of a script, which
// need not be HTTP.
//
// Thread safety: for tests, one thread. Its own thread serves.
#ifndef QUIRE_TESTS_COMMON_HTTP_RAW_SERVER_H_
#define QUIRE_TESTS_COMMON_HTTP_RAW_SERVER_H_

#include <array>
#include <cstddef>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include <gtest/gtest.h>

#include "common/base/file_descriptor.h"
#include "common/base/mutex.h"
#include "common/wire/address.h"

#include <netinet/in.h>
#include <sys/socket.h>

namespace quire {

class RawServer {
 public:
  struct Connection {
    std::vector<std::string> answers;   // each after the header of one more request
    bool reads_a_last_request = false;  // and ends the connection without an answer
    bool awaits_client = false;         // the client must end the connection
  };

  explicit RawServer(std::vector<Connection> script)
      : listener_(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    sockaddr_in at = {};
    at.sin_family = AF_INET;
    at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof(at);
    EXPECT_EQ(::bind(listener_.fd(), reinterpret_cast<const sockaddr*>(&at), size), 0);
    EXPECT_EQ(::listen(listener_.fd(), 16), 0);
    EXPECT_EQ(::getsockname(listener_.fd(), reinterpret_cast<sockaddr*>(&at), &size), 0);
    port_ = ntohs(at.sin_port);
    thread_ = std::thread([this, script = std::move(script)] {
      for (const Connection& connection : script) {
        Serve(connection);
        const MutexLock lock(mutex_);
        ++num_ended_;
        ended_.NotifyAll();
      }
    });
  }
  ~RawServer() {
    ::shutdown(listener_.fd(), SHUT_RDWR);  // ends an accept for which no client comes
    Join();
  }
  RawServer(const RawServer&) = delete;
  RawServer& operator=(const RawServer&) = delete;

  Address address() const { return {.unix_path = "", .host = "127.0.0.1", .port = port_}; }

  // Waits until the server has ended this many connections.
  void AwaitEnds(size_t count) {
    const MutexLock lock(mutex_);
    while (num_ended_ < count) {
      ended_.Wait(mutex_);
    }
  }

  // Waits for the script's end. Returns the headers of the requests.
  std::vector<std::string> Join() {
    if (thread_.joinable()) {
      thread_.join();
    }
    return requests_;
  }

 private:
  void Serve(const Connection& connection) {
    FileDescriptor client(::accept(listener_.fd(), nullptr, nullptr));
    std::string unread;
    for (const std::string& answer : connection.answers) {
      ReadRequest(client.fd(), unread);
      size_t sent = 0;
      while (sent < answer.size()) {
        const ssize_t n =
            ::send(client.fd(), answer.data() + sent, answer.size() - sent, MSG_NOSIGNAL);
        if (n <= 0) {
          break;  // the client has refused the rest
        }
        sent += static_cast<size_t>(n);
      }
    }
    if (connection.reads_a_last_request) {
      ReadRequest(client.fd(), unread);
    }
    if (connection.awaits_client) {
      while (ReadMore(client.fd(), unread)) {
      }
    }
  }

  void ReadRequest(int client, std::string& unread) {
    while (unread.find("\r\n\r\n") == std::string::npos && ReadMore(client, unread)) {
    }
    const size_t end = unread.find("\r\n\r\n");
    requests_.push_back(unread.substr(0, end));
    unread.erase(0, end == std::string::npos ? end : end + 4);
  }

  static bool ReadMore(int client, std::string& unread) {
    std::array<char, 4096> bytes;
    const ssize_t n = ::recv(client, bytes.data(), bytes.size(), 0);
    unread.append(bytes.data(), n > 0 ? static_cast<size_t>(n) : 0);
    return n > 0;
  }

  FileDescriptor listener_;
  int port_ = 0;
  std::vector<std::string> requests_;  // of the thread, until Join
  Mutex mutex_;
  CondVar ended_;
  size_t num_ended_ ABSL_GUARDED_BY(mutex_) = 0;
  std::thread thread_;
};

}  // namespace quire

#endif  // QUIRE_TESTS_COMMON_HTTP_RAW_SERVER_H_
