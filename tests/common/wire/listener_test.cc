// Listener in front of a gRPC server that answers every call with UNIMPLEMENTED, and ListenerProbe
// in front of that server and in front of none.
#include "common/wire/listener.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <filesystem>
#include <memory>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include <gmock/gmock.h>
#include <grpcpp/client_context.h>
#include <grpcpp/create_channel.h>
#include <grpcpp/generic/async_generic_service.h>
#include <grpcpp/generic/generic_stub.h>
#include <grpcpp/security/credentials.h>
#include <grpcpp/server.h>
#include <gtest/gtest.h>

#include "common/base/error.h"
#include "common/base/file_descriptor.h"
#include "common/base/file_limit.h"
#include "common/wire/channel.h"
#include "common/wire/listener_probe.h"
#include "tests/support/capture_log.h"

#include <netinet/in.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>

namespace quire {
namespace {

using testing::HasSubstr;

constexpr ListenerProbeTiming kFast = {.interval = std::chrono::milliseconds(1),
                                       .patience = std::chrono::milliseconds(200),
                                       .num_misses = 2};

Address Loopback(int32_t port = 0) { return {.unix_path = "", .host = "127.0.0.1", .port = port}; }

class TestServer {
 public:
  explicit TestServer(const Address& address, int num_files_spared = 0)
      : listener_(*Listener::Bind(address, num_files_spared)) {
    grpc::ServerBuilder builder;
    ConfigurePublicServer(builder);
    listener_->AddTo(builder);
    builder.RegisterCallbackGenericService(&service_);
    server_ = builder.BuildAndStart();
    listener_->Start();
  }
  ~TestServer() { Stop(); }

  const Address& address() const { return listener_->address(); }
  void SetRefusing(bool is_refusing) { listener_->SetRefusing(is_refusing); }
  void Stop() {
    listener_->Stop();
    server_->Shutdown();
  }

