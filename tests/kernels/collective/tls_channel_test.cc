#include "kernels/collective/tls_channel.h"

#include <poll.h>

#include <algorithm>
#include <array>
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

#include "tests/support/certificate_tls.h"
#include "tests/support/rank_group.h"

#include <sys/socket.h>

namespace quire {
namespace {

using testing::HasSubstr;
using testing::Not;
using Progress = TlsChannel::Progress;

// Bytes that do not occur in a message by chance.
const std::string kSecret = "32 bytes that only the ranks have";
const std::string kIdentity = "from 0 to 1";
const std::string kPayload = "sums of the model";
// A record is a header, its content with a type byte, and a tag.
constexpr size_t kHeaderBytes = 5;
constexpr size_t kOverheadBytes = 1 + 16;
constexpr size_t kKeyUpdateBytes = 5;

TlsChannel::Settings Settings(std::string_view secret = kSecret,
                              std::vector<std::string> identities = {kIdentity},
                              int64_t max_records_per_key = TlsChannel::kMaxRecordsPerKey) {
  return {.secret = secret,
          .identities = std::move(identities),
          .max_records_per_key = max_records_per_key};
}

// All bytes that have come, and those that still come within a moment.
std::string TakeAll(int socket) {
  std::string all;
  std::array<char, 4096> buffer = {};
  pollfd wanted = {.fd = socket, .events = POLLIN, .revents = 0};
  while (::poll(&wanted, 1, /*timeout=*/all.empty() ? 200 : 5) > 0) {
    const ssize_t came = ::recv(socket, buffer.data(), buffer.size(), 0);
    if (came <= 0) {
      break;
    }
    all.append(buffer.data(), static_cast<size_t>(came));
  }
  return all;
}

void Say(int socket, const std::string& bytes) {
  EXPECT_EQ(::send(socket, bytes.data(), bytes.size(), MSG_NOSIGNAL),
            static_cast<ssize_t>(bytes.size()));
}

std::span<const std::byte> BytesOf(const std::string& text) {
  return std::as_bytes(std::span(text));
}

// The bytes that the end receives next; "" if none have come, nullopt if the channel has failed.
std::optional<std::string> Hear(TlsChannel& end, size_t max_bytes = 100'000) {
  std::string heard(max_bytes, ' ');
  const auto came = end.Receive(std::as_writable_bytes(std::span(heard)));
  return came.has_value() ? std::optional(heard.substr(0, *came)) : std::nullopt;
}

// Two ends whose bytes the test carries from one to the other.
class TlsChannelTest : public testing::Test {
 protected:
  void Make(const TlsChannel::Settings& dials, const TlsChannel::Settings& accepts) {
    for (size_t end = 0; end < 2; ++end) {
      std::array<FileDescriptor, 2> pair = TcpPair();
      sockets_[end] = std::move(pair[0]);
      wires_[end] = std::move(pair[1]);
    }
    dials_ = TlsChannel::Dial(sockets_[0].fd(), dials);
    accepts_ = TlsChannel::Accept(sockets_[1].fd(), accepts);
    said_.fill("");
  }

  // Carries all bytes that the end `from` has sent to the other end.
  std::string Carry(size_t from) {
    std::string said = TakeAll(wires_[from].fd());
    Say(wires_[1 - from].fd(), said);
    said_[from] += said;
    return said;
  }

  // Shakes hands until both ends are done, or one has failed.
  std::pair<Progress, Progress> ShakeHands() {
    const Progress waits = dials_->ShakeHands();
    EXPECT_EQ(waits, Progress::kGoesOn);
    Carry(0);
    const Progress answered = accepts_->ShakeHands();
    Carry(1);
    const Progress dialled = dials_->ShakeHands();
    if (dialled != Progress::kDone) {
      return {dialled, answered};
    }
    Carry(0);
    return {dialled, accepts_->ShakeHands()};
  }

  void Meet(int64_t max_records_per_key = TlsChannel::kMaxRecordsPerKey) {
    const auto settings = Settings(kSecret, {kIdentity}, max_records_per_key);
    Make(settings, settings);
    ASSERT_EQ(ShakeHands(), std::pair(Progress::kDone, Progress::kDone));
  }

