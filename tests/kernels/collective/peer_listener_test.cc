#include "kernels/collective/peer_listener.h"

#include <fcntl.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <chrono>
#include <csignal>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iomanip>
#include <iterator>
#include <memory>
#include <set>
#include <span>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "common/base/error.h"
#include "common/base/file_descriptor.h"
#include "kernels/collective/fd_passing.h"
#include "kernels/collective/shared_channel.h"
#include "tests/support/rank_group.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/un.h>

namespace quire {
namespace {

using testing::HasSubstr;
using testing::StartsWith;

constexpr int64_t kLong = 20 * kNanosPerSecond;
constexpr int64_t kShort = 50 * kNanosPerMilli;

std::string PathOf(int32_t rank) {
  return testing::TempDir() + "/peer_listener_test_" + std::to_string(getpid()) + "_" +
         std::to_string(rank);
}

std::unique_ptr<PeerListener> ListenAtPath(int32_t rank) {
  auto listener = PeerListener::AtPath(PathOf(rank), /*num_sharers=*/1);
  EXPECT_TRUE(listener.ok()) << listener.status();
  return *std::move(listener);
}

std::unique_ptr<PeerListener> ListenAtHost(int32_t /*rank*/) {
  auto listener = PeerListener::AtHost("127.0.0.1", 0, "localhost");
  EXPECT_TRUE(listener.ok()) << listener.status() << "; /etc/hosts must have a localhost";
  return *std::move(listener);
}

class PeerListenerTest : public testing::TestWithParam<std::unique_ptr<PeerListener> (*)(int32_t)> {
 protected:
  void Listen(int32_t size) {
    for (int32_t rank = 0; rank < size; ++rank) {
      listeners_.push_back(GetParam()(rank));
      group_.rendezvous.push_back(listeners_.back()->rendezvous());
    }
    group_.scheduler_incarnation = 7;
    group_.group_epoch = 3;
    group_.secret = std::string(kGroupSecretBytes, 's');
  }

  GroupMembership Membership(int32_t rank) const {
    GroupMembership membership = group_;
    membership.rank = rank;
    return membership;
  }

  PeerListener& listener(int32_t rank) { return *listeners_[static_cast<size_t>(rank)]; }

