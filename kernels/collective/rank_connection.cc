#include "kernels/collective/rank_connection.h"

#include <cerrno>

#include "kernels/collective/fd_passing.h"

namespace quire {

void RankConnection::Close() {
  tls.reset();
  socket.Close();
}

std::optional<bool> RankConnection::ShakeHands() const {
  const auto progress = tls == nullptr ? TlsChannel::Progress::kDone : tls->ShakeHands();
  return progress == TlsChannel::Progress::kGoesOn
             ? std::nullopt
             : std::optional(progress == TlsChannel::Progress::kDone);
}

std::optional<bool> RankConnection::ReadRest(std::span<std::byte> expected,
                                             size_t* num_read,
                                             FileDescriptor* memory) const {
  while (*num_read < expected.size()) {
    const std::optional<size_t> came = Receive(expected.subspan(*num_read), memory);
    if (!came.has_value()) {
      return false;
    }
    if (*came == 0) {
      return std::nullopt;
    }
    *num_read += *came;
  }
  return true;
}

bool RankConnection::SendAll(std::span<const std::byte> bytes, const FileDescriptor& memory) const {
  if (tls != nullptr) {
    return tls->Send(bytes) == bytes.size() && !tls->has_unsent();
  }
  return SendWithFd(socket.fd(), bytes, memory.fd()) == static_cast<ssize_t>(bytes.size());
}

std::optional<size_t> RankConnection::Receive(std::span<std::byte> bytes,
                                              FileDescriptor* memory) const {
  if (tls != nullptr) {
    return tls->Receive(bytes);
  }
  const ssize_t came = ReceiveWithFd(socket.fd(), bytes, memory);
  if (came < 0 && (errno == EAGAIN || errno == EINTR)) {
    return 0;
  }
  return came > 0 ? std::optional(static_cast<size_t>(came)) : std::nullopt;
}

}  // namespace quire
