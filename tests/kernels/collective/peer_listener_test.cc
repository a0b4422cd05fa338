#include "kernels/collective/peer_listener.h"

#include <unistd.h>

#include <chrono>
#include <cstring>
#include <memory>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "common/base/error.h"
#include "tests/support/rank_group.h"

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
  auto listener = PeerListener::AtPath(PathOf(rank));
  EXPECT_TRUE(listener.ok()) << listener.status();
  return *std::move(listener);
}

std::unique_ptr<PeerListener> ListenAtHost(int32_t /*rank*/) {
  auto listener = PeerListener::AtHost("127.0.0.1", 0, "localhost");
  EXPECT_TRUE(listener.ok()) << listener.status();
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
    EXPECT_EQ(group.status().message(), "rank 2: does not come");
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
    EXPECT_EQ(group.status().message(), "rank 0: is not waited for any more");
  });
}

INSTANTIATE_TEST_SUITE_P(Transports,
                         PeerListenerTest,
                         testing::Values(&ListenAtPath, &ListenAtHost),
                         [](const auto& param_info) {
                           return param_info.index == 0 ? "Unix" : "Tcp";
                         });

// A connection to a Unix socket that says these bytes and stays.
int Stranger(const std::string& path, const std::string& bytes) {
  const int fd = ::socket(AF_UNIX, SOCK_STREAM, 0);
  sockaddr_un address = {};
  address.sun_family = AF_UNIX;
  std::memcpy(address.sun_path, path.data(), path.size());
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
  EXPECT_THAT(std::string(PeerListener::AtPath("/no/such/folder/x").status().message()),
              HasSubstr("/no/such/folder/x"));
  EXPECT_EQ(ReasonOf(PeerListener::AtPath(std::string(200, 'x')).status()), "LISTEN");
  EXPECT_EQ(ReasonOf(PeerListener::AtHost("192.0.2.1", 0, "x").status()), "LISTEN");
}

}  // namespace
}  // namespace quire
