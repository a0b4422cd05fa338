#include "common/base/lossy_write.h"

#include <poll.h>
#include <unistd.h>

namespace quire {

void LossyWrite(int fd, std::string_view text) {
  // Not O_NONBLOCK: that would hold for all who share the terminal or the pipe.
  pollfd ready = {.fd = fd, .events = POLLOUT, .revents = 0};
  if (::poll(&ready, 1, 0) == 1 && (ready.revents & POLLOUT) != 0) {
    text = text.substr(0, kMaxLossyWriteBytes);
    [[maybe_unused]] const ssize_t written = ::write(fd, text.data(), text.size());
  }
}

}  // namespace quire
