#include "tests/support/wiretap.h"

#include <poll.h>

#include <utility>

#include "common/base/check.h"

#include <netinet/in.h>
#include <sys/socket.h>

namespace quire {
namespace {

constexpr int kTickMillis = 5;

sockaddr_in Loopback(int port) {
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = ::htonl(INADDR_LOOPBACK);
  address.sin_port = ::htons(static_cast<uint16_t>(port));
  return address;
}

}  // namespace

FileDescriptor ListenOnLoopback() {
  FileDescriptor socket(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  const sockaddr_in address = Loopback(0);
  QUIRE_CHECK(::bind(socket.fd(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)) ==
                  0 &&
              ::listen(socket.fd(), 64) == 0);
  return socket;
}

int PortOf(const FileDescriptor& socket) {
  sockaddr_in address = {};
  socklen_t length = sizeof(address);
  QUIRE_CHECK(::getsockname(socket.fd(), reinterpret_cast<sockaddr*>(&address), &length) == 0);
  return ::ntohs(address.sin_port);
}

FileDescriptor DialLoopback(int port) {
  FileDescriptor socket(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  const sockaddr_in address = Loopback(port);
  if (::connect(socket.fd(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)) != 0) {
    socket.Close();
  }
  return socket;
}

Wiretap::Wiretap(int target_port)
    : target_port_(target_port), listener_(ListenOnLoopback()), thread_([this] { Run(); }) {}

Wiretap::~Wiretap() {
  is_over_ = true;
  thread_.join();
}

std::string Wiretap::rendezvous() const {
  return "tcp:127.0.0.1:" + std::to_string(PortOf(listener_));
}

std::string Wiretap::bytes_from_dialer() const {
  const MutexLock lock(mutex_);
  return said_[0];
}

std::string Wiretap::bytes_from_listener() const {
  const MutexLock lock(mutex_);
  return said_[1];
}

void Wiretap::Run() {
  while (!is_over_) {
    std::vector<pollfd> fds = {{.fd = listener_.fd(), .events = POLLIN, .revents = 0}};
    for (const Pair& pair : pairs_) {
      for (const FileDescriptor& end : pair) {
        fds.push_back({.fd = end.fd(), .events = POLLIN, .revents = 0});
      }
    }
    ::poll(fds.data(), fds.size(), kTickMillis);
    size_t place = 1;
    for (auto pair = pairs_.begin(); pair != pairs_.end();) {
      bool goes_on = true;
      for (size_t end = 0; end < pair->size(); ++end, ++place) {
        goes_on = goes_on && (fds[place].revents == 0 || HandOn(*pair, end));
      }
      pair = goes_on ? std::next(pair) : pairs_.erase(pair);
    }
    if (fds[0].revents != 0) {
      Pair pair = {FileDescriptor(::accept(listener_.fd(), nullptr, nullptr)),
                   DialLoopback(target_port_)};
      if (pair[0].is_open() && pair[1].is_open()) {
        pairs_.push_back(std::move(pair));
      }
    }
  }
}

bool Wiretap::HandOn(const Pair& pair, size_t from) {
  std::array<char, 16'384> buffer = {};
  const ssize_t came = ::recv(pair[from].fd(), buffer.data(), buffer.size(), 0);
  if (came <= 0) {
    return false;
  }
  if (from == 0 && flip_after_ >= 0) {
    if (flip_after_ < came) {
      buffer[static_cast<size_t>(flip_after_.exchange(-1))] ^= 1;
    } else {
      flip_after_ -= came;
    }
  }
  {
    const MutexLock lock(mutex_);
    said_[from].append(buffer.data(), static_cast<size_t>(came));
  }
  return ::send(pair[1 - from].fd(), buffer.data(), static_cast<size_t>(came), MSG_NOSIGNAL) ==
         came;
}

}  // namespace quire
