#include "kernels/collective/peer_link.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <csignal>
#include <cstddef>
#include <cstring>
#include <functional>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "gtest/gtest.h"

#include "common/base/error.h"
#include "tests/support/random.h"
#include "tests/support/rank_group.h"

#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>

namespace quire {
namespace {

constexpr size_t kManyRings = 10 * kSharedRingBytes + 777;

std::vector<std::byte> RandomBytes(Random& random, size_t count) {
  std::vector<std::byte> bytes(count);
  for (size_t i = 0; i < count; i += sizeof(uint64_t)) {
    const uint64_t number = random.Next();
    std::memcpy(&bytes[i], &number, std::min(sizeof(number), count - i));
  }
  return bytes;
}

// Both ends at once, each on a thread.
void Both(const std::function<void()>& first, const std::function<void()>& second) {
  std::thread other(second);
  first();
  other.join();
}

class PeerLinkTest : public testing::TestWithParam<Transport> {
 protected:
  // Each end sends its bytes and receives the other end's.
  void ExpectExchanged(const std::vector<std::byte>& from_first,
                       const std::vector<std::byte>& from_second) {
    std::vector<std::byte> at_first(from_second.size());
    std::vector<std::byte> at_second(from_first.size());
    Both([&] { EXPECT_TRUE(links_.first.Exchange(from_first, at_first).ok()); },
         [&] { EXPECT_TRUE(links_.second.Exchange(from_second, at_second).ok()); });
    EXPECT_TRUE(at_first == from_second) << from_second.size();
    EXPECT_TRUE(at_second == from_first) << from_first.size();
  }

