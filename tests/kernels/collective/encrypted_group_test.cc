// Ranks that meet over TCP, while strangers connect and wires are tapped.
#include <array>
#include <atomic>
#include <chrono>
#include <cstring>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "common/base/error.h"
#include "common/base/file_descriptor.h"
#include "kernels/collective/peer_listener.h"
#include "kernels/collective/tls_channel.h"
#include "tests/support/certificate_tls.h"
#include "tests/support/rank_group.h"
#include "tests/support/wiretap.h"

#include <sys/socket.h>
#include <sys/time.h>

namespace quire {
namespace {

using testing::HasSubstr;
using testing::Not;

constexpr int64_t kLong = 20 * kNanosPerSecond;
constexpr int64_t kShort = 300 * kNanosPerMilli;
// A number whose bytes do not occur in a message by chance.
constexpr float kNumber = 1234.5678F;

void SleepMillis(int millis) { std::this_thread::sleep_for(std::chrono::milliseconds(millis)); }

int PortIn(const std::string& rendezvous) {
  return std::stoi(rendezvous.substr(rendezvous.rfind(':') + 1));
}

// Bounds the wait of a socket whose other end may not know of the connection. A full backlog drops
// the last packet of the kernel's handshake, and closing the listener then tells the dialler
// nothing.
void HearAtMost(const FileDescriptor& socket, int seconds) {
  const timeval wait = {.tv_sec = seconds, .tv_usec = 0};
  ::setsockopt(socket.fd(), SOL_SOCKET, SO_RCVTIMEO, &wait, sizeof(wait));
}

void Say(const FileDescriptor& socket, std::string_view bytes) {
  ::send(socket.fd(), bytes.data(), bytes.size(), MSG_NOSIGNAL);
}

// All that comes until the other end hangs up.
std::string HearToTheEnd(const FileDescriptor& socket) {
  std::string heard;
  std::array<char, 256> buffer = {};
  for (;;) {
    const ssize_t came = ::recv(socket.fd(), buffer.data(), buffer.size(), 0);
    if (came <= 0) {
      return heard;
    }
    heard.append(buffer.data(), static_cast<size_t>(came));
  }
}

using Groups = std::vector<absl::StatusOr<std::shared_ptr<Communicator>>>;

class EncryptedGroupTest : public testing::Test {
 protected:
  EncryptedGroupTest() {
    for (int rank = 0; rank < 2; ++rank) {
      auto listener = PeerListener::AtHost("127.0.0.1", 0, "127.0.0.1");
      EXPECT_TRUE(listener.ok()) << listener.status();
      group_.rendezvous.push_back((*listener)->rendezvous());
      listeners_.push_back(*std::move(listener));
    }
  }

  int port() const { return PortIn(listeners_[1]->rendezvous()); }

  GroupMembership Membership(int32_t rank) const {
    GroupMembership membership = group_;
    membership.rank = rank;
    return membership;
  }

  // The membership of rank 0, which dials, with rank 1 at the address `to`.
  GroupMembership DialledAt(const std::string& to) const {
    GroupMembership membership = Membership(0);
    membership.rendezvous[1] = to;
    return membership;
  }

  Groups ConnectBoth(const GroupMembership& dials, int64_t timeout_ns = kLong) {
    Groups groups(2, absl::UnknownError("not yet"));
    OnAllRanks(2, [&](int32_t rank) {
      groups[static_cast<size_t>(rank)] = listeners_[static_cast<size_t>(rank)]->Connect(
          rank == 0 ? dials : Membership(1), timeout_ns);
    });
    return groups;
  }

  // AllReduces `count` numbers on both ranks and returns both results. A result is empty if the
  // group broke.
  static std::vector<std::vector<float>> SumsOf(Groups& groups, size_t count) {
    std::vector<std::vector<float>> sums(2, std::vector<float>(count, kNumber));
    OnAllRanks(2, [&](int32_t rank) {
      const auto i = static_cast<size_t>(rank);
      (*groups[i])->AllReduce(sums[i]);
      if (!(*groups[i])->status().ok()) {
        EXPECT_EQ(ReasonOf((*groups[i])->status()), "GROUP_BROKEN");
        sums[i].clear();
      }
    });
    return sums;
  }

