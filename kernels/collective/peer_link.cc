#include "kernels/collective/peer_link.h"

#include <poll.h>
#include <unistd.h>

#include <cerrno>
#include <utility>

#include "common/base/error.h"

#include <sys/socket.h>

namespace quire {
namespace {

absl::Status Broken(const char* what) {
  return Error(absl::StatusCode::kUnavailable, "GROUP_BROKEN", what);
}

bool MayGoOn(ssize_t result) {
  return result > 0 || (result < 0 && (errno == EAGAIN || errno == EINTR));
}

}  // namespace

PeerLink::PeerLink(int socket) : socket_(socket) {}

PeerLink::PeerLink(PeerLink&& other) noexcept : socket_(std::exchange(other.socket_, -1)) {}

PeerLink::~PeerLink() {
  if (socket_ >= 0) {
    ::close(socket_);
  }
}

absl::Status PeerLink::Exchange(std::span<const std::byte> out, std::span<std::byte> in) const {
  // Both ways in turns: two ranks that only sent would wait for each other once the sockets are
  // full.
  while (!out.empty() || !in.empty()) {
    bool has_moved = false;
    if (!out.empty()) {
      const ssize_t sent = ::send(socket_, out.data(), out.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
      if (!MayGoOn(sent)) {
        return Broken("the connection is broken");
      }
      has_moved |= sent > 0;
      out = out.subspan(sent > 0 ? static_cast<size_t>(sent) : 0);
    }
    if (!in.empty()) {
      const ssize_t came = ::recv(socket_, in.data(), in.size(), MSG_DONTWAIT);
      if (!MayGoOn(came)) {
        return Broken(came == 0 ? "the other end has closed" : "the connection is broken");
      }
      has_moved |= came > 0;
      in = in.subspan(came > 0 ? static_cast<size_t>(came) : 0);
    }
    if (!has_moved) {
      constexpr int kForEver = -1;
      pollfd wanted = {
          .fd = socket_,
          .events = static_cast<int16_t>((out.empty() ? 0 : POLLOUT) | (in.empty() ? 0 : POLLIN)),
          .revents = 0};
      ::poll(&wanted, 1, kForEver);
    }
  }
  return absl::OkStatus();
}

void PeerLink::Abort() const { ::shutdown(socket_, SHUT_RDWR); }

}  // namespace quire
