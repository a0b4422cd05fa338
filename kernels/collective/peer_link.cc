#include "kernels/collective/peer_link.h"

#include <poll.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "common/base/error.h"
#include "common/base/status_macros.h"

#include <sys/socket.h>

namespace quire {
namespace {

// Upper bound on the bytes of one piece of a message. Pieces are small, so that one end reads while
// the other one writes.
constexpr size_t kPieceBytes = size_t{16} << 10;

constexpr const char* kClosed = "the other end has closed";
constexpr const char* kBroken = "the connection is broken";
constexpr const char* kGarbled = "the shared memory is garbled";

absl::Status Broken(const char* what) {
  return Error(absl::StatusCode::kUnavailable, "GROUP_BROKEN", what);
}

// Returns how many bytes send or recv moved, perhaps 0, or nullopt if the connection has ended.
std::optional<size_t> NumMoved(ssize_t result) {
  if (result < 0 && (errno == EAGAIN || errno == EINTR)) {
    return 0;
  }
  return result > 0 ? std::optional(static_cast<size_t>(result)) : std::nullopt;
}

}  // namespace

PeerLink::PeerLink(int socket,
                   std::unique_ptr<SharedChannel> channel,
                   std::unique_ptr<TlsChannel> tls)
    : socket_(socket), channel_(std::move(channel)), tls_(std::move(tls)) {}

absl::Status PeerLink::Exchange(std::span<const std::byte> out, std::span<std::byte> in) {
  if (channel_ == nullptr) {
    return ExchangeOverSocket(out, in);
  }
  return ExchangeShared(out,
                        in.size(),
                        /*follows=*/false,
                        [&in](size_t offset, std::span<const std::byte> piece) {
                          std::memcpy(&in[offset], piece.data(), piece.size());
                        });
}

absl::Status PeerLink::Merge(std::span<const std::byte> data, TakePiece take) {
  if (channel_ != nullptr) {
    return ExchangeShared(data, data.size(), /*follows=*/true, take);
  }
  if (received_.size() < data.size()) {
    received_.resize(data.size());
  }
  const std::span<std::byte> received = std::span(received_).first(data.size());
  QUIRE_RETURN_IF_ERROR(ExchangeOverSocket(data, received));
  take(0, received);
  return absl::OkStatus();
}

absl::Status PeerLink::ExchangeShared(std::span<const std::byte> out,
                                      size_t in_bytes,
                                      bool follows,
                                      TakePiece take) {
  size_t num_sent = 0;
  size_t num_taken = 0;
  bool is_dead = false;
  while (num_sent < out.size() || num_taken < in_bytes) {
    if (channel_->is_closed()) {
      return Broken("aborted");
    }
    // Reads the closed flag before Peek. Else bytes that the other end wrote just before it closed
    // would be lost.
    const bool is_alone = is_dead || channel_->is_closed_by_other();
    const auto sent =
        channel_->Send(out.subspan(num_sent, std::min(kPieceBytes, out.size() - num_sent)));
    if (!sent.has_value()) {
      return Broken(kGarbled);
    }
    num_sent += *sent;
    const size_t may_take = (follows ? num_sent : in_bytes) - num_taken;
    const auto piece = channel_->Peek(std::min(kPieceBytes, may_take));
    if (!piece.has_value()) {
      return Broken(kGarbled);
    }
    if (!piece->empty()) {
      take(num_taken, *piece);
      channel_->Release(piece->size());
      num_taken += piece->size();
    }
    if (*sent > 0 || !piece->empty()) {
      continue;
    }
    if (is_alone) {
      return Broken(kClosed);
    }
    const bool wants_data = num_taken < (follows ? num_sent : in_bytes);
    const bool wants_room = num_sent < out.size();
    is_dead =
        channel_->Wait(wants_data, wants_room) == SharedChannel::Waited::kNothing && has_ended();
  }
  return absl::OkStatus();
}

bool PeerLink::has_ended() const {
  pollfd socket = {.fd = socket_.fd(), .events = POLLRDHUP, .revents = 0};
  return ::poll(&socket, 1, 0) > 0;
}

std::optional<size_t> PeerLink::Send(std::span<const std::byte> bytes) {
  if (tls_ != nullptr) {
    return tls_->Send(bytes);
  }
  return NumMoved(::send(socket_.fd(), bytes.data(), bytes.size(), MSG_NOSIGNAL | MSG_DONTWAIT));
}

std::optional<size_t> PeerLink::Receive(std::span<std::byte> bytes) {
  if (tls_ != nullptr) {
    return tls_->Receive(bytes);
  }
  return NumMoved(::recv(socket_.fd(), bytes.data(), bytes.size(), MSG_DONTWAIT));
}

absl::Status PeerLink::ExchangeOverSocket(std::span<const std::byte> out, std::span<std::byte> in) {
  // Sends and receives in turns. If two ranks first sent everything, they would deadlock once the
  // sockets' buffers are full.
  while (!out.empty() || has_unsent() || !in.empty()) {
    bool has_moved = false;
    if (!out.empty() || has_unsent()) {
      const std::optional<size_t> sent = Send(out);
      if (!sent.has_value()) {
        return Broken(has_ended() ? kClosed : kBroken);
      }
      has_moved |= *sent > 0;
      out = out.subspan(*sent);
    }
    if (!in.empty()) {
      const std::optional<size_t> came = Receive(in);
      if (!came.has_value()) {
        return Broken(has_ended() ? kClosed : kBroken);
      }
      has_moved |= *came > 0;
      in = in.subspan(*came);
    }
    const bool wants_room = !out.empty() || has_unsent();
    if (!has_moved && (wants_room || !in.empty())) {
      constexpr int kForEver = -1;
      pollfd wanted = {
          .fd = socket_.fd(),
          .events = static_cast<int16_t>((wants_room ? POLLOUT : 0) | (in.empty() ? 0 : POLLIN)),
          .revents = 0};
      ::poll(&wanted, 1, kForEver);
    }
  }
  return absl::OkStatus();
}

void PeerLink::Abort() const {
  ::shutdown(socket_.fd(), SHUT_RDWR);
  if (channel_ != nullptr) {
    channel_->Close();
  }
}

}  // namespace quire