  GroupMembership group_ = {.scheduler_incarnation = 7,
                            .group_epoch = 3,
                            .secret = "this secret has thirty-two bytes",
                            .rendezvous = {}};
  std::vector<std::unique_ptr<PeerListener>> listeners_;
};

TEST_F(EncryptedGroupTest, NobodyOnTheWayReadsSecretOrSums) {
  Wiretap tap(port());
  Groups groups = ConnectBoth(DialledAt(tap.rendezvous()));
  ASSERT_TRUE(groups[0].ok() && groups[1].ok()) << groups[0].status() << groups[1].status();
  constexpr size_t kCount = 10'000;
  EXPECT_THAT(SumsOf(groups, kCount), testing::Each(std::vector<float>(kCount, kNumber + kNumber)));
  std::string numbers;
  for (int i = 0; i < 4; ++i) {
    numbers.append(reinterpret_cast<const char*>(&kNumber), sizeof(kNumber));
  }
  for (const std::string& said : {tap.bytes_from_dialer(), tap.bytes_from_listener()}) {
    EXPECT_GT(said.size(), kCount * sizeof(kNumber));
    EXPECT_THAT(said, Not(HasSubstr(group_.secret.substr(0, 8))));
    EXPECT_THAT(said, Not(HasSubstr(numbers)));
    EXPECT_THAT(said, Not(HasSubstr("quirepe")));
  }
}

TEST_F(EncryptedGroupTest, AByteThatChangesOnTheWayBreaksTheGroup) {
  constexpr size_t kCount = 100'000;
  for (const int64_t place : {0, 2, 3, 5, 1000, 16'390, 300'000}) {
    Wiretap tap(port());
    Groups groups = ConnectBoth(DialledAt(tap.rendezvous()));
    ASSERT_TRUE(groups[0].ok() && groups[1].ok()) << groups[0].status() << groups[1].status();
    tap.FlipAfter(place);
    EXPECT_THAT(SumsOf(groups, kCount)[1], testing::IsEmpty()) << place;
    while (!HasFailure() && (*groups[0])->CheckLinks()) {
      SleepMillis(1);  // rank 0 got what was meant for it, and learns of the end behind it
    }
    ++group_.group_epoch;
  }
}

// A stranger's talk with a rank: sends its bytes and returns what it heard until the rank hung up.
struct Stranger {
  const char* what;
  std::function<std::string(const FileDescriptor&)> talk;
};

std::string SaysAndHears(const FileDescriptor& socket, std::string_view words) {
  Say(socket, words);
  return HearToTheEnd(socket);
}

// The Hello of peer_listener.h as ranks without encryption send it.
std::string HelloInTheClear(const GroupMembership& group) {
  const std::array<uint64_t, 2> when = {group.scheduler_incarnation, group.group_epoch};
  const std::array<int32_t, 2> who = {0, 1};
  std::string hello = "quirepe3" + group.secret;
  hello.append(reinterpret_cast<const char*>(when.data()), sizeof(when));
  hello.append(reinterpret_cast<const char*>(who.data()), sizeof(who));
  return hello;
}

// `hello` is a rank's recorded handshake.
std::vector<Stranger> AllStrangers(const GroupMembership& group, const std::string& hello) {
  return {
      {"silent", [](const FileDescriptor& s) { return HearToTheEnd(s); }},
      {"garbage",
       [](const FileDescriptor& s) { return SaysAndHears(s, std::string(5000, '\xA5')); }},
      {"plain text",
       [words = HelloInTheClear(group)](const FileDescriptor& s) {
         return SaysAndHears(s, words);
       }},
      {"half a hello",
       [hello](const FileDescriptor& s) { return SaysAndHears(s, hello.substr(0, 100)); }},
      {"slow",
       [hello](const FileDescriptor& s) {
         for (const char byte : hello.substr(0, 100)) {
           Say(s, std::string_view(&byte, 1));
           SleepMillis(1);
         }
         return HearToTheEnd(s);
       }},
      {"repeats", [hello](const FileDescriptor& s) { return SaysAndHears(s, hello); }},
      {"certificate",
       [](const FileDescriptor& s) {
         return std::string(ConnectsByCertificate(s.fd()) ? "w" : "");
       }},
      {"leaves", [](const FileDescriptor& s) { return std::string(s.is_open() ? "" : "w"); }},
  };
}

// Whether a rank has answered in the clear as it answers another rank.
bool IsWelcome(const std::string& heard) { return heard == "w" || heard == "m"; }

class StrangersTest : public EncryptedGroupTest {
 protected:
  ~StrangersTest() override {
    listeners_.clear();  // hangs up on those who are still there
    for (std::thread& thread : threads_) {
      thread.join();
    }
    EXPECT_EQ(num_welcome_, 0);
  }