  GroupMembership group_;
  std::vector<std::unique_ptr<PeerListener>> listeners_;
};

TEST_P(PeerListenerTest, RanksFindEachOther) {
  Listen(8);
  OnAllRanks(8, [&](int32_t rank) {
    auto group = listener(rank).Connect(Membership(rank), kLong);
    ASSERT_TRUE(group.ok()) << group.status();
    std::vector<float> data = {static_cast<float>(1 << rank)};
    (*group)->AllReduce(data);
    EXPECT_TRUE((*group)->status().ok()) << (*group)->status();
    EXPECT_EQ(data[0], 255.0F);
  });
}

TEST_P(PeerListenerTest, TheSameListenersServeTheNextEpoch) {
  Listen(2);
  for (group_.group_epoch = 1; group_.group_epoch < 4; ++group_.group_epoch) {
    OnAllRanks(2, [&](int32_t rank) {
      auto group = listener(rank).Connect(Membership(rank), kLong);
      ASSERT_TRUE(group.ok()) << group.status();
      std::vector<float> data = {1.0F};
      (*group)->AllReduce(data);
      EXPECT_EQ(data[0], 2.0F);
    });
  }
}

TEST_P(PeerListenerTest, ARankThatDoesNotComeIsNamed) {
  Listen(4);
  OnAllRanks(4, [&](int32_t rank) {
    if (rank == 2) {
      return;
    }
    const auto group = listener(rank).Connect(Membership(rank), kNanosPerSecond);
    if (rank == 1) {
      EXPECT_TRUE(group.ok() || ReasonOf(group.status()) == "GROUP_BROKEN");
      return;  // no neighbour of 2; 3 may have come before it gave up
    }
    EXPECT_EQ(ReasonOf(group.status()), "GROUP_BROKEN");
    EXPECT_EQ(group.status().message(), "rank 2: did not connect in time");
  });
}

TEST_P(PeerListenerTest, AnotherSecretOrEpochIsHungUpOn) {
  Listen(2);
  for (const bool is_other_secret : {true, false}) {
    OnAllRanks(2, [&](int32_t rank) {
      GroupMembership membership = Membership(rank);
      if (rank == 0) {
        membership.secret.back() = is_other_secret ? 'x' : 's';
        membership.group_epoch += is_other_secret ? 0 : 1;
      }
      const auto group = listener(rank).Connect(membership, kShort);
      EXPECT_EQ(ReasonOf(group.status()), "GROUP_BROKEN");
    });
  }
}

TEST_P(PeerListenerTest, AbortEndsTheWait) {
  Listen(2);
  OnAllRanks(2, [&](int32_t rank) {
    if (rank == 0) {
      std::this_thread::sleep_for(std::chrono::milliseconds(50));
      listener(1).Abort();
      return;
    }
    const auto group = listener(rank).Connect(Membership(rank), kLong);
    EXPECT_EQ(group.status().message(), "rank 0: connecting to it was aborted");
  });
}

INSTANTIATE_TEST_SUITE_P(Transports,
                         PeerListenerTest,
                         testing::Values(&ListenAtPath, &ListenAtHost),
                         [](const auto& param_info) {
                           return param_info.index == 0 ? "Unix" : "Tcp";
                         });

// The local ports of connections to this port of 127.0.0.1 that wait for an answer.
std::set<std::string> PortsThatDial(int port) {
  constexpr const char* kSynSent = "02";
  std::ostringstream to;
  to << "0100007F:" << std::hex << std::uppercase << std::setw(4) << std::setfill('0') << port;
  std::ifstream file("/proc/self/net/tcp");
  std::set<std::string> ports;
  std::string number;
  std::string from;
  std::string peer;
  std::string state;
  std::string line;
  while (std::getline(file, line)) {
    std::istringstream(line) >> number >> from >> peer >> state;
    if (peer == to.str() && state == kSynSent) {
      ports.insert(from);
    }
  }
  return ports;
}

// To the dialling rank a cut network looks like this listener: its queue is full, so it answers
// nothing.
TEST(PeerListenerDialTest, AnAttemptThatNobodyAnswersIsFollowedByAnother) {
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = ::htonl(INADDR_LOOPBACK);
  socklen_t length = sizeof(address);
  auto* generic = reinterpret_cast<sockaddr*>(&address);
  const FileDescriptor deaf(::socket(AF_INET, SOCK_STREAM, 0));
  ASSERT_EQ(::bind(deaf.fd(), generic, length), 0);
  ASSERT_EQ(::listen(deaf.fd(), 0), 0);
  ASSERT_EQ(::getsockname(deaf.fd(), generic, &length), 0);
  const FileDescriptor first(::socket(AF_INET, SOCK_STREAM, 0));
  ASSERT_EQ(::connect(first.fd(), generic, length), 0);  // fills the queue
  const int port = ::ntohs(address.sin_port);

  const auto listener = ListenAtHost(0);
  std::atomic<bool> is_over = false;
  std::thread rank([&] {
    const auto group = listener->Connect(
        {.rank = 0,
         .secret = std::string(kGroupSecretBytes, 's'),
         .rendezvous = {listener->rendezvous(), "tcp:127.0.0.1:" + std::to_string(port)}},
        kLong);
    EXPECT_EQ(ReasonOf(group.status()), "GROUP_BROKEN");
    is_over = true;
  });
  std::set<std::string> seen;
  while (seen.size() < 2 && !is_over) {
    seen.merge(PortsThatDial(port));
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  listener->Abort();
  rank.join();

  EXPECT_EQ(seen.size(), 2);
}

constexpr int64_t kHelloBytes = 64;

sockaddr_un AddressOf(const std::string& path) {
  sockaddr_un address = {};
  address.sun_family = AF_UNIX;
  std::memcpy(address.sun_path, path.data(), path.size());
  return address;
}

// A connection to a Unix socket that says these bytes and stays.
int Stranger(const std::string& path, const std::string& bytes) {
  const int fd = ::socket(AF_UNIX, SOCK_STREAM, 0);
  const sockaddr_un address = AddressOf(path);
  EXPECT_EQ(::connect(fd, reinterpret_cast<const sockaddr*>(&address), sizeof(address)), 0);
  EXPECT_EQ(::send(fd, bytes.data(), bytes.size(), MSG_NOSIGNAL),
            static_cast<ssize_t>(bytes.size()));
  return fd;
}

TEST(PeerListenerStrangersTest, StrangersKeepNobodyOut) {
  std::vector<std::unique_ptr<PeerListener>> listeners;
  GroupMembership membership = {.secret = std::string(kGroupSecretBytes, 's')};
  for (int32_t rank = 0; rank < 2; ++rank) {
    listeners.push_back(ListenAtPath(rank));
    membership.rendezvous.push_back(listeners.back()->rendezvous());
  }
  std::vector<int> strangers;
  for (int i = 0; i < 50; ++i) {  // the kernel queues 64
    const std::string words = i % 3 == 0 ? "" : i % 3 == 1 ? "hel" : std::string(100, '\xFF');
    strangers.push_back(Stranger(PathOf(1), words));
  }
  OnAllRanks(2, [&](int32_t rank) {
    GroupMembership own = membership;
    own.rank = rank;
    const auto group = listeners[static_cast<size_t>(rank)]->Connect(own, kLong);
    EXPECT_TRUE(group.ok()) << group.status();
  });
  for (const int fd : strangers) {
    ::close(fd);
  }
}

// Mappings of memory that ranks share, in this process.
int64_t NumSharedMappings() {
  std::ifstream maps("/proc/self/maps");
  int64_t count = 0;
  for (std::string line; std::getline(maps, line);) {
    count += line.find("memfd:quire-ranks") != std::string::npos ? 1 : 0;
  }
  return count;
}

int64_t NumOpenFiles() {
  const auto files = std::filesystem::directory_iterator("/proc/self/fd");
  return std::distance(begin(files), end(files));
}

class SharedMemoryTest : public testing::Test {
 protected:
  GroupMembership Membership(int32_t rank) const {
    return {.rank = rank,
            .secret = std::string(kGroupSecretBytes, 's'),
            .rendezvous = {low_->rendezvous(), high_->rendezvous()}};
  }

  // Counts the mappings of two ranks once they have met and have done one AllReduce.
  int64_t NumMappingsOfTwoRanks() {
    std::array<std::shared_ptr<Communicator>, 2> group;
    OnAllRanks(2, [&](int32_t rank) {
      auto met = (rank == 0 ? low_ : high_)->Connect(Membership(rank), kLong);
      ASSERT_TRUE(met.ok()) << met.status();
      group[static_cast<size_t>(rank)] = *met;
      std::vector<float> data(1000, 1.0F);
      (*met)->AllReduce(data);
      EXPECT_THAT(data, testing::Each(2.0F));
    });
    return NumSharedMappings();
  }

  // Rank 1's answer to a right Hello of rank 0 that carries the file descriptor `memory`.
  char AnswerTo(int memory) {
    struct {
      std::array<char, 8> magic = {'q', 'u', 'i', 'r', 'e', 'p', 'e', '3'};
      std::array<char, kGroupSecretBytes> secret = {};
      uint64_t scheduler_incarnation = 0;
      uint64_t group_epoch = 0;
      int32_t from_rank = 0;
      int32_t to_rank = 1;
    } hello;
    hello.secret.fill('s');
    static_assert(sizeof(hello) == kHelloBytes);
    char answer = 0;
    OnAllRanks(2, [&](int32_t rank) {
      if (rank == 1) {
        EXPECT_TRUE(high_->Connect(Membership(1), kLong).ok());
        return;
      }
      const FileDescriptor socket(Stranger(PathOf(1), ""));
      SendWithFd(socket.fd(), std::as_bytes(std::span(&hello, 1)), memory);
      EXPECT_EQ(::recv(socket.fd(), &answer, 1, 0), 1);
    });
    return answer;
  }

  std::unique_ptr<PeerListener> low_ = ListenAtPath(0);
  std::unique_ptr<PeerListener> high_ = ListenAtPath(1);
};

TEST_F(SharedMemoryTest, RanksOfOneHostHaveIt) {
  const int64_t files = NumOpenFiles();
  EXPECT_EQ(NumMappingsOfTwoRanks(), 2);
  EXPECT_EQ(NumSharedMappings(), 0) << "after the group's end";
  EXPECT_EQ(NumOpenFiles(), files);
}

TEST_F(SharedMemoryTest, RanksThatMeetOverTcpDoWithout) {
  low_ = ListenAtHost(0);
  high_ = ListenAtHost(1);
  EXPECT_EQ(NumMappingsOfTwoRanks(), 0);
}

TEST_F(SharedMemoryTest, RanksDoWithoutWhereTheKernelHasNone) {
  rlimit before = {};
  ASSERT_EQ(::getrlimit(RLIMIT_FSIZE, &before), 0);
  const rlimit small = {.rlim_cur = 1000, .rlim_max = before.rlim_max};
  std::signal(SIGXFSZ, SIG_IGN);
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &small), 0);
  const int64_t mappings = NumMappingsOfTwoRanks();
  ::setrlimit(RLIMIT_FSIZE, &before);
  std::signal(SIGXFSZ, SIG_DFL);
  EXPECT_EQ(mappings, 0);
}

TEST_F(SharedMemoryTest, RanksDoWithoutWhereTheOtherOneRefusesIt) {
  high_.reset();
  const FileDescriptor listener(::socket(AF_UNIX, SOCK_STREAM, 0));
  const sockaddr_un address = AddressOf(PathOf(1));
  ASSERT_EQ(::bind(listener.fd(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)), 0);
  ASSERT_EQ(::listen(listener.fd(), 1), 0);
  GroupMembership membership = {.secret = std::string(kGroupSecretBytes, 's'),
                                .rendezvous = {low_->rendezvous(), "unix:" + PathOf(1)}};
  OnAllRanks(2, [&](int32_t rank) {
    std::vector<float> data(1, 1.0F);
    const std::span<std::byte> bytes = std::as_writable_bytes(std::span(data));
    if (rank == 0) {
      const auto group = low_->Connect(membership, kLong);
      ASSERT_TRUE(group.ok()) << group.status();
      (*group)->AllReduce(data);
      EXPECT_EQ(data[0], 2.0F);
      return;
    }
    const FileDescriptor socket(::accept(listener.fd(), nullptr, nullptr));
    std::array<char, kHelloBytes> hello = {};
    EXPECT_EQ(::recv(socket.fd(), hello.data(), hello.size(), MSG_WAITALL), kHelloBytes);
    EXPECT_EQ(::send(socket.fd(), "w", 1, MSG_NOSIGNAL), 1);
    EXPECT_EQ(::send(socket.fd(), bytes.data(), bytes.size(), MSG_NOSIGNAL), 4);
    EXPECT_EQ(::recv(socket.fd(), bytes.data(), bytes.size(), MSG_WAITALL), 4);
  });
  ::unlink(PathOf(1).c_str());
}

TEST_F(SharedMemoryTest, WhatIsNoneIsNotTaken) {
  const FileDescriptor memory = SharedChannel::CreateMemory();
  const FileDescriptor other(::open("/dev/null", O_RDWR | O_CLOEXEC));
  const int64_t files = NumOpenFiles();
  EXPECT_EQ(AnswerTo(memory.fd()), 'm');
  EXPECT_EQ(AnswerTo(other.fd()), 'w');
  EXPECT_EQ(AnswerTo(-1), 'w');
  EXPECT_EQ(NumOpenFiles(), files);
}

// A process sends two files at once, which the receiver did not ask for.
void SendTwoFiles(int socket, int file) {
  std::array<int, 2> files = {file, file};
  alignas(cmsghdr) std::array<char, CMSG_SPACE(sizeof(files))> control = {};
  char word = 'x';
  iovec data = {.iov_base = &word, .iov_len = 1};
  msghdr message = {};
  message.msg_iov = &data;
  message.msg_iovlen = 1;
  message.msg_control = control.data();
  message.msg_controllen = control.size();
  cmsghdr* header = CMSG_FIRSTHDR(&message);
  header->cmsg_len = CMSG_LEN(sizeof(files));
  header->cmsg_level = SOL_SOCKET;
  header->cmsg_type = SCM_RIGHTS;
  std::memcpy(CMSG_DATA(header), files.data(), sizeof(files));
  EXPECT_EQ(::sendmsg(socket, &message, MSG_NOSIGNAL), 1);
}

TEST_F(SharedMemoryTest, FilesOfStrangersAreClosed) {
  const FileDescriptor file(::open("/dev/null", O_RDWR | O_CLOEXEC));
  std::vector<FileDescriptor> strangers;
  for (int i = 0; i < 5; ++i) {
    strangers.emplace_back(Stranger(PathOf(1), ""));
  }
  const int64_t files = NumOpenFiles();
  for (const FileDescriptor& stranger : strangers) {
    SendTwoFiles(stranger.fd(), file.fd());
    SendWithFd(stranger.fd(), std::as_bytes(std::span("hello")), file.fd());
  }
  EXPECT_EQ(ReasonOf(high_->Connect(Membership(1), kShort).status()), "GROUP_BROKEN");
  EXPECT_EQ(NumOpenFiles(), files);
}

TEST(PeerListenerArgumentsTest, BadOnesAreRefused) {
  auto listener = ListenAtPath(0);
  EXPECT_THAT(listener->rendezvous(), StartsWith("unix:"));
  const std::string secret(kGroupSecretBytes, 's');
  const std::string self = listener->rendezvous();
  const auto reason = [&](const GroupMembership& membership) {
    return ReasonOf(listener->Connect(membership, kShort).status());
  };
  EXPECT_EQ(reason({.secret = secret, .rendezvous = {}}), "RENDEZVOUS");
  EXPECT_EQ(reason({.secret = secret, .rendezvous = {self, self, self}}), "RENDEZVOUS");
  EXPECT_EQ(reason({.rank = 2, .secret = secret, .rendezvous = {self, self}}), "RENDEZVOUS");
  EXPECT_EQ(reason({.rank = -1, .secret = secret, .rendezvous = {self, self}}), "RENDEZVOUS");
  EXPECT_EQ(reason({.secret = "short", .rendezvous = {self, self}}), "RENDEZVOUS");
  for (const std::string bad : {"", "tcp:", "tcp:localhost", "tcp:localhost:x", "unix:", "self"}) {
    EXPECT_EQ(reason({.secret = secret, .rendezvous = {self, bad}}), "RENDEZVOUS") << bad;
  }
  EXPECT_EQ(reason({.secret = secret, .rendezvous = {self, "unix:" + std::string(200, 'x')}}),
            "RENDEZVOUS");
  EXPECT_TRUE(listener->Connect({.secret = secret, .rendezvous = {self}}, kShort).ok())
      << "one rank is a group";
}

TEST(PeerListenerArgumentsTest, AddressesThatCannotBeTakenAreNamed) {
  EXPECT_THAT(std::string(PeerListener::AtPath("/no/such/folder/x", 1).status().message()),
              HasSubstr("/no/such/folder/x"));
  EXPECT_EQ(ReasonOf(PeerListener::AtPath(std::string(200, 'x'), 1).status()), "LISTEN");
  const auto first = ListenAtPath(0);
  const std::string path = first->rendezvous().substr(std::string("unix:").size());
  EXPECT_EQ(ReasonOf(PeerListener::AtPath(path, 1).status()), "LISTEN");
  EXPECT_TRUE(std::filesystem::exists(path)) << "the first one is found as before";
  EXPECT_EQ(ReasonOf(PeerListener::AtHost("192.0.2.1", 0, "x").status()), "LISTEN");
}

}  // namespace
}  // namespace quire
