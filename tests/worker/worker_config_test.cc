#include "worker/worker_config.h"

#include <cstdlib>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/flags/reflection.h"
#include <gtest/gtest.h>

#include "common/base/error.h"
#include "common/flags/command_line.h"

namespace quire {
namespace {

constexpr int64_t kGibibyte = int64_t{1} << 30;

class WorkerConfigTest : public testing::Test {
 protected:
  static absl::StatusOr<WorkerConfig> Parse(const std::vector<const char*>& arguments) {
    absl::FlagSaver saver;
    auto line = ParseArguments(arguments);
    EXPECT_TRUE(line.ok()) << line.status();
    return WorkerConfigFromFlags(line->positional);
  }
};

TEST_F(WorkerConfigTest, ReadsEveryFlag) {
  auto config = Parse({"--model",
                       "/models/m",
                       "--listen=unix:/run/w.sock",
                       "--threads=3",
                       "--cpu-isa=avx2",
                       "--kv-cache-memory-bytes",
                       "2GiB",
                       "--swap-space=16GiB",
                       "--num-gpu-blocks-override=77",
                       "--fail-points=crash-before-step=3",
                       "--tensor-parallel-size=4",
                       "--rank=3",
                       "--ranks-on-host=2",
                       "--device=cpu"});

  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_EQ(config->model_dir, "/models/m");
  EXPECT_EQ(config->listen.unix_path, "/run/w.sock");
  EXPECT_EQ(config->num_threads, 3);
  EXPECT_EQ(config->cpu_isa, "avx2");
  EXPECT_EQ(config->kv_cache.bytes, 2 * kGibibyte);
  EXPECT_EQ(config->kv_cache.swap_space_bytes, 16 * kGibibyte);
  EXPECT_EQ(config->kv_cache.num_blocks_override, 77);
  EXPECT_EQ(config->fail_points, FailPointList{.crash_before_step = 3});
  EXPECT_EQ(config->place.size, 4);
  EXPECT_EQ(config->place.rank, 3);
  EXPECT_EQ(config->ranks_on_host, 2);
}

TEST_F(WorkerConfigTest, ThereIsAnHttpPortWhereOneIsGiven) {
  const auto none = Parse({"--model=m"});
  ASSERT_TRUE(none.ok()) << none.status();
  EXPECT_FALSE(none->http.has_value());

  const auto any = Parse({"--model=m", "--http-port=0"});
  ASSERT_TRUE(any.ok()) << any.status();
  EXPECT_EQ(any->http, (Address{.host = "127.0.0.1", .port = 0}));

  const auto ipv6 = Parse({"--model=m", "--http-port=8100", "--http-host=::1"});
  ASSERT_TRUE(ipv6.ok()) << ipv6.status();
  EXPECT_EQ(ipv6->http, (Address{.host = "::1", .port = 8100}));

  const auto open =
      Parse({"--model=m", "--http-port=1", "--http-host=0.0.0.0", "--allow-insecure-bind"});
  ASSERT_TRUE(open.ok()) << open.status();
  EXPECT_EQ(open->http->host, "0.0.0.0");
}

TEST_F(WorkerConfigTest, HttpPortsThatCannotBeAreRefused) {
  const std::string open = "other machines can reach this address without encryption";
  for (const auto& [flag, rule] :
       {std::pair("--http-port=-2", std::string("--http-port: must be in [-1, 65535] (got -2)")),
        std::pair("--http-port=65536", std::string("--http-port: must be in [-1, 65535]")),
        std::pair("--http-host=", std::string("--http-host: must be an address")),
        std::pair("--http-host=unix", std::string("--http-host: " + open)),
        std::pair("--http-host=0.0.0.0", std::string("--http-host: " + open))}) {
    const auto config = Parse({"--model=m", "--http-port=1", flag});
    EXPECT_EQ(ReasonOf(config.status()), "FLAG") << flag;
    EXPECT_EQ(config.status().message().find(rule), 0U) << flag << ": " << config.status();
  }
}

TEST_F(WorkerConfigTest, RanksThatCannotBeAreRefused) {
  for (const std::vector<const char*>& flags :
       std::vector<std::vector<const char*>>{{"/m", "--tensor-parallel-size=0"},
                                             {"/m", "--tensor-parallel-size=3"},
                                             {"/m", "--tensor-parallel-size=16"},
                                             {"/m", "--rank=1"},
                                             {"/m", "--tensor-parallel-size=2", "--rank=2"},
                                             {"/m", "--tensor-parallel-size=2", "--rank=-1"},
                                             {"/m", "--ranks-on-host=0"},
                                             {"/m", "--ranks-on-host=9"}}) {
    EXPECT_EQ(ReasonOf(Parse(flags).status()), "FLAG") << flags.back();
  }
}

TEST_F(WorkerConfigTest, RanksOfOneMachineShareItsMemory) {
  const auto alone = Parse({"/m"});
  const auto shared = Parse({"/m", "--ranks-on-host=4"});
  ASSERT_TRUE(alone.ok() && shared.ok());
  // The available memory changes a little from call to call, so the bound has slack.
  EXPECT_LT(shared->kv_cache.bytes, alone->kv_cache.bytes / 3);
  EXPECT_EQ(shared->kv_cache.swap_space_bytes, alone->kv_cache.swap_space_bytes / 4);
}

TEST_F(WorkerConfigTest, TheModelMayBePositionalAndTheRestHasDefaults) {
  auto config = Parse({"/models/m"});

  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_EQ(config->model_dir, "/models/m");
  EXPECT_TRUE(config->listen.is_unix());
  EXPECT_GT(config->kv_cache.bytes, 0);
  EXPECT_LE(config->kv_cache.bytes, 4 * kGibibyte);
  EXPECT_GT(config->kv_cache.swap_space_bytes, 0);
  EXPECT_EQ(config->fail_points, FailPointList());
}

TEST_F(WorkerConfigTest, AttentionReadsBlockTablesUnlessWindowsAreAskedFor) {
  for (const auto& [flags, backend] :
       {std::pair(std::vector<const char*>{"m"}, KvBackend::kPaged),
        std::pair(std::vector<const char*>{"m", "--kv-backend=paged"}, KvBackend::kPaged),
        std::pair(std::vector<const char*>{"m", "--kv-backend=vmm"}, KvBackend::kVmm)}) {
    const auto config = Parse(flags);

    ASSERT_TRUE(config.ok()) << config.status();
    EXPECT_EQ(config->kv_cache.backend, backend) << flags.back();
  }
}

TEST_F(WorkerConfigTest, AKvBackendThatThereIsNotIsNamed) {
  for (const char* name : {"", "VMM", "pages"}) {
    const std::string flag = std::string("--kv-backend=") + name;

    const absl::Status status = Parse({"m", flag.c_str()}).status();

    EXPECT_EQ(ReasonOf(status), "FLAG") << status;
    EXPECT_EQ(status.message(),
              "--kv-backend: must be paged or vmm (got " + std::string(name) + ")");
  }
}

TEST_F(WorkerConfigTest, QuantizationIsForDevicesThatHaveIt) {
  for (const char* device : {"--device=cuda", "--device=emu", "--device=auto"}) {
    auto config = Parse({"m", "--quantization=fp8", device});

    ASSERT_TRUE(config.ok()) << config.status();
    EXPECT_EQ(config->gpu.quantization, GpuQuantization::kFp8);
  }
  EXPECT_EQ(Parse({"m"})->gpu.quantization, GpuQuantization::kNone);
  EXPECT_EQ(Parse({"m", "--quantization=none", "--device=cpu"})->gpu.quantization,
            GpuQuantization::kNone);
  EXPECT_EQ(Parse({"m"})->cpu_quantization, CpuQuantization::kNone);
}

TEST_F(WorkerConfigTest, CpusRoundWeightsToIntegers) {
  EXPECT_EQ(Parse({"m", "--quantization=int8"})->cpu_quantization, CpuQuantization::kInt8);
  EXPECT_EQ(Parse({"m", "--quantization=int4", "--device=cpu"})->cpu_quantization,
            CpuQuantization::kInt4);
  EXPECT_EQ(Parse({"m"})->cpu_input_type, InputType::kInt8);
  EXPECT_EQ(Parse({"m", "--activation-type=float32"})->cpu_input_type, InputType::kF32);
}

TEST_F(WorkerConfigTest, TheFileForFastAlgorithmsMayBeNamedOrLeftOut) {
  EXPECT_EQ(Parse({"m", "--gemm-cache=/var/cache/q"})->gpu.gemm_cache_path, "/var/cache/q");
  EXPECT_EQ(Parse({"m", "--gemm-cache=none"})->gpu.gemm_cache_path, "");
  EXPECT_EQ(Parse({"m"})->gpu.gemm_cache_path,
            DefaultGemmCachePath(std::getenv("XDG_CACHE_HOME"), std::getenv("HOME")));
}

TEST(GemmCachePathTest, IsWhereUsersExpectCaches) {
  EXPECT_EQ(DefaultGemmCachePath("/x", "/home/u"), "/x/quire/gemm-cache");
  EXPECT_EQ(DefaultGemmCachePath(nullptr, "/home/u"), "/home/u/.cache/quire/gemm-cache");
  EXPECT_EQ(DefaultGemmCachePath("", "/home/u"), "/home/u/.cache/quire/gemm-cache");
  EXPECT_EQ(DefaultGemmCachePath("relative", "/home/u"), "/home/u/.cache/quire/gemm-cache");
  EXPECT_EQ(DefaultGemmCachePath(nullptr, nullptr), "");
  EXPECT_EQ(DefaultGemmCachePath("", ""), "");
}

struct Mistake {
  std::vector<const char*> arguments;
  std::string flag;
};

TEST_F(WorkerConfigTest, MistakesNameTheirFlag) {
  const std::vector<Mistake> mistakes = {
      {{}, "--model"},
      {{"a", "b"}, "--model"},
      {{"--model=a", "b"}, "--model"},
      {{"m", "--device=abacus"}, "--device"},
      {{"m", "--device-index=-1"}, "--device-index"},
      {{"m", "--dtype=float32"}, "--dtype"},
      {{"m", "--quantization=int2"}, "--quantization"},
      {{"m", "--quantization=int4", "--device=cuda"}, "--quantization"},
      {{"m", "--quantization=int8", "--device=emu"}, "--quantization"},
      {{"m", "--activation-type=int4"}, "--activation-type"},
      {{"m", "--quantization="}, "--quantization"},
      {{"m", "--quantization=fp8", "--device=cpu"}, "--quantization"},
      {{"m", "--gpu-memory-utilization=0"}, "--gpu-memory-utilization"},
      {{"m", "--gpu-memory-utilization=1.1"}, "--gpu-memory-utilization"},
      {{"m", "--load-format=pickle"}, "--load-format"},
      {{"m", "--threads=-1"}, "--threads"},
      {{"m", "--threads=100000"}, "--threads"},
      {{"m", "--listen=nowhere"}, "--listen"},
      {{"m", "--listen=0.0.0.0:1"}, "--listen"},
      {{"m", "--listen=10.1.2.3:1"}, "--listen"},
      {{"m", "--kv-cache-memory-bytes=lots"}, "--kv-cache-memory-bytes"},
      {{"m", "--kv-cache-memory-bytes=0"}, "--kv-cache-memory-bytes"},
      {{"m", "--swap-space=-1"}, "--swap-space"},
      {{"m", "--swap-space=lots"}, "--swap-space"},
      {{"m", "--num-gpu-blocks-override=-2"}, "--num-gpu-blocks-override"},
      {{"m", "--num-gpu-blocks-override=1"}, "--num-gpu-blocks-override"},
      {{"m", "--fail-points=trip"}, "--fail-points"},
  };
  for (const Mistake& mistake : mistakes) {
    absl::Status status = Parse(mistake.arguments).status();

    EXPECT_EQ(ReasonOf(status), "FLAG") << mistake.flag;
    EXPECT_EQ(std::string(status.message()).substr(0, mistake.flag.size() + 2),
              mistake.flag + ": ");
  }
}

TEST_F(WorkerConfigTest, ANumberSlightlyOverItsLimitIsNotWrittenAsTheLimit) {
  EXPECT_EQ(Parse({"m", "--gpu-memory-utilization=1.0000001"}).status().message(),
            "--gpu-memory-utilization: must be more than 0 and at most 1 (got 1.0000001)");
}

TEST_F(WorkerConfigTest, RanksNeedNoOtherWordThanTheirWorker) {
  for (const char* address : {"--listen=0.0.0.0:0", "--listen=10.1.2.3:1"}) {
    const absl::Status refused = Parse({"m", address, "--tensor-parallel-size=2"}).status();
    EXPECT_EQ(ReasonOf(refused), "FLAG") << refused;

    const auto open = Parse({"m", address, "--tensor-parallel-size=2", "--allow-insecure-bind"});
    ASSERT_TRUE(open.ok()) << open.status();
    EXPECT_TRUE(open->allows_insecure_bind);
  }
}

TEST_F(WorkerConfigTest, AnOpenAddressNeedsTheOperatorsWord) {
  auto config = Parse({"m", "--listen=0.0.0.0:0", "--allow-insecure-bind"});

  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_EQ(config->listen.host, "0.0.0.0");
}

TEST(ByteSizeTest, ReadsNumbersAndBinaryUnits) {
  EXPECT_EQ(ParseByteSize("4294967296"), 4 * kGibibyte);
  EXPECT_EQ(ParseByteSize("4GiB"), 4 * kGibibyte);
  EXPECT_EQ(ParseByteSize("4g"), 4 * kGibibyte);
  EXPECT_EQ(ParseByteSize("512MiB"), kGibibyte / 2);
  EXPECT_EQ(ParseByteSize("64k"), 65536);
  EXPECT_EQ(ParseByteSize("2TiB"), 2048 * kGibibyte);
  EXPECT_EQ(ParseByteSize("100B"), 100);
}

TEST(ByteSizeTest, RefusesEverythingElse) {
  for (const char* text : {"",
                           "GiB",
                           "0",
                           "-1",
                           "1.5GiB",
                           "4 GiB",
                           "4XiB",
                           "4GB",
                           "9223372036854775808",
                           "9223372036854775807k",
                           "16777216TiB"}) {
    EXPECT_EQ(ParseByteSize(text), std::nullopt) << text;
  }
}

TEST(DefaultKvCacheTest, TakesAThirdOfASmallMachineAndFourGibibytesOfALargeOne) {
  EXPECT_EQ(DefaultKvCacheBytes(10 * kGibibyte), 3 * kGibibyte);
  EXPECT_EQ(DefaultKvCacheBytes(1000 * kGibibyte), 4 * kGibibyte);
  EXPECT_EQ(DefaultKvCacheBytes(std::nullopt), kGibibyte);
}

TEST(DefaultSwapSpaceTest, IsAtMostAQuarterOfTheMachine) {
  EXPECT_EQ(DefaultSwapSpaceBytes(2 * kGibibyte), kGibibyte / 2);
  EXPECT_EQ(DefaultSwapSpaceBytes(100 * kGibibyte), 4 * kGibibyte);
  EXPECT_EQ(DefaultSwapSpaceBytes(std::nullopt), 4 * kGibibyte);
}

}  // namespace
}  // namespace quire