 private:
  std::unique_ptr<Listener> listener_;
  grpc::CallbackGenericService service_;
  std::unique_ptr<grpc::Server> server_;
};

// True if a server answers a call over this channel.
bool IsServed(const std::shared_ptr<grpc::Channel>& channel) {
  grpc::GenericStub stub(channel);
  grpc::ClientContext context;
  context.set_wait_for_ready(true);
  context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(30));
  grpc::CompletionQueue queue;
  grpc::ByteBuffer response;
  grpc::Status status;
  auto call = stub.PrepareUnaryCall(&context, "/any/Method", grpc::ByteBuffer(), &queue);
  call->StartCall();
  call->Finish(&response, &status, nullptr);
  void* tag = nullptr;
  bool ok = false;
  queue.Next(&tag, &ok);
  return status.error_code() == grpc::StatusCode::UNIMPLEMENTED;
}

// True if a server answers a call over a new connection.
bool IsServed(const Address& address) {
  grpc::ChannelArguments arguments;
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  arguments.SetInt(GRPC_ARG_INITIAL_RECONNECT_BACKOFF_MS, 100);
  return IsServed(
      grpc::CreateCustomChannel(address.ToString(), grpc::InsecureChannelCredentials(), arguments));
}

sockaddr_in LoopbackAt(int32_t port) {
  sockaddr_in where = {};
  where.sin_family = AF_INET;
  where.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  where.sin_port = htons(static_cast<uint16_t>(port));
  return where;
}

sockaddr_un UnixAt(const std::string& path) {
  sockaddr_un where = {};
  where.sun_family = AF_UNIX;
  std::copy(path.begin(), path.end(), where.sun_path);
  return where;
}

FileDescriptor Connect(const Address& address) {
  const sockaddr_in where = LoopbackAt(address.port);
  FileDescriptor socket(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  EXPECT_EQ(::connect(socket.fd(), reinterpret_cast<const sockaddr*>(&where), sizeof(where)), 0);
  return socket;
}

// Waits until the other end has closed the socket.
bool IsClosed(const FileDescriptor& socket) {
  char byte = 0;
  return ::recv(socket.fd(), &byte, 1, 0) <= 0;
}

// Returns whether the other end has closed the socket by now. Discards the bytes that came.
bool IsClosedNow(const FileDescriptor& socket) {
  std::array<char, 256> bytes = {};
  ssize_t num_bytes = 0;
  do {
    num_bytes = ::recv(socket.fd(), bytes.data(), bytes.size(), MSG_DONTWAIT);
  } while (num_bytes > 0);
  return num_bytes == 0 || errno != EAGAIN;
}

// Returns whether the other end has sent a byte, which stays unread, or closed the socket.
bool IsAnsweredOrClosed(const FileDescriptor& socket) {
  char byte = 0;
  return ::recv(socket.fd(), &byte, 1, MSG_DONTWAIT | MSG_PEEK) >= 0 || errno != EAGAIN;
}

constexpr std::string_view kHello = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

void Say(std::string_view bytes, const FileDescriptor& socket) {
  ::send(socket.fd(), bytes.data(), bytes.size(), MSG_NOSIGNAL);
}

// Lowers the limit of open files during its lifetime.
class LowerFileLimit {
 public:
  explicit LowerFileLimit(rlim_t limit) {
    ::getrlimit(RLIMIT_NOFILE, &before_);
    const rlimit lower = {.rlim_cur = limit, .rlim_max = before_.rlim_max};
    ::setrlimit(RLIMIT_NOFILE, &lower);
  }
  ~LowerFileLimit() { ::setrlimit(RLIMIT_NOFILE, &before_); }

 private:
  rlimit before_ = {};
};

template <typename Claim>
void WaitUntil(const Claim& claim) {
  while (!claim()) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
}

int64_t NumOpenFiles() {
  return std::distance(std::filesystem::directory_iterator("/proc/self/fd"),
                       std::filesystem::directory_iterator());
}

// A server bounds the streams of each connection, so a client that dials twice must get two
// connections' worth of streams.
TEST(DialPublicTest, EachChannelHasAConnectionOfItsOwn) {
  const TestServer server(Loopback());
  const std::shared_ptr<grpc::Channel> first = DialPublic(server.address());
  EXPECT_TRUE(IsServed(first));
  const int64_t num_before = NumOpenFiles();

  const std::shared_ptr<grpc::Channel> second = DialPublic(server.address());
  EXPECT_TRUE(IsServed(second));

  EXPECT_GE(NumOpenFiles(), num_before + 2) << "both ends are in this process";
}

// A second address of a name, which takes connections and says nothing.
TEST(DialPublicTest, AnAddressThatDoesNotAnswerIsNotWaitedFor) {
  const TestServer server(Loopback());
  sockaddr_in where = LoopbackAt(server.address().port);
  where.sin_addr.s_addr = htonl(INADDR_LOOPBACK + 1);
  const FileDescriptor silent(::socket(AF_INET, SOCK_STREAM, 0));
  ASSERT_EQ(::bind(silent.fd(), reinterpret_cast<const sockaddr*>(&where), sizeof(where)), 0);
  ASSERT_EQ(::listen(silent.fd(), 8), 0);
  const std::string port = std::to_string(server.address().port);

  const std::shared_ptr<grpc::Channel> channel =
      grpc::CreateCustomChannel("ipv4:127.0.0.2:" + port + ",127.0.0.1:" + port,
                                grpc::InsecureChannelCredentials(),
                                PublicChannelArguments());
  EXPECT_TRUE(IsServed(channel));

  const FileDescriptor connection(::accept(silent.fd(), nullptr, nullptr));
  std::array<char, 4096> bytes = {};
  ssize_t num_bytes = 1;
  while (num_bytes > 0) {
    num_bytes = ::recv(connection.fd(), bytes.data(), bytes.size(), MSG_DONTWAIT);
  }
  EXPECT_EQ(num_bytes, -1) << "closed: the client has waited until it gave up the attempt";
}

TEST(ListenerTest, AnyKindOfAddressIsServed) {
  const std::string path =
      (std::filesystem::path(testing::TempDir()) / "quire_listener_test.sock").string();
  for (const Address& address : {Loopback(),
                                 Address{.unix_path = "", .host = "localhost", .port = 0},
                                 Address{.unix_path = "", .host = "0.0.0.0", .port = 0},
                                 Address{.unix_path = path, .host = "", .port = 0}}) {
    TestServer server(address);

    EXPECT_TRUE(IsServed(server.address())) << server.address().ToString();
  }
  EXPECT_FALSE(std::filesystem::exists(path)) << "a socket outlives its server";
}

TEST(ListenerTest, ASocketThatADeadProcessLeftIsTakenOver) {
  const std::string path =
      (std::filesystem::path(testing::TempDir()) / "quire_listener_left.sock").string();
  const Address address = {.unix_path = path, .host = "", .port = 0};
  const sockaddr_un where = UnixAt(path);
  FileDescriptor left(::socket(AF_UNIX, SOCK_STREAM, 0));
  ASSERT_EQ(::bind(left.fd(), reinterpret_cast<const sockaddr*>(&where), sizeof(where)), 0);
  left.Close();  // the file stays

  TestServer server(address);

  EXPECT_TRUE(IsServed(address));
}

// Connects as another user, so often. Returns the exit status: 0 when each connection was closed.
int ConnectAsNobody(const std::string& path, int num_connections) {
  constexpr uid_t kNobody = 65534;
  const pid_t child = ::fork();
  if (child == 0) {
    const sockaddr_un where = UnixAt(path);
    bool is_closed = ::setuid(kNobody) == 0;
    for (int i = 0; is_closed && i < num_connections; ++i) {
      const FileDescriptor connection(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
      is_closed =
          ::connect(connection.fd(), reinterpret_cast<const sockaddr*>(&where), sizeof(where)) ==
              0 &&
          IsClosed(connection);
    }
    ::_exit(is_closed ? 0 : 1);
  }
  int status = -1;
  ::waitpid(child, &status, 0);
  return status;
}

int NumLines(const std::string& log, const std::string& text) {
  int count = 0;
  for (size_t at = log.find(text); at != std::string::npos; at = log.find(text, at + 1)) {
    ++count;
  }
  return count;
}

TEST(ListenerTest, AUnixSocketIsForItsUserAlone) {
  if (::geteuid() != 0) {
    GTEST_SKIP() << "only root can be another user";
  }
  const std::string path = "/tmp/quire_listener_own.sock";  // where others may look
  TestServer server({.unix_path = path, .host = "", .port = 0});
  std::filesystem::permissions(path, std::filesystem::perms::all);

  EXPECT_EQ(ConnectAsNobody(path, 1), 0) << "another user is not let in";
  EXPECT_TRUE(IsServed(server.address()));
}

TEST(ListenerTest, WhoeverIsRefusedCannotFillTheLog) {
  if (::geteuid() != 0) {
    GTEST_SKIP() << "only root can be another user";
  }
  const std::string path = "/tmp/quire_listener_log.sock";
  TestServer server({.unix_path = path, .host = "", .port = 0});
  std::filesystem::permissions(path, std::filesystem::perms::all);
  CaptureStderr();

  EXPECT_EQ(ConnectAsNobody(path, 500), 0);

  // One in ten seconds: a few, on a machine that stands still in between.
  const int num_lines = NumLines(GetCapturedStderr(), "connections of another user are refused");
  EXPECT_GE(num_lines, 1);
  EXPECT_LE(num_lines, 10);
}

TEST(ListenerTest, AnAddressThatIsTakenIsNamedAndStaysTaken) {
  const std::string path =
      (std::filesystem::path(testing::TempDir()) / "quire_listener_taken.sock").string();
  for (const Address& address : {Loopback(), Address{.unix_path = path, .host = "", .port = 0}}) {
    TestServer server(address);

    const absl::Status status = Listener::Bind(server.address()).status();

    EXPECT_EQ(ReasonOf(status), "LISTEN");
    EXPECT_THAT(status.message(), HasSubstr(server.address().ToString()));
    EXPECT_TRUE(IsServed(server.address()));
  }
}

TEST(ListenerTest, ANameThatNobodyHasIsRefused) {
  const Address address = {.unix_path = "", .host = "no-such-host.invalid", .port = 0};

  EXPECT_EQ(ReasonOf(Listener::Bind(address).status()), "LISTEN");
}

TEST(ListenerTest, ConnectionsThatAreTooManyAreClosedAndItServesAgainAfterwards) {
  constexpr int kNumConnections = 40;
  std::vector<FileDescriptor> connections;
  // 40 are the reserve, and each connection has both its ends in this process.
  const LowerFileLimit lower(160);
  TestServer server(Loopback());
  EXPECT_TRUE(IsServed(server.address()));
  for (int i = 0; i < 2 * kNumConnections; ++i) {
    connections.push_back(Connect(server.address()));
    ASSERT_TRUE(connections.back().is_open());
    Say(kHello, connections.back());
  }

  WaitUntil([&] { return IsClosedNow(connections.back()); });  // more than there is room for
  connections.clear();

  EXPECT_TRUE(IsServed(server.address()));
}

TEST(ListenerTest, AFloodOfOnePortLeavesFilesToAnother) {
  const LowerFileLimit lower(160);
  TestServer clients(Loopback(), /*num_files_spared=*/16);
  TestServer admin(Loopback());
  std::vector<FileDescriptor> flood;
  do {
    flood.push_back(Connect(clients.address()));
    ASSERT_TRUE(flood.back().is_open());
    Say(kHello, flood.back());
    WaitUntil([&] { return IsAnsweredOrClosed(flood.back()); });
  } while (!IsClosedNow(flood.back()));
  flood.pop_back();

  const FileDescriptor operators = Connect(admin.address());
  Say(kHello, operators);
  WaitUntil([&] { return IsAnsweredOrClosed(operators); });

  EXPECT_FALSE(IsClosedNow(operators));
}

TEST(ListenerTest, WhoSaysNothingKeepsNobodyOut) {
  // Both ends of 55 connections and what else is open are more than the 120 that may be, and the
  // clients' ends alone are fewer.
  const LowerFileLimit lower(160);
  TestServer server(Loopback());
  std::vector<FileDescriptor> silent;
  for (int i = 0; i < 55; ++i) {
    silent.push_back(Connect(server.address()));
    ASSERT_TRUE(silent.back().is_open());
  }

  EXPECT_TRUE(IsClosed(silent.front())) << "it has been silent longest";
  EXPECT_TRUE(IsServed(server.address()));
  EXPECT_FALSE(IsClosedNow(silent.back()));
}

TEST(ListenerTest, WhatIsNoClientIsHungUpOn) {
  TestServer server(Loopback());

  for (const std::string_view said :
       {"GET / HTTP/1.1\r\n", "x", "PRI * HTTP/1.1\r\n", "\x16\x02"}) {
    const FileDescriptor connection = Connect(server.address());
    Say(said, connection);
    EXPECT_TRUE(IsClosed(connection)) << said;
  }
  const FileDescriptor leaving = Connect(server.address());
  ::shutdown(leaving.fd(), SHUT_WR);
  EXPECT_TRUE(IsClosed(leaving));
}

TEST(ListenerTest, AClientMayBeginSlowly) {
  TestServer server(Loopback());
  const FileDescriptor connection = Connect(server.address());

  for (const char letter : kHello) {
    Say({&letter, 1}, connection);
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }

  char byte = 0;
  EXPECT_EQ(::recv(connection.fd(), &byte, 1, 0), 1) << "the server's settings";
}

TEST(ListenerTest, WhileItRefusesNobodyIsConnectedAndItServesAfterwards) {
  TestServer server(Loopback());
  TestServer other(Loopback());
  const FileDescriptor silent = Connect(server.address());
  const FileDescriptor heard = Connect(server.address());
  Say(kHello, heard);
  WaitUntil([&] { return IsAnsweredOrClosed(heard); });
  const FileDescriptor elsewhere = Connect(other.address());
  Say(kHello, elsewhere);
  WaitUntil([&] { return IsAnsweredOrClosed(elsewhere); });

  server.SetRefusing(true);

  EXPECT_TRUE(IsClosed(silent));
  WaitUntil([&] { return IsClosedNow(heard); });
  EXPECT_TRUE(IsClosed(Connect(server.address())));
  EXPECT_FALSE(IsClosedNow(elsewhere)) << "of another port";
  server.SetRefusing(false);
  EXPECT_TRUE(IsServed(server.address()));
}

TEST(ListenerTest, ItWaitsWhileTheProcessHasNoFileLeftAndServesAfterwards) {
  TestServer server(Loopback());
  {
    std::vector<FileDescriptor> connections(3);
    for (FileDescriptor& socket : connections) {
      socket = FileDescriptor(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    }
    const LowerFileLimit none(3);
    const sockaddr_in where = LoopbackAt(server.address().port);
    for (const FileDescriptor& socket : connections) {
      EXPECT_EQ(::connect(socket.fd(), reinterpret_cast<const sockaddr*>(&where), sizeof(where)),
                0);
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(300));
  }

  EXPECT_TRUE(IsServed(server.address()));
}

TEST(ListenerProbeTest, AServerThatAnswersIsNotDeaf) {
  TestServer server(Loopback());
  const ListenerProbe probe(server.address(), /*is_tls=*/false, kFast);

  for (int i = 0; i < 50; ++i) {
    EXPECT_TRUE(IsServed(server.address()));
    EXPECT_FALSE(probe.is_deaf());
  }
}

TEST(ListenerProbeTest, OneThatTakesNoConnectionIsDeafUntilItDoes) {
  std::unique_ptr<Listener> listener = *Listener::Bind(Loopback());  // not started
  const ListenerProbe probe(listener->address(), /*is_tls=*/false, kFast);

  WaitUntil([&] { return probe.is_deaf(); });
  const Address address = listener->address();
  listener.reset();
  TestServer server(address);

  WaitUntil([&] { return !probe.is_deaf(); });
}

TEST(ListenerProbeTest, OneThatClosesEveryConnectionIsNotDeaf) {
  const FileDescriptor listening(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in where = LoopbackAt(0);
  socklen_t length = sizeof(where);
  ASSERT_EQ(::bind(listening.fd(), reinterpret_cast<sockaddr*>(&where), length), 0);
  ASSERT_EQ(::listen(listening.fd(), 10), 0);
  ::getsockname(listening.fd(), reinterpret_cast<sockaddr*>(&where), &length);
  const ListenerProbe probe(Loopback(ntohs(where.sin_port)), /*is_tls=*/false, kFast);

  for (int i = 0; i < 50; ++i) {
    FileDescriptor(::accept(listening.fd(), nullptr, nullptr)).Close();
    EXPECT_FALSE(probe.is_deaf());
  }
}

TEST(FileLimitTest, ItIsRaisedAsFarAsTheSystemAllows) {
  const LowerFileLimit lower(100);
  ASSERT_EQ(FileLimit(), 100);
  rlimit limit = {};
  ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &limit), 0);

  RaiseFileLimit();

  EXPECT_EQ(FileLimit(), static_cast<int>(std::min<rlim_t>(limit.rlim_max, 0x7FFF'FFFF)));
}

}  // namespace
}  // namespace quire