  std::pair<PeerLink, PeerLink> links_ = ConnectLinks(GetParam());
};

TEST_P(PeerLinkTest, BytesOfAnySizeArriveBothWays) {
  Random random(1);
  for (const size_t size : {size_t{0},
                            size_t{1},
                            size_t{63},
                            size_t{64},
                            size_t{65},
                            size_t{16'384},
                            size_t{100'001},
                            kSharedRingBytes,
                            kSharedRingBytes + 1,
                            kManyRings}) {
    ExpectExchanged(RandomBytes(random, size), RandomBytes(random, size));
    ExpectExchanged(RandomBytes(random, size), {});
    ExpectExchanged({}, RandomBytes(random, size));
    ExpectExchanged(RandomBytes(random, 5), RandomBytes(random, size));
  }
}

TEST_P(PeerLinkTest, BytesOfRandomSizesArriveBothWays) {
  for (uint64_t seed = 1; seed <= 10; ++seed) {
    Random random(seed);
    const auto random_size = [&] {
      return static_cast<size_t>(random.Next() >> random.Between(64 - 19, 64 - 1));
    };
    for (int i = 0; i < 20; ++i) {
      ExpectExchanged(RandomBytes(random, random_size()), RandomBytes(random, random_size()));
      ASSERT_FALSE(HasFailure()) << "seed " << seed;
    }
  }
}

TEST_P(PeerLinkTest, MergeMayWriteWhereItReads) {
  Random random(1);
  for (const size_t size : {size_t{0}, size_t{1}, size_t{65}, size_t{100'001}, kManyRings}) {
    const std::array<std::vector<std::byte>, 2> before = {RandomBytes(random, size),
                                                          RandomBytes(random, size)};
    std::array<std::vector<std::byte>, 2> data = before;
    const auto merge = [&](PeerLink& link, std::vector<std::byte>& own) {
      const auto status = link.Merge(own, [&](size_t offset, std::span<const std::byte> piece) {
        EXPECT_EQ(offset % kRingLineBytes, 0U);
        for (size_t i = 0; i < piece.size(); ++i) {
          own[offset + i] ^= piece[i];
        }
      });
      EXPECT_TRUE(status.ok()) << status;
    };
    Both([&] { merge(links_.first, data[0]); }, [&] { merge(links_.second, data[1]); });
    std::vector<std::byte> expected = before[0];
    for (size_t i = 0; i < size; ++i) {
      expected[i] ^= before[1][i];
    }
    EXPECT_TRUE(data[0] == expected) << size;
    EXPECT_TRUE(data[1] == expected) << size;
  }
}

TEST_P(PeerLinkTest, WhatWasSentBeforeTheEndIsReceived) {
  const std::vector<std::byte> sent(1000, std::byte{7});
  std::vector<std::byte> received(1000);
  {
    PeerLink gone = std::move(links_.first);
    EXPECT_TRUE(gone.Exchange(sent, {}).ok());
  }
  EXPECT_TRUE(links_.second.Exchange({}, received).ok());
  EXPECT_TRUE(received == sent);
  EXPECT_EQ(ReasonOf(links_.second.Exchange({}, received)), "GROUP_BROKEN");
}

TEST_P(PeerLinkTest, AnEndIsSeenBehindBytesThatNobodyHasTaken) {
  const std::vector<std::byte> sent(1000);
  {
    PeerLink gone = std::move(links_.first);
    EXPECT_TRUE(gone.Exchange(sent, {}).ok());
    EXPECT_FALSE(links_.second.has_ended());
  }
  EXPECT_TRUE(links_.second.has_ended());
}

// Waits in vain: for data that the other end does not send, or for room that it does not make.
enum class Waits : uint8_t { kForData, kForRoom };

absl::Status WaitInVain(PeerLink& link, Waits waits) {
  std::vector<std::byte> bytes(waits == Waits::kForData ? 1000 : kManyRings);
  return waits == Waits::kForData ? link.Exchange({}, bytes) : link.Exchange(bytes, {});
}

void SleepMillis(int millis) { std::this_thread::sleep_for(std::chrono::milliseconds(millis)); }

TEST_P(PeerLinkTest, AbortEndsBothEnds) {
  for (const Waits waits : {Waits::kForData, Waits::kForRoom}) {
    for (const bool is_own : {true, false}) {
      auto [waiting, other] = ConnectLinks(GetParam());
      std::thread aborts([&, &end = is_own ? waiting : other] {
        SleepMillis(20);
        end.Abort();
      });
      EXPECT_EQ(ReasonOf(WaitInVain(waiting, waits)), "GROUP_BROKEN");
      aborts.join();
      EXPECT_EQ(ReasonOf(WaitInVain(waiting, Waits::kForData)), "GROUP_BROKEN");
      // The other end still receives earlier bytes, and none after the abort.
      std::vector<std::byte> all(kManyRings);
      EXPECT_EQ(ReasonOf(other.Exchange({}, all)), "GROUP_BROKEN");
    }
  }
}

TEST_P(PeerLinkTest, AnAbortedEndTakesNothingMore) {
  const std::vector<std::byte> sent(1000);
  std::vector<std::byte> received(1000);
  ASSERT_TRUE(links_.first.Exchange(sent, {}).ok());
  links_.second.Abort();
  EXPECT_EQ(ReasonOf(links_.second.Exchange(sent, {})), "GROUP_BROKEN");
}

// A process exchanges through the other end until it is killed. This end notices in every state of
// the exchange.
TEST_P(PeerLinkTest, AKilledProcessIsFound) {
  Random random(1);
  for (const size_t size : {size_t{1000}, kManyRings}) {
    for (int i = 0; i < 10; ++i) {
      LinkParts parts = MakeLinkParts(GetParam());
      const pid_t child = ::fork();
      std::vector<std::byte> out(size);
      std::vector<std::byte> in(size);
      if (child == 0) {
        parts.sockets[0].Close();
        PeerLink link = parts.Take(1, GetParam());
        while (link.Exchange(out, in).ok()) {
        }
        ::_exit(1);
      }
      parts.sockets[1].Close();
      PeerLink link = parts.Take(0, GetParam());
      std::thread killer([&, micros = random.Below(5000)] {
        std::this_thread::sleep_for(std::chrono::microseconds(micros));
        ::kill(child, SIGKILL);
      });
      absl::Status status;
      while (status.ok()) {
        status = link.Exchange(out, in);
      }
      EXPECT_EQ(ReasonOf(status), "GROUP_BROKEN");
      killer.join();
      int ended = 0;
      ::waitpid(child, &ended, 0);
      EXPECT_TRUE(WIFSIGNALED(ended));
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Transports,
                         PeerLinkTest,
                         testing::Values(Transport::kSocket,
                                         Transport::kShared,
                                         Transport::kSharedSpinning,
                                         Transport::kTls),
                         [](const auto& param_info) { return NameOf(param_info.param); });

// Each record has a key of its own, and the sockets take little. An end that stopped reading until
// its change of keys was sent would wait for ever.
TEST(EncryptedLinkTest, BothEndsChangeKeysWhileBothSend) {
  Random random(1);
  LinkParts parts = MakeLinkParts(Transport::kTls, /*max_records_per_key=*/1);
  for (const FileDescriptor& socket : parts.sockets) {
    const int few = 32'768;
    ASSERT_EQ(::setsockopt(socket.fd(), SOL_SOCKET, SO_SNDBUF, &few, sizeof(few)), 0);
    ASSERT_EQ(::setsockopt(socket.fd(), SOL_SOCKET, SO_RCVBUF, &few, sizeof(few)), 0);
  }
  PeerLink first = parts.Take(0, Transport::kTls);
  PeerLink second = parts.Take(1, Transport::kTls);
  for (const auto& [to_second, to_first] : {std::pair(kManyRings, kManyRings),
                                            std::pair(kManyRings, size_t{1}),
                                            std::pair(size_t{100'001}, kManyRings),
                                            std::pair(kManyRings, size_t{0})}) {
    const std::vector<std::byte> from_first = RandomBytes(random, to_second);
    const std::vector<std::byte> from_second = RandomBytes(random, to_first);
    std::vector<std::byte> at_first(to_first);
    std::vector<std::byte> at_second(to_second);
    const auto exchange =
        [](PeerLink& link, std::span<const std::byte> out, std::span<std::byte> in) {
          const absl::Status status = link.Exchange(out, in);
          EXPECT_TRUE(status.ok()) << status;
          if (!status.ok()) {
            link.Abort();
          }
        };
    Both([&] { exchange(first, from_first, at_first); },
         [&] { exchange(second, from_second, at_second); });
    EXPECT_TRUE(at_first == from_second) << to_first;
    EXPECT_TRUE(at_second == from_first) << to_second;
  }
}

TEST(EncryptedLinkTest, AChangeOfKeysIsNoEnd) {
  LinkParts parts = MakeLinkParts(Transport::kTls, /*max_records_per_key=*/1);
  PeerLink second = parts.Take(1, Transport::kTls);
  const std::vector<std::byte> sent(10);
  {
    PeerLink first = parts.Take(0, Transport::kTls);
    ASSERT_TRUE(first.Exchange(sent, {}).ok());
    ASSERT_TRUE(first.Exchange(sent, {}).ok());
    EXPECT_FALSE(second.has_ended());
  }
  EXPECT_TRUE(second.has_ended());
  std::vector<std::byte> received(20);
  EXPECT_TRUE(second.Exchange({}, received).ok());
}

// Bytes that a stranger writes into the connection break it. Bytes that were sent before are still
// received.
TEST(EncryptedLinkTest, BytesOfAStrangerBreakTheLink) {
  LinkParts parts = MakeLinkParts(Transport::kTls);
  const int stranger = ::dup(parts.sockets[0].fd());
  PeerLink first = parts.Take(0, Transport::kTls);
  PeerLink second = parts.Take(1, Transport::kTls);
  const std::vector<std::byte> sent(1000, std::byte{7});
  std::vector<std::byte> received(1000);
  ASSERT_TRUE(first.Exchange(sent, {}).ok());
  ASSERT_EQ(::send(stranger, "hello", 5, MSG_NOSIGNAL), 5);
  EXPECT_TRUE(second.Exchange({}, received).ok());
  EXPECT_TRUE(received == sent);
  const absl::Status status = second.Exchange({}, received);
  EXPECT_EQ(ReasonOf(status), "GROUP_BROKEN");
  EXPECT_EQ(status.message(), "the connection is broken");
  ::close(stranger);
}

// Everything before the rings: words and counters.
constexpr size_t kCountersBytes = 2 * kRingLineBytes + 2 * sizeof(RingCounters);

// Counters that end 0 reads and end 1 writes.
constexpr size_t kReadByOther = 2 * kRingLineBytes + offsetof(RingCounters, num_read);
constexpr size_t kWrittenByOther =
    2 * kRingLineBytes + sizeof(RingCounters) + offsetof(RingCounters, num_written);

TEST(GarbledMemoryTest, ACounterThatCannotBeTrueBreaksTheGroup) {
  for (const size_t place : {kReadByOther, kWrittenByOther}) {
    LinkParts parts = MakeLinkParts(Transport::kShared);
    PeerLink link = parts.Take(0, Transport::kShared);
    auto* memory = static_cast<std::byte*>(
        ::mmap(nullptr, kCountersBytes, PROT_READ | PROT_WRITE, MAP_SHARED, parts.memory.fd(), 0));
    ASSERT_NE(memory, MAP_FAILED);
    const uint64_t never = uint64_t{1} << 40;
    std::memcpy(memory + place, &never, sizeof(never));
    std::vector<std::byte> bytes(1000);
    const absl::Status status = link.Exchange(bytes, bytes);
    EXPECT_EQ(ReasonOf(status), "GROUP_BROKEN") << place;
    EXPECT_EQ(status.message(), "the shared memory is garbled") << place;
    ::munmap(memory, kCountersBytes);
  }
}

// Another process overwrites the counters again and again while two ends exchange. The ends may
// fail or receive wrong bytes, but they do not wait for ever.
TEST(GarbledMemoryTest, ScribblesEndInAnErrorAtWorst) {
  for (uint64_t seed = 1; seed <= 20; ++seed) {
    LinkParts parts = MakeLinkParts(Transport::kShared);
    auto* words = static_cast<std::atomic<uint64_t>*>(
        ::mmap(nullptr, kCountersBytes, PROT_READ | PROT_WRITE, MAP_SHARED, parts.memory.fd(), 0));
    ASSERT_NE(static_cast<void*>(words), MAP_FAILED);
    PeerLink first = parts.Take(0, Transport::kShared);
    PeerLink second = parts.Take(1, Transport::kShared);
    const auto exchange = [](PeerLink& link) {
      std::vector<std::byte> out(kManyRings);
      std::vector<std::byte> in(kManyRings);
      for (int i = 0; i < 100; ++i) {
        if (!link.Exchange(out, in).ok()) {
          break;
        }
      }
      link.Abort();
    };
    std::thread scribbles([&] {
      Random random(seed);
      for (int i = 0; i < 50; ++i) {
        const auto word = static_cast<size_t>(random.Below(kCountersBytes / sizeof(uint64_t)));
        words[word] = random.OneIn(2) ? random.Next() : words[word] + kRingLineBytes;
        std::this_thread::sleep_for(std::chrono::microseconds(random.Below(100)));
      }
      SleepMillis(20);
      first.Abort();
    });
    Both([&] { exchange(first); }, [&] { exchange(second); });
    scribbles.join();
    ::munmap(words, kCountersBytes);
  }
}

}  // namespace
}  // namespace quire