  std::array<FileDescriptor, 2> sockets_;
  std::array<FileDescriptor, 2> wires_;
  std::unique_ptr<TlsChannel> dials_;
  std::unique_ptr<TlsChannel> accepts_;
  std::array<std::string, 2> said_;
};

TEST_F(TlsChannelTest, EndsThatHaveTheSecretHearEachOther) {
  Meet();
  ASSERT_EQ(dials_->Send(BytesOf(kPayload)), kPayload.size());
  EXPECT_EQ(Hear(*accepts_), "") << "nothing has come yet";
  Carry(0);
  EXPECT_EQ(Hear(*accepts_), kPayload);
  ASSERT_EQ(accepts_->Send(BytesOf("an answer")), std::string("an answer").size());
  Carry(1);
  EXPECT_EQ(Hear(*dials_), "an answer");
}

TEST_F(TlsChannelTest, WhatGoesOverTheNetworkTellsNeitherSecretNorBytes) {
  Meet();
  ASSERT_TRUE(dials_->Send(BytesOf(kPayload)).has_value());
  ASSERT_TRUE(accepts_->Send(BytesOf(kPayload)).has_value());
  Carry(0);
  Carry(1);
  for (const std::string& said : said_) {
    EXPECT_GT(said.size(), kPayload.size());
    EXPECT_THAT(said, Not(HasSubstr(kPayload)));
    EXPECT_THAT(said, Not(HasSubstr(kSecret.substr(0, 8))));
  }
  EXPECT_THAT(said_[0], HasSubstr(kIdentity));
}

// Two connections with one secret have different keys. An attacker that has the secret and a
// recording lacks the X25519 keys: the extension offers psk_dhe_ke alone.
TEST_F(TlsChannelTest, NoKeyIsMadeOfTheSecretAlone) {
  Meet();
  const std::string offer("\x00\x2d\x00\x02\x01\x01", 6);
  EXPECT_THAT(said_[0], HasSubstr(offer));
}

TEST_F(TlsChannelTest, AnotherSecretIsRefusedByBothEnds) {
  Make(Settings("32 bytes that only a stranger has"), Settings());
  const auto [dials, accepts] = ShakeHands();
  EXPECT_EQ(dials, Progress::kFailed);
  EXPECT_EQ(accepts, Progress::kFailed);
  EXPECT_FALSE(accepts_->has_shown_secret());
}

TEST_F(TlsChannelTest, AnotherIdentityIsRefusedWithTheRightSecret) {
  Make(Settings(kSecret, {"from 0 to 2"}), Settings(kSecret, {kIdentity, "from 3 to 1"}));
  const auto [dials, accepts] = ShakeHands();
  EXPECT_EQ(dials, Progress::kFailed);
  EXPECT_EQ(accepts, Progress::kFailed);
}

TEST_F(TlsChannelTest, EachIdentityThatMayComeComes) {
  Make(Settings(kSecret, {"from 3 to 1"}), Settings(kSecret, {kIdentity, "from 3 to 1"}));
  EXPECT_EQ(ShakeHands(), std::pair(Progress::kDone, Progress::kDone));
}

// An attacker on the way repeats a recorded hello without the secret. The dialled end notices no
// earlier than at the last message of the handshake.
TEST_F(TlsChannelTest, ARepeatedHelloGetsNoFurther) {
  Meet();
  const std::string hello_and_finished = said_[0];
  Make(Settings(), Settings());
  Say(wires_[1].fd(), hello_and_finished);
  EXPECT_EQ(accepts_->ShakeHands(), Progress::kFailed);
}

TEST_F(TlsChannelTest, CertificatesOpenNothing) {
  for (const bool dials : {true, false}) {
    std::array<FileDescriptor, 2> pair = TcpPair();
    const auto own = dials ? TlsChannel::Dial(pair[0].fd(), Settings())
                           : TlsChannel::Accept(pair[0].fd(), Settings());
    bool has_met = true;
    std::thread stranger([&, socket = pair[1].fd()] {
      has_met = dials ? AcceptsByCertificate(socket) : ConnectsByCertificate(socket);
    });
    Progress progress = Progress::kGoesOn;
    while (progress == Progress::kGoesOn) {
      progress = own->ShakeHands();
    }
    EXPECT_EQ(progress, Progress::kFailed) << (dials ? "dials" : "is dialled");
    EXPECT_FALSE(own->has_shown_secret());
    ::shutdown(pair[0].fd(), SHUT_RDWR);
    stranger.join();
    EXPECT_FALSE(has_met) << (dials ? "dials" : "is dialled");
  }
}

TEST_F(TlsChannelTest, GarbageIsRefused) {
  for (const std::string garbage :
       {"GET / HTTP/1.1\r\n\r\n", "quirepe3ssssssssssssssss", "\x16\x03\x01\xff\xff"}) {
    Make(Settings(), Settings());
    Say(wires_[1].fd(), garbage);
    EXPECT_EQ(accepts_->ShakeHands(), Progress::kFailed) << garbage;
    Say(wires_[0].fd(), garbage);
    EXPECT_EQ(dials_->ShakeHands(), Progress::kFailed) << garbage;
  }
}

TEST_F(TlsChannelTest, AHandshakeComesByteByByte) {
  Make(Settings(), Settings());
  EXPECT_EQ(dials_->ShakeHands(), Progress::kGoesOn);
  for (const char byte : TakeAll(wires_[0].fd())) {
    EXPECT_EQ(accepts_->ShakeHands(), Progress::kGoesOn);
    EXPECT_FALSE(accepts_->has_shown_secret());
    Say(wires_[1].fd(), std::string(1, byte));
  }
  EXPECT_EQ(accepts_->ShakeHands(), Progress::kGoesOn);
  EXPECT_TRUE(accepts_->has_shown_secret());
}

// Begins a hello of 64 KiB in valid records. Without a limit the end would keep the bytes until the
// hello is complete.
TEST_F(TlsChannelTest, NobodySaysMoreThanAHandshakeNeeds) {
  Make(Settings(), Settings());
  const auto record = [](const std::string& bytes) {
    return std::string("\x16\x03\x01\x04\x00", 5) + bytes + std::string(1024 - bytes.size(), '\0');
  };
  Say(wires_[1].fd(), record(std::string("\x01\x01\x00\x00\x03\x03", 6)) + record("") + record(""));
  EXPECT_EQ(accepts_->ShakeHands(), Progress::kGoesOn);
  Say(wires_[1].fd(), record(""));
  EXPECT_EQ(accepts_->ShakeHands(), Progress::kFailed);
}

TEST_F(TlsChannelTest, AChangedByteEndsTheChannel) {
  const size_t record_bytes = kHeaderBytes + kPayload.size() + kOverheadBytes;
  for (size_t place = 0; place < record_bytes; ++place) {
    Meet();
    ASSERT_TRUE(dials_->Send(BytesOf(kPayload)).has_value());
    std::string record = TakeAll(wires_[0].fd());
    ASSERT_EQ(record.size(), record_bytes);
    record[place] ^= 1;
    Say(wires_[1].fd(), record);
    const auto heard = Hear(*accepts_);
    // The end waits for more bytes if the changed length is larger.
    const bool is_length = place == 3 || place == 4;
    EXPECT_TRUE(!heard.has_value() || (is_length && heard->empty())) << place;
    Say(wires_[1].fd(), std::string(300, 'x'));
    EXPECT_EQ(Hear(*accepts_), std::nullopt) << place;
    EXPECT_EQ(accepts_->Send(BytesOf(kPayload)), std::nullopt) << place;
  }
}

TEST_F(TlsChannelTest, ARecordIsNotTakenTwice) {
  Meet();
  ASSERT_TRUE(dials_->Send(BytesOf(kPayload)).has_value());
  const std::string record = Carry(0);
  EXPECT_EQ(Hear(*accepts_), kPayload);
  Say(wires_[1].fd(), record);
  EXPECT_EQ(Hear(*accepts_), std::nullopt);
}

// Sizes of the records.
std::vector<size_t> RecordsOf(const std::string& bytes) {
  std::vector<size_t> sizes;
  for (size_t i = 0; i + kHeaderBytes <= bytes.size(); i += kHeaderBytes + sizes.back()) {
    const auto high = static_cast<unsigned char>(bytes[i + 3]);
    const auto low = static_cast<unsigned char>(bytes[i + 4]);
    sizes.push_back(256 * size_t{high} + low);
  }
  return sizes;
}

TEST_F(TlsChannelTest, AKeyIsChangedBeforeItIsWornOut) {
  // RFC 8446, 5.5: 2^24.5 full records for a margin of 2^-57.
  static_assert(TlsChannel::kMaxRecordsPerKey < int64_t{1} << 23);
  Meet(/*max_records_per_key=*/3);
  const std::string many_records(100'000, 'x');  // 7 of them
  ASSERT_EQ(dials_->Send(BytesOf(many_records)), 4 * 16'384) << "the socket takes 64 KiB at a time";
  ASSERT_EQ(dials_->Send(BytesOf(many_records).subspan(4 * 16'384)),
            many_records.size() - 4 * 16'384);
  std::string heard;
  std::string carried;
  while (heard.size() < many_records.size()) {
    carried += Carry(0);
    const auto more = Hear(*accepts_);
    ASSERT_TRUE(more.has_value());
    heard += *more;
  }
  EXPECT_EQ(heard, many_records);
  EXPECT_EQ(dials_->num_key_updates(), 2);
  EXPECT_EQ(accepts_->num_key_updates(), 0) << "each end changes its own";
  EXPECT_EQ(std::ranges::count(RecordsOf(carried), kKeyUpdateBytes + kOverheadBytes), 2);
}

TEST_F(TlsChannelTest, ASocketThatIsShutDownEndsAHandshake) {
  Make(Settings(), Settings());
  EXPECT_EQ(dials_->ShakeHands(), Progress::kGoesOn);
  EXPECT_EQ(accepts_->ShakeHands(), Progress::kGoesOn);
  for (const FileDescriptor& socket : sockets_) {
    ::shutdown(socket.fd(), SHUT_RDWR);
  }
  EXPECT_EQ(dials_->ShakeHands(), Progress::kFailed);
  EXPECT_EQ(accepts_->ShakeHands(), Progress::kFailed);
  EXPECT_EQ(accepts_->ShakeHands(), Progress::kFailed) << "and stays so";
}

TEST(AreEqualSecretsTest, ComparesAllOfThem) {
  EXPECT_TRUE(AreEqualSecrets("", ""));
  EXPECT_TRUE(AreEqualSecrets("abc", "abc"));
  EXPECT_FALSE(AreEqualSecrets("abc", "abd"));
  EXPECT_FALSE(AreEqualSecrets("abc", "bbc"));
  EXPECT_FALSE(AreEqualSecrets("abc", "abcd"));
}

}  // namespace
}  // namespace quire
