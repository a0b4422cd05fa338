#include "kernels/collective/fd_passing.h"

#include <cstring>

#include <sys/socket.h>
#include <sys/uio.h>

namespace quire {
namespace {

// Room for one file descriptor.
union ControlBuffer {
  cmsghdr header;
  char bytes[CMSG_SPACE(sizeof(int))];  // NOLINT(modernize-avoid-c-arrays)
};

}  // namespace

ssize_t SendWithFd(int socket, std::span<const std::byte> bytes, int fd) {
  iovec data = {.iov_base = const_cast<std::byte*>(bytes.data()), .iov_len = bytes.size()};
  msghdr message = {};
  message.msg_iov = &data;
  message.msg_iovlen = 1;
  ControlBuffer control = {};
  if (fd >= 0) {
    control.header = {
        .cmsg_len = CMSG_LEN(sizeof(fd)), .cmsg_level = SOL_SOCKET, .cmsg_type = SCM_RIGHTS};
    message.msg_control = &control;
    message.msg_controllen = sizeof(control.bytes);
    std::memcpy(CMSG_DATA(CMSG_FIRSTHDR(&message)), &fd, sizeof(fd));
  }
  return ::sendmsg(socket, &message, MSG_NOSIGNAL | MSG_DONTWAIT);
}

ssize_t ReceiveWithFd(int socket, std::span<std::byte> bytes, FileDescriptor* fd) {
  iovec data = {.iov_base = bytes.data(), .iov_len = bytes.size()};
  msghdr message = {};
  message.msg_iov = &data;
  message.msg_iovlen = 1;
  ControlBuffer control = {};
  message.msg_control = &control;
  // CMSG_SPACE(sizeof(int)) would be too much: its padding has room for a second descriptor.
  message.msg_controllen = CMSG_LEN(sizeof(int));
  const ssize_t came = ::recvmsg(socket, &message, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
  const cmsghdr* header = came >= 0 ? CMSG_FIRSTHDR(&message) : nullptr;
  if (header != nullptr && header->cmsg_level == SOL_SOCKET && header->cmsg_type == SCM_RIGHTS &&
      header->cmsg_len == CMSG_LEN(sizeof(int))) {
    int received = -1;
    std::memcpy(&received, CMSG_DATA(header), sizeof(received));
    *fd = FileDescriptor(received);
  }
  return came;
}

}  // namespace quire
