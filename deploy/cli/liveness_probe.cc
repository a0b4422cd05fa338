#include "deploy/cli/liveness_probe.h"

#include <netdb.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <memory>
#include <string_view>

#include "absl/strings/str_cat.h"

namespace quire {
namespace {

constexpr int64_t kIntervalNs = kNanosPerSecond;
constexpr int64_t kPatienceNs = 2 * kNanosPerSecond;
constexpr std::string_view kQuestion = "GET /livez HTTP/1.0\r\n\r\n";
// An answer that means yes begins with "HTTP/1.x 200", for any x.
constexpr std::string_view kProtocol = "HTTP/1.";
constexpr std::string_view kYes = " 200";
constexpr size_t kAnswerBytes = kProtocol.size() + 1 + kYes.size();

bool IsYes(std::string_view answer) {
  return answer.size() >= kAnswerBytes && answer.starts_with(kProtocol) &&
         answer.substr(kProtocol.size() + 1).starts_with(kYes);
}

}  // namespace

LivenessProbe::LivenessProbe(const Address& address) {
  std::string host = address.host;
  if (host == "0.0.0.0") {
    host = "127.0.0.1";
  } else if (host == "::") {
    host = "::1";
  }
  addrinfo hints = {};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_NUMERICSERV;
  addrinfo* found = nullptr;
  const std::string port = absl::StrCat(address.port);
  if (::getaddrinfo(host.c_str(), port.c_str(), &hints, &found) == 0) {
    const std::unique_ptr<addrinfo, decltype(&::freeaddrinfo)> owner(found, ::freeaddrinfo);
    where_length_ = found->ai_addrlen;
    std::memcpy(&where_, found->ai_addr, found->ai_addrlen);
  }
}

bool LivenessProbe::Poll(Instant now) {
  if (!socket_.is_open() && now >= ask_at_) {
    Dial(now);
  }
  if (!socket_.is_open() || (!Exchange() && now < deadline_)) {
    return false;
  }
  socket_.Close();
  return IsYes(answer_);
}

void LivenessProbe::Dial(Instant now) {
  ask_at_ = now + kIntervalNs;
  deadline_ = now + kPatienceNs;
  is_sent_ = false;
  answer_.clear();
  socket_ =
      FileDescriptor(::socket(where_.ss_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (socket_.is_open() &&
      ::connect(socket_.fd(), reinterpret_cast<const sockaddr*>(&where_), where_length_) != 0 &&
      errno != EINPROGRESS) {
    socket_.Close();
  }
}

bool LivenessProbe::Exchange() {
  if (!is_sent_) {
    const ssize_t sent = ::send(socket_.fd(), kQuestion.data(), kQuestion.size(), MSG_NOSIGNAL);
    if (sent < 0) {
      return errno != EAGAIN;  // EAGAIN: not connected yet; other errors: connection refused
    }
    is_sent_ = true;  // the kernel takes the short question in one call
  }
  std::array<char, kAnswerBytes> bytes = {};
  const ssize_t received = ::recv(socket_.fd(), bytes.data(), bytes.size(), 0);
  if (received < 0) {
    return errno != EAGAIN;
  }
  answer_.append(bytes.data(), static_cast<size_t>(received));
  return received == 0 || answer_.size() >= kAnswerBytes;
}

}  // namespace quire
