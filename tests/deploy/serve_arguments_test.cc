#include "deploy/cli/serve_arguments.h"

#include "gtest/gtest.h"

namespace quire {
namespace {

using Words = std::vector<std::string>;

TEST(ServeArgumentsTest, EachFlagGoesToTheProgramThatKnowsIt) {
  auto split = SplitServeArguments({"--model",
                                    "DIR",
                                    "--port=0",
                                    "--threads",
                                    "2",
                                    "--kv_cache_memory_bytes=9",
                                    "--max-num-seqs",
                                    "8"});

  ASSERT_TRUE(split.ok()) << split.status();
  EXPECT_EQ(split->scheduler, (Words{"--model", "DIR", "--port=0", "--max-num-seqs", "8"}));
  EXPECT_EQ(split->worker,
            (Words{"--model", "DIR", "--threads", "2", "--kv_cache_memory_bytes=9"}));
}

TEST(ServeArgumentsTest, TheModelMayBeTheFirstWord) {
  auto split = SplitServeArguments({"DIR"});

  ASSERT_TRUE(split.ok());
  EXPECT_EQ(split->worker, (Words{"--model", "DIR"}));
  EXPECT_EQ(split->scheduler, (Words{"--model", "DIR"}));
}

TEST(ServeArgumentsTest, TheModelMayStandBehindFlags) {
  auto split = SplitServeArguments({"--port", "0", "DIR", "--threads=2"});

  ASSERT_TRUE(split.ok());
  EXPECT_EQ(split->worker, (Words{"--model", "DIR", "--threads=2"}));
  EXPECT_EQ(split->scheduler, (Words{"--port", "0", "--model", "DIR"}));
}

TEST(ServeArgumentsTest, AFlagIsNoValueOfTheSwitchBeforeIt) {
  for (const Words& size : {Words{"-tp", "2"}, Words{"-tp=2"}, Words{"--tensor-parallel-size=2"}}) {
    Words words = {"--model", "DIR", "--enable-log-requests"};
    words.insert(words.end(), size.begin(), size.end());
    auto split = SplitServeArguments(words);

    ASSERT_TRUE(split.ok()) << split.status();
    EXPECT_EQ(split->tensor_parallel_size, 2);
    EXPECT_EQ(split->scheduler, (Words{"--model", "DIR", "--enable-log-requests"}));
  }
  // The programs say what they think of the number.
  auto split = SplitServeArguments({"DIR", "--max-num-seqs", "-1"});
  ASSERT_TRUE(split.ok()) << split.status();
  EXPECT_EQ(split->scheduler, (Words{"--model", "DIR", "--max-num-seqs", "-1"}));
}

TEST(ServeArgumentsTest, ASwitchOfTheWorkerMayBeTurnedOff) {
  auto split = SplitServeArguments(
      {"DIR", "--no-enforce-eager", "--nobatch_invariant", "--noenable_prefix_caching"});

  ASSERT_TRUE(split.ok()) << split.status();
  EXPECT_EQ(split->worker, (Words{"--model", "DIR", "--no-enforce-eager", "--nobatch_invariant"}));
  EXPECT_EQ(split->scheduler, (Words{"--model", "DIR", "--noenable_prefix_caching"}));
}

TEST(ServeArgumentsTest, SwappingNeedsSwapSpace) {
  for (const Words& words : std::vector<Words>{
           {"DIR", "--preemption-mode=swap", "--swap-space=0"},
           {"DIR", "--swap_space", "0", "--preemption_mode", "swap"},
           {"DIR", "--swap-space=4GiB", "--preemption-mode=swap", "--swap-space=0"}}) {
    const auto split = SplitServeArguments(words);
    EXPECT_EQ(split.status().message(),
              "serve: --preemption-mode: swap needs --swap-space (got 0)");
  }
  for (const Words& words :
       std::vector<Words>{{"DIR", "--preemption-mode=swap"},
                          {"DIR", "--preemption-mode=swap", "--swap-space=4GiB"},
                          {"DIR", "--preemption-mode=auto", "--swap-space=0"},
                          {"DIR", "--swap-space=0", "--swap-space=1GiB", "--preemption-mode=swap"},
                          {"DIR", "--swap-space=0"}}) {
    EXPECT_TRUE(SplitServeArguments(words).ok());
  }
}

TEST(ServeArgumentsTest, AnOpenAddressNeedsTlsOrASwitchAndTheErrorNamesServesFlag) {
  const auto error = [](const std::string& flag, const std::string& advice) {
    return "serve: --" + flag +
           ": other machines can reach this address without encryption; give " + advice +
           "--allow-insecure-bind if the network is isolated (got 0.0.0.0)";
  };
  const std::string tls = "--ssl-certfile and --ssl-keyfile, or ";
  const auto message = [](const Words& words) {
    return std::string(SplitServeArguments(words).status().message());
  };
  EXPECT_EQ(message({"DIR", "--host=0.0.0.0"}), error("host", tls));
  EXPECT_EQ(message({"DIR", "--http_host", "0.0.0.0"}), error("http-host", tls));
  EXPECT_EQ(message({"DIR", "--worker-http-host=0.0.0.0", "--ssl-certfile=C", "--ssl-keyfile=K"}),
            error("worker-http-host", ""));
  EXPECT_EQ(message({"DIR", "--http-host=0.0.0.0", "--ssl-certfile=C", "--ssl-keyfile=K"}), "");
  EXPECT_EQ(message({"DIR", "--http-host=0.0.0.0", "--allow-insecure-bind"}), "");
  EXPECT_EQ(message({"DIR", "--http-host=0.0.0.0", "--http-host=::1", "--host=localhost"}), "");
}

TEST(ServeArgumentsTest, AHostWithoutAValueOrInBracketsIsRefusedForThatReason) {
  const auto message = [](const Words& words) {
    return std::string(SplitServeArguments(words).status().message());
  };
  // The scheduler says that its flag needs a value.
  const auto split = SplitServeArguments({"DIR", "--host"});
  ASSERT_TRUE(split.ok()) << split.status();
  EXPECT_EQ(split->scheduler, (Words{"--model", "DIR", "--host"}));
  for (const std::string flag : {"--http-host", "--http-port", "--worker-http-host"}) {
    EXPECT_EQ(message({"DIR", flag}), "serve: " + flag + ": needs a value");
    EXPECT_EQ(message({"DIR", flag, "--port=0"}), "serve: " + flag + ": needs a value");
  }
  EXPECT_EQ(message({"DIR", "--host", "[::1]"}),
            "serve: --host: an IPv6 address is written without brackets (got [::1])");
  EXPECT_EQ(message({"DIR", "--host", "::1"}), "");
}

TEST(ServeArgumentsTest, TheSizeOfTheGroupIsServesOwn) {
  for (const Words& words :
       std::vector<Words>{{"DIR", "-tp", "4", "--port=0"},
                          {"DIR", "--port=0", "-tp=4"},
                          {"DIR", "--tensor-parallel-size=4", "--port=0"},
                          {"DIR", "--tensor_parallel_size", "4", "--port=0"}}) {
    auto split = SplitServeArguments(words);
    ASSERT_TRUE(split.ok()) << split.status();
    EXPECT_EQ(split->tensor_parallel_size, 4);
    EXPECT_EQ(split->worker, (Words{"--model", "DIR"}));
    EXPECT_EQ(split->scheduler, (Words{"--model", "DIR", "--port=0"}));
  }
  for (const std::string size : {"0", "9", "two", ""}) {
    EXPECT_FALSE(SplitServeArguments({"DIR", "-tp=" + size}).ok()) << size;
  }
  EXPECT_FALSE(SplitServeArguments({"DIR", "-tp"}).ok());
}

TEST(ServeArgumentsTest, WhatServeSetsItselfIsRefused) {
  EXPECT_FALSE(SplitServeArguments({"DIR", "--rank=1"}).ok());
  EXPECT_FALSE(SplitServeArguments({"DIR", "--ranks-on-host=2"}).ok());
  EXPECT_FALSE(SplitServeArguments({"DIR", "--workers=unix:/w"}).ok());
  EXPECT_FALSE(SplitServeArguments({"DIR", "--standby"}).ok());
  EXPECT_FALSE(SplitServeArguments({"DIR", "--nostandby"}).ok());
  EXPECT_FALSE(SplitServeArguments({"DIR", "--listen", "unix:/w"}).ok());
  EXPECT_FALSE(SplitServeArguments({"DIR", "--scheduler=unix:/s"}).ok());
  EXPECT_FALSE(SplitServeArguments({"DIR", "--scheduler-ssl-ca-certs=F"}).ok());
  EXPECT_FALSE(SplitServeArguments({"DIR", "--local-address=unix:/s"}).ok());
}

TEST(ServeArgumentsTest, AModelIsNeededAndStrayWordsAreRefused) {
  EXPECT_FALSE(SplitServeArguments({"--port=0"}).ok());
  EXPECT_FALSE(SplitServeArguments({"--model=DIR", "--port=0", "stray"}).ok());
  EXPECT_FALSE(SplitServeArguments({"DIR", "--port=0", "stray"}).ok());
  // What follows it would be no flag for the programs.
  EXPECT_FALSE(SplitServeArguments({"--model=DIR", "--", "--port=0"}).ok());
}

TEST(ServeArgumentsTest, PortsOfWorkersAreServesOwn) {
  EXPECT_EQ(SplitServeArguments({"DIR"})->worker_http_port, std::nullopt);
  const auto split = SplitServeArguments({"DIR",
                                          "--worker-http-port",
                                          "8100",
                                          "--worker_http_host=0.0.0.0",
                                          "--http-port=1",
                                          "--allow-insecure-bind"});
  ASSERT_TRUE(split.ok()) << split.status();
  EXPECT_EQ(split->worker_http_port, 8100);
  EXPECT_EQ(split->worker,
            (Words{"--model", "DIR", "--http-host=0.0.0.0", "--allow-insecure-bind"}));
  EXPECT_EQ(split->scheduler, (Words{"--model", "DIR", "--allow-insecure-bind"}));
}

TEST(ServeArgumentsTest, TheGatewayHasTheHttpPort) {
  const auto split = SplitServeArguments({"DIR",
                                          "--http_host",
                                          "::1",
                                          "--http-port=1",
                                          "--chat-template=FILE",
                                          "--no-allow-special-tokens-in-messages",
                                          "--ssl-certfile=C",
                                          "--shutdown-timeout",
                                          "9"});
  ASSERT_TRUE(split.ok()) << split.status();
  EXPECT_EQ(split->gateway,
            (Words{"--model",
                   "DIR",
                   "--host=::1",
                   "--port=1",
                   "--chat-template=FILE",
                   "--no-allow-special-tokens-in-messages",
                   "--ssl-certfile=C",
                   "--shutdown-timeout",
                   "9"}));
  EXPECT_EQ(split->scheduler,
            (Words{"--model", "DIR", "--ssl-certfile=C", "--shutdown-timeout", "9"}));
  EXPECT_EQ(split->worker, (Words{"--model", "DIR"}));
}

TEST(ServeArgumentsTest, TheSchedulerTakesOperatorsKeysOnlyWithAnAdminAddress) {
  const Words words = {"DIR", "--admin-api-keys-file", "K"};
  auto split = SplitServeArguments(words);
  ASSERT_TRUE(split.ok()) << split.status();
  EXPECT_EQ(split->gateway, (Words{"--model", "DIR", "--admin-api-keys-file", "K"}));
  EXPECT_EQ(split->scheduler, (Words{"--model", "DIR"}));

  split = SplitServeArguments({"DIR", "--admin-api-keys-file=K", "--admin_address=unix:/a"});
  ASSERT_TRUE(split.ok()) << split.status();
  EXPECT_EQ(split->scheduler,
            (Words{"--model", "DIR", "--admin_address=unix:/a", "--admin-api-keys-file=K"}));
}

TEST(ServeArgumentsTest, ReadsWhereAGatewayListens) {
  auto gateway = ParseGatewayAddresses("quire_gateway: listens api=[::1]:8000 http=127.0.0.1:9");
  ASSERT_TRUE(gateway.has_value());
  EXPECT_EQ(gateway->api, "[::1]:8000");
  EXPECT_EQ(gateway->http->port, 9);
  EXPECT_EQ(gateway->flags, (Words{"--port=8000", "--http-port=9"}));
  EXPECT_FALSE(gateway->is_ready);

  gateway = ParseGatewayAddresses("quire_gateway: ready api=127.0.0.1:8000");
  ASSERT_TRUE(gateway.has_value());
  EXPECT_TRUE(gateway->is_ready);
  EXPECT_FALSE(gateway->http.has_value());

  for (const char* line : {"quire_gateway: listens http=127.0.0.1:9",
                           "quire_gateway: listens api=nowhere",
                           "quire_gateway: listens api=127.0.0.1:1 http=nowhere",
                           "quire_gateway: api=127.0.0.1:1",
                           "quire_worker: listens api=127.0.0.1:1"}) {
    EXPECT_FALSE(ParseGatewayAddresses(line).has_value()) << line;
  }
}

TEST(ServeArgumentsTest, BothProgramsLogInTheSameFormat) {
  const auto split = SplitServeArguments({"DIR", "--log-format", "json", "--enable-log-requests"});
  ASSERT_TRUE(split.ok()) << split.status();
  EXPECT_EQ(split->worker, (Words{"--model", "DIR", "--log-format", "json"}));
  EXPECT_EQ(split->scheduler,
            (Words{"--model", "DIR", "--log-format", "json", "--enable-log-requests"}));
}

TEST(ServeArgumentsTest, PortsThatNotEveryWorkerCanHaveAreRefused) {
  EXPECT_TRUE(SplitServeArguments({"DIR", "-tp=8", "--worker-http-port=65528"}).ok());
  EXPECT_TRUE(SplitServeArguments({"DIR", "-tp=8", "--worker-http-port=0"}).ok());
  for (const Words& words : std::vector<Words>{{"DIR", "-tp=8", "--worker-http-port=65529"},
                                               {"DIR", "--worker-http-port=65536"},
                                               {"DIR", "--worker-http-port=-1"},
                                               {"DIR", "--worker-http-port=x"},
                                               {"DIR", "--worker-http-port"}}) {
    const auto split = SplitServeArguments(words);
    EXPECT_EQ(split.status().message().find("serve: --worker-http-port: "), 0U) << split.status();
  }
}

TEST(WorkerHttpTest, AnotherWorkerGetsTheSamePort) {
  const auto http = ParseWorkerHttp("quire_worker: listens listen=unix:/a http=b http=[::1]:8100");
  ASSERT_TRUE(http.has_value());
  EXPECT_EQ(http->address, "[::1]:8100");
  EXPECT_EQ(http->flag, "--http-port=8100");
  for (const char* line : {"quire_worker: ready listen=unix:/a http=a:1",
                           "quire_worker: listens listen=unix:/a",
                           "quire_worker: listens listen=unix:/a http=unix:/b",
                           "quire_worker: listens listen=unix:/a http=a",
                           ""}) {
    EXPECT_FALSE(ParseWorkerHttp(line).has_value()) << line;
  }
}

TEST(SchedulerAddressesTest, AnotherSchedulerGetsTheSameAddresses) {
  const auto addresses = ParseSchedulerAddresses(
      "grpc=127.0.0.1:41001 http=127.0.0.1:41002 admin=unix:/run/my admin.sock");

  ASSERT_TRUE(addresses.ok()) << addresses.status();
  EXPECT_EQ(addresses->grpc, (Address{.host = "127.0.0.1", .port = 41001}));
  EXPECT_EQ(
      addresses->flags,
      (Words{"--port=41001", "--http-port=41002", "--admin-address=unix:/run/my admin.sock"}));
}

TEST(SchedulerAddressesTest, IPv6AndNoAdmin) {
  const auto addresses = ParseSchedulerAddresses("grpc=[::1]:1 http=[::1]:2");

  ASSERT_TRUE(addresses.ok()) << addresses.status();
  EXPECT_EQ(addresses->grpc, (Address{.host = "::1", .port = 1}));
  EXPECT_EQ(addresses->flags, (Words{"--port=1", "--http-port=2"}));
}

TEST(SchedulerAddressesTest, AnythingElseIsRefused) {
  for (const char* text :
       {"", "http=a:1 grpc=a:2", "grpc=a:1", "grpc=a http=b:1", "grpc=a:1http=b:1"}) {
    EXPECT_FALSE(ParseSchedulerAddresses(text).ok()) << text;
  }
}

}  // namespace
}  // namespace quire
