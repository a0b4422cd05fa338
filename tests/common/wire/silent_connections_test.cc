#include "common/wire/silent_connections.h"

#include <poll.h>

#include <array>
#include <cerrno>
#include <string_view>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "common/base/file_limit.h"

#include <sys/socket.h>

namespace quire {
namespace {

class SilentConnectionsTest : public testing::Test {
 protected:
  // Returns the client's end.
  FileDescriptor Connect(Instant since = 0) {
    std::array<int, 2> ends = {};
    EXPECT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends.data()), 0);
    silent_.Add({.socket = FileDescriptor(ends[0]), .listener_fd = 7, .since = since});
    return FileDescriptor(ends[1]);
  }

  static void Say(std::string_view bytes, const FileDescriptor& client) {
    ASSERT_EQ(::send(client.fd(), bytes.data(), bytes.size(), MSG_NOSIGNAL),
              static_cast<ssize_t>(bytes.size()));
  }

  static bool IsClosed(const FileDescriptor& client) {
    char byte = 0;
    return ::recv(client.fd(), &byte, 1, MSG_DONTWAIT) == 0 || errno == ECONNRESET;
  }

  bool HasEvents() const {
    pollfd wait = {.fd = silent_.events().fd(), .events = POLLIN, .revents = 0};
    return ::poll(&wait, 1, /*timeout=*/0) == 1;
  }

  SilentConnections silent_;
};

TEST_F(SilentConnectionsTest, WhoSpeaksIsTakenWithAllThatWasSaid) {
  const FileDescriptor silent = Connect();
  const FileDescriptor http2 = Connect(/*since=*/3);
  const FileDescriptor tls = Connect();
  EXPECT_FALSE(HasEvents());

  Say("PRI * HTTP/2.0\r\n", http2);
  Say("\x16", tls);
  EXPECT_TRUE(HasEvents());
  const std::vector<SilentConnections::Connection> speakers = silent_.TakeSpeakers();

  ASSERT_EQ(speakers.size(), 2);
  EXPECT_EQ(speakers[0].listener_fd, 7);
  EXPECT_EQ(speakers[0].since, 3);
  std::array<char, 64> said = {};
  EXPECT_EQ(::recv(speakers[0].socket.fd(), said.data(), said.size(), MSG_DONTWAIT), 16);
  EXPECT_FALSE(HasEvents()) << "who was taken is not looked at any more";
  EXPECT_FALSE(silent_.empty());
  EXPECT_FALSE(IsClosed(silent));
}

TEST_F(SilentConnectionsTest, WhoLeavesOrIsNoClientIsEnded) {
  FileDescriptor left = Connect();
  const FileDescriptor garbage = Connect();
  const FileDescriptor almost = Connect();
  left.Close();
  Say("hello", garbage);
  Say("PRI * HTTP/1", almost);

  EXPECT_TRUE(silent_.TakeSpeakers().empty());

  EXPECT_TRUE(silent_.empty());
  EXPECT_TRUE(IsClosed(garbage));
  EXPECT_TRUE(IsClosed(almost));
}

TEST_F(SilentConnectionsTest, OneMoreThanThereMayBeEndsTheOldest) {
  RaiseFileLimit();  // both ends are in this process
  if (FileLimit() < 2200) {
    GTEST_SKIP() << "the system allows too few files";
  }
  std::vector<FileDescriptor> clients;
  for (size_t i = 0; i < SilentConnections::kMaxConnections; ++i) {
    clients.push_back(Connect());
  }
  EXPECT_FALSE(IsClosed(clients[0]));

  clients.push_back(Connect());

  EXPECT_TRUE(IsClosed(clients[0]));
  EXPECT_FALSE(IsClosed(clients[1]));
}

TEST_F(SilentConnectionsTest, SilenceEndsInTime) {
  constexpr Instant kMax = SilentConnections::kMaxSilenceNs;
  EXPECT_EQ(silent_.next_expiry(), std::nullopt);
  const FileDescriptor first = Connect(/*since=*/100);
  const FileDescriptor second = Connect(/*since=*/101);

  EXPECT_EQ(silent_.next_expiry(), 100 + kMax);
  silent_.EndExpired(99 + kMax);
  EXPECT_FALSE(IsClosed(first));
  silent_.EndExpired(100 + kMax);

  EXPECT_TRUE(IsClosed(first));
  EXPECT_FALSE(IsClosed(second));
  EXPECT_EQ(silent_.next_expiry(), 101 + kMax);
}

}  // namespace
}  // namespace quire