  // Records the bytes that rank 0 sends to rank 1 in this epoch.
  std::string HelloOfARank() {
    Wiretap tap(port());
    Groups groups = ConnectBoth(DialledAt(tap.rendezvous()));
    EXPECT_TRUE(groups[0].ok() && groups[1].ok());
    return tap.bytes_from_dialer();
  }

  // Starts `count` strangers, each on a thread of its own, because a stranger may wait.
  void Come(int count, const std::string& hello) {
    const std::vector<Stranger> strangers = AllStrangers(group_, hello);
    for (int i = 0; i < count; ++i) {
      threads_.emplace_back(
          [this, stranger = strangers[static_cast<size_t>(i) % strangers.size()], to = port()] {
            const FileDescriptor socket = DialLoopback(to);
            HearAtMost(socket, 5);
            num_welcome_ += socket.is_open() && IsWelcome(stranger.talk(socket)) ? 1 : 0;
          });
      ++num_come_;
    }
  }

  std::atomic<int> num_come_ = 0;
  std::atomic<int> num_welcome_ = 0;
  std::vector<std::thread> threads_;
};

TEST_F(StrangersTest, AThousandKeepNoRankOut) {
  const std::string hello = HelloOfARank();
  std::thread crowd([&] { Come(1000, hello); });
  std::vector<float> sums(2);
  OnAllRanks(2, [&](int32_t rank) {
    while (rank == 0 && num_come_ < 500) {
      SleepMillis(1);
    }
    const auto i = static_cast<size_t>(rank);
    auto group = listeners_[i]->Connect(Membership(rank), kLong);
    ASSERT_TRUE(group.ok()) << group.status();
    std::vector<float> data = {1.0F};
    (*group)->AllReduce(data);
    sums[i] = data[0];
  });
  crowd.join();
  EXPECT_THAT(sums, testing::Each(2.0F));
}

// A rank is slow to answer while 100 silent strangers connect; there is room for 64.
TEST_F(StrangersTest, WhoHasShownTheSecretIsNotDrivenOut) {
  std::thread rank([&] {
    const auto group = listeners_[1]->Connect(Membership(1), kLong);
    EXPECT_TRUE(group.ok()) << group.status();
  });
  const FileDescriptor socket = DialLoopback(port());
  const auto tls = TlsChannel::Dial(
      socket.fd(),
      {.secret = group_.secret, .identities = {"quire ranks, scheduler 7, epoch 3, from 0 to 1"}});
  EXPECT_EQ(tls->ShakeHands(), TlsChannel::Progress::kGoesOn);
  char byte = 0;
  EXPECT_EQ(::recv(socket.fd(), &byte, 1, MSG_PEEK), 1) << "rank 1 has heard it";
  std::vector<FileDescriptor> crowd;
  for (int i = 0; i < 100; ++i) {
    crowd.push_back(DialLoopback(port()));
  }
  EXPECT_EQ(HearToTheEnd(crowd[36]), "") << "of 101, 37 have to go";

  while (tls->ShakeHands() == TlsChannel::Progress::kGoesOn) {
  }
  const std::string hello = HelloInTheClear(group_);
  EXPECT_EQ(tls->Send(std::as_bytes(std::span(hello))), hello.size());
  std::optional<size_t> came = 0;
  while (came == size_t{0}) {
    came = tls->Receive(std::as_writable_bytes(std::span(&byte, 1)));
  }
  EXPECT_EQ(byte, 'w');
  listeners_[1]->Abort();
  rank.join();
}

// Strangers dial one after another, and no rank. Connect closes each connection, at the latest when
// it times out.
TEST_F(StrangersTest, NoneOfThemIsARank) {
  const std::string hello = HelloOfARank();
  for (const Stranger& stranger : AllStrangers(group_, hello)) {
    std::thread dials([&, to = port()] {
      const FileDescriptor socket = DialLoopback(to);
      EXPECT_FALSE(IsWelcome(stranger.talk(socket))) << stranger.what;
    });
    const auto group = listeners_[1]->Connect(Membership(1), kShort);
    EXPECT_EQ(group.status().message(), "rank 0: did not connect in time") << stranger.what;
    dials.join();
  }
}

// An impostor listens at rank 1's address. `talk` returns the bytes that it heard from rank 0.
struct Impostor {
  const char* what;
  std::function<std::string(const FileDescriptor&)> talk;
};

class ImpostorTest : public EncryptedGroupTest {
 protected:
  // Returns all bytes that the impostor hears while rank 0 dials it.
  std::string WhatItHears(const Impostor& impostor) {
    const FileDescriptor listener = ListenOnLoopback();
    std::atomic<bool> is_over = false;
    std::string heard;
    std::thread listens([&] {
      while (!is_over) {
        const FileDescriptor socket(::accept(listener.fd(), nullptr, nullptr));
        heard += impostor.talk(socket);
      }
    });
    const auto group = listeners_[0]->Connect(
        DialledAt("tcp:127.0.0.1:" + std::to_string(PortOf(listener))), kShort);
    EXPECT_EQ(ReasonOf(group.status()), "GROUP_BROKEN") << impostor.what;
    is_over = true;
    DialLoopback(PortOf(listener));  // wakes it
    listens.join();
    return heard;
  }
};

TEST_F(ImpostorTest, NobodyWhoListensInARanksPlaceLearnsTheSecret) {
  const std::vector<Impostor> impostors = {
      {"silent", [](const FileDescriptor& s) { return HearToTheEnd(s); }},
      {"says welcome", [](const FileDescriptor& s) { return SaysAndHears(s, "w"); }},
      {"closes", [](const FileDescriptor&) { return std::string(); }},
      {"echo",
       [](const FileDescriptor& s) {
         std::array<char, 4096> buffer = {};
         const ssize_t came = ::recv(s.fd(), buffer.data(), buffer.size(), 0);
         const std::string heard(buffer.data(), came > 0 ? static_cast<size_t>(came) : 0);
         return heard + SaysAndHears(s, heard);
       }},
      {"certificate",
       [](const FileDescriptor& s) {
         EXPECT_FALSE(AcceptsByCertificate(s.fd()));
         return std::string();
       }},
  };
  for (const Impostor& impostor : impostors) {
    const std::string heard = WhatItHears(impostor);
    EXPECT_THAT(heard, Not(HasSubstr(group_.secret.substr(0, 8)))) << impostor.what;
    EXPECT_THAT(heard, Not(HasSubstr("quirepe"))) << impostor.what;
  }
}

TEST_F(ImpostorTest, AbortEndsAHandshakeThatNobodyAnswers) {
  const FileDescriptor silent = ListenOnLoopback();
  std::thread aborts([&] {
    SleepMillis(50);
    listeners_[0]->Abort();
  });
  const auto group =
      listeners_[0]->Connect(DialledAt("tcp:127.0.0.1:" + std::to_string(PortOf(silent))), kLong);
  EXPECT_EQ(group.status().message(), "rank 1: connecting to it was aborted");
  aborts.join();
}

// An attacker on the way leads rank 0's call back to rank 0. All ranks share one secret, so the
// secret does not stop it (RFC 9257, 4).
TEST_F(ImpostorTest, ARankIsNotLedToItself) {
  Wiretap to_itself(PortIn(listeners_[0]->rendezvous()));
  const auto group = listeners_[0]->Connect(DialledAt(to_itself.rendezvous()), kShort);
  EXPECT_EQ(ReasonOf(group.status()), "GROUP_BROKEN");
}

TEST_F(EncryptedGroupTest, ASecretOrEpochOfBeforeIsRefused) {
  for (const bool is_secret : {true, false}) {
    GroupMembership before = Membership(0);
    if (is_secret) {
      before.secret.back() ^= 1;
    } else {
      --before.group_epoch;
    }
    const Groups groups = ConnectBoth(before, kShort);
    EXPECT_EQ(groups[0].status().message(), "rank 1: did not connect in time");
    EXPECT_EQ(groups[1].status().message(), "rank 0: did not connect in time");
  }
}

}  // namespace
}  // namespace quire
