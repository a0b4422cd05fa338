#include "common/http/http_listener.h"

#include <chrono>
#include <filesystem>
#include <memory>
#include <system_error>
#include <utility>

#include "common/base/log.h"
#include "common/base/unix_socket.h"

#include <boost/asio/error.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/ip/v6_only.hpp>
#include <boost/asio/local/stream_protocol.hpp>
#include <boost/asio/steady_timer.hpp>

namespace quire {
namespace {

namespace asio = boost::asio;
using asio::ip::tcp;
using ErrorCode = boost::system::error_code;

// Retry interval of accept while the process has no file descriptor left.
constexpr std::chrono::milliseconds kAcceptPause(100);
constexpr int64_t kFailureLogIntervalNs = 10 * kNanosPerSecond;

int PortOf(const asio::generic::stream_protocol::endpoint& endpoint) {
  const auto* address = reinterpret_cast<const sockaddr_in*>(endpoint.data());
  return ntohs(address->sin_port);  // sockaddr_in6 has its port at the same offset
}

}  // namespace

ErrorCode HttpListener::Bind(const Address& address) {
  if (address.is_unix()) {
    return BindUnix(address.unix_path);
  }
  ErrorCode error;
  const auto found =
      tcp::resolver(context_).resolve(address.host, "0", tcp::resolver::numeric_service, error);
  for (const auto& entry : found) {
    tcp::endpoint endpoint = entry.endpoint();
    endpoint.port(static_cast<uint16_t>(port_ == 0 ? address.port : port_));
    error = ListenAt(endpoint, address.host == "::");
    if (error && error != asio::error::address_family_not_supported &&
        error != make_error_code(boost::system::errc::address_not_available)) {
      return error;
    }
  }
  return acceptors_.empty() ? error : ErrorCode();
}

ErrorCode HttpListener::BindUnix(const std::string& path) {
  if (path.size() > kMaxUnixPathBytes) {
    return asio::error::name_too_long;
  }
  if (IsListenedOn(path)) {
    return asio::error::address_in_use;
  }
  std::error_code ignored;
  if (std::filesystem::is_socket(path, ignored)) {
    std::filesystem::remove(path, ignored);  // a dead process left it
  }
  const ErrorCode error =
      ListenAt(asio::local::stream_protocol::endpoint(path), /*takes_ipv4_too=*/false);
  unix_path_ = error ? "" : path;
  return error;
}

ErrorCode HttpListener::ListenAt(const asio::generic::stream_protocol::endpoint& endpoint,
                                 bool takes_ipv4_too) {
  const int family = endpoint.protocol().family();
  Acceptor acceptor(context_);
  ErrorCode error;
  acceptor.open(endpoint.protocol(), error);
  if (!error && family != AF_UNIX) {
    acceptor.set_option(Acceptor::reuse_address(true), error);
  }
  if (!error && family == AF_INET6) {
    acceptor.set_option(asio::ip::v6_only(!takes_ipv4_too), error);
  }
  if (!error) {
    acceptor.bind(endpoint, error);
  }
  if (!error) {
    acceptor.listen(Acceptor::max_listen_connections, error);
  }
  if (!error) {
    acceptor.non_blocking(true, error);
  }
  if (!error) {
    port_ = family == AF_UNIX ? 0 : PortOf(acceptor.local_endpoint(error));
    acceptors_.push_back(std::move(acceptor));
  }
  return error;
}

void HttpListener::Start(size_t max_accepts_in_a_turn,
                         std::function<bool(HttpStream::Socket)> take) {
  max_accepts_in_a_turn_ = max_accepts_in_a_turn;
  take_ = std::move(take);
  for (Acceptor& acceptor : acceptors_) {
    Accept(acceptor);
  }
}

void HttpListener::Close() {
  for (Acceptor& acceptor : acceptors_) {
    ErrorCode ignored;
    acceptor.close(ignored);
  }
  if (!unix_path_.empty()) {
    std::error_code ignored;
    std::filesystem::remove(std::exchange(unix_path_, ""), ignored);
  }
}

void HttpListener::Accept(Acceptor& acceptor) {
  acceptor.async_wait(Acceptor::wait_read, [this, &acceptor](ErrorCode error) {
    for (size_t i = 0; i < max_accepts_in_a_turn_ && !error && acceptor.is_open(); ++i) {
      HttpStream::Socket socket(context_);
      acceptor.accept(socket, error);
      if (!error && (unix_path_.empty() || IsOwnUsers(socket.native_handle())) &&
          !take_(std::move(socket))) {
        break;
      }
    }
    if (!acceptor.is_open()) {
      return;
    }
    if (!error || error == asio::error::would_block) {
      Accept(acceptor);
    } else {
      RetryLater(acceptor, error);
    }
  });
}

void HttpListener::RetryLater(Acceptor& acceptor, const ErrorCode& error) {
  if (logged_at_ == 0 || SteadyNow() - logged_at_ >= kFailureLogIntervalNs) {
    logged_at_ = SteadyNow();
    LogWarning("the HTTP port cannot accept connections; clients wait",
               {{"cause", error.message()}});
  }
  // Each acceptor has its own timer: resetting a shared timer would wake the other acceptors.
  const auto pause = std::make_shared<asio::steady_timer>(context_, kAcceptPause);
  pause->async_wait([this, &acceptor, pause](ErrorCode) {
    if (acceptor.is_open()) {
      Accept(acceptor);
    }
  });
}

}  // namespace quire
