#include "common/wire/api_keys.h"

#include <stdlib.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "common/base/error.h"
#include "tests/support/capture_log.h"

namespace quire {
namespace {

using testing::HasSubstr;
using testing::Not;

// The SHA-256 of "canary", by sha256sum.
constexpr char kCanaryHash[] = "e100fbce008c04ec40637af0af91fb2f05aeedc23f856a2d3c0b1580625d755e";

std::string FaultOf(const std::string& text) {
  const absl::Status status = ParseApiKeys(text).status();
  EXPECT_EQ(ReasonOf(status), status.ok() ? "" : "API_KEYS_FILE");
  return std::string(status.message());
}

TEST(ApiKeyTest, EachNewKeyIsAnotherOf256Bits) {
  std::set<std::string> keys;
  for (int i = 0; i < 100; ++i) {
    const std::string key = MakeApiKey();
    EXPECT_EQ(key.size(), 46U);
    EXPECT_TRUE(key.starts_with("qk-"));
    EXPECT_EQ(
        key.find_first_not_of("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_"),
        std::string::npos);
    EXPECT_EQ(*ParseApiKey(key + "\n"), key);
    keys.insert(key);
  }
  EXPECT_EQ(keys.size(), 100U);
}

TEST(ApiKeyTest, ALineHasTheHashThatOthersCompute) {
  EXPECT_EQ(ApiKeyLine("canary", "alice"), std::string(kCanaryHash) + " alice");
}

TEST(ApiKeyTest, WhatIsNoKeyIsRefusedAndNotTold) {
  for (const std::string& text : {std::string(),
                                  std::string(" \n"),
                                  std::string("canary canary"),
                                  std::string("canary\ncanary"),
                                  std::string("canary\x80"),
                                  std::string("canary\0", 7),
                                  std::string(kMaxApiKeyBytes + 1, 'c')}) {
    const auto key = ParseApiKey(text);
    ASSERT_FALSE(key.ok()) << text;
    EXPECT_THAT(std::string(key.status().message()), Not(HasSubstr("canary")));
  }
  EXPECT_TRUE(ParseApiKey(std::string(kMaxApiKeyBytes, 'c')).ok());
}

TEST(ParseApiKeysTest, ReadsLinesCommentsAndWhiteSpace) {
  const auto keys =
      ParseApiKeys("# ours\n\n" + ApiKeyLine("one", "alice") + "\r\n  # theirs\n \t" +
                   ApiKeyLine("two", "b.o_b-2") + " \n" + ApiKeyLine("three", "alice"));

  ASSERT_TRUE(keys.ok()) << keys.status();
  EXPECT_EQ(*keys,
            (std::vector<KnownApiKey>{{HashApiKey("one"), "alice"},
                                      {HashApiKey("two"), "b.o_b-2"},
                                      {HashApiKey("three"), "alice"}}));
}

TEST(ParseApiKeysTest, NamesTheLineAndTellsNothingOfIt) {
  const std::string good = ApiKeyLine("one", "alice") + "\n";
  const std::string hash(kCanaryHash);
  for (const std::string& bad : {std::string("canary"),
                                 hash,
                                 hash + " canary canary",
                                 hash.substr(1) + " canary",
                                 "0" + hash + " canary",
                                 "g" + hash.substr(1) + " canary",
                                 hash + " can/ary",
                                 hash + " canary # comment",
                                 hash + " canary\x01",
                                 hash + std::string("\0canary", 7),
                                 hash + " " + std::string(129, 'c')}) {
    const std::string fault = FaultOf(good + "\n" + bad + "\n" + good);
    EXPECT_THAT(fault, HasSubstr("line 3: ")) << bad;
    EXPECT_THAT(fault, Not(HasSubstr("can"))) << bad;
    EXPECT_THAT(fault, Not(HasSubstr(hash.substr(1, 8)))) << bad;
  }
  EXPECT_EQ(FaultOf(hash + " " + std::string(128, 'c')), "");
}

TEST(ParseApiKeysTest, RefusesAKeyThatIsThereTwiceOrNoKey) {
  const std::string line = ApiKeyLine("one", "alice") + "\n";
  EXPECT_EQ(FaultOf(line + ApiKeyLine("one", "bob")), "line 2: repeats the key of line 1");
  EXPECT_EQ(FaultOf(""), "holds no key");
  EXPECT_EQ(FaultOf("# " + line), "holds no key");
}

TEST(ParseApiKeysTest, TakesABoundedNumber) {
  std::string text;
  for (size_t i = 0; i < kMaxApiKeys; ++i) {
    text += ApiKeyLine(std::to_string(i), "alice") + "\n";
  }
  EXPECT_EQ(ParseApiKeys(text)->size(), kMaxApiKeys);
  EXPECT_THAT(FaultOf(text + ApiKeyLine("more", "alice")), HasSubstr("too many keys"));
}

class ApiKeysTest : public testing::Test {
 protected:
  ApiKeysTest() {
    std::string pattern = testing::TempDir() + "quire-keys-XXXXXX";
    folder_ = ::mkdtemp(pattern.data());
    path_ = folder_ + "/keys";
    Write(ApiKeyLine("one", "alice") + "\n" + ApiKeyLine("two", "bob") + "\n");
  }
  ~ApiKeysTest() override { std::filesystem::remove_all(folder_); }

  void Write(const std::string& text) const { std::ofstream(path_, std::ios::binary) << text; }
  // "" where the call is refused.
  static std::string TenantOf(ApiKeys& keys, const std::string& authorization) {
    const auto tenant = keys.TenantOf(authorization);
    if (!tenant.ok()) {
      EXPECT_EQ(tenant.status().code(), absl::StatusCode::kUnauthenticated);
      EXPECT_EQ(ReasonOf(tenant.status()), "API_KEY");
    }
    return tenant.value_or("");
  }
  static void WaitUntilOld() {
    const Instant until = SteadyNow() + Reloaded<int>::kMaxAgeNs;
    while (SteadyNow() <= until) {
      ::usleep(10'000);
    }
  }

  std::string folder_;
  std::string path_;
};

TEST_F(ApiKeysTest, AKeyIsItsTenants) {
  const auto keys = *ApiKeys::Open(path_);

  EXPECT_EQ(TenantOf(*keys, "Bearer one"), "alice");
  EXPECT_EQ(TenantOf(*keys, "bearer two"), "bob");
}

TEST_F(ApiKeysTest, NothingElseIsAKey) {
  const auto keys = *ApiKeys::Open(path_);

  for (const std::string& other : {std::string(),
                                   std::string("one"),
                                   std::string("Bearer"),
                                   std::string("Bearer "),
                                   std::string("Bearer  one"),
                                   std::string("Bearer one "),
                                   std::string("Bearer on"),
                                   std::string("Bearer onee"),
                                   std::string("Bearer one\0", 11),
                                   std::string("Basic one"),
                                   "Bearer " + ApiKeyLine("one", "alice"),
                                   std::string("Bearer ") + std::string(1 << 20, 'x')}) {
    EXPECT_EQ(TenantOf(*keys, other), "") << other.substr(0, 100);
  }
}

TEST_F(ApiKeysTest, AFileThatCannotBeUsedIsNamedAndNotTold) {
  Write("canary\n");
  EXPECT_EQ(ApiKeys::Open(path_).status().message().find("API keys: " + path_ + ": line 1: "), 0U);
  EXPECT_THAT(std::string(ApiKeys::Open(path_).status().message()), Not(HasSubstr("canary")));
  Write(std::string(kMaxApiKeysFileBytes + 1, '\n'));
  EXPECT_THAT(std::string(ApiKeys::Open(path_).status().message()), HasSubstr("too large"));
  std::filesystem::remove(path_);
  for (const std::string& path : {path_, folder_}) {
    const absl::Status status = ApiKeys::Open(path).status();
    EXPECT_EQ(ReasonOf(status), "API_KEYS_FILE");
    EXPECT_THAT(std::string(status.message()), HasSubstr(path));
  }
}

TEST_F(ApiKeysTest, NewKeysAreInUseAndABrokenFileIsNotAndToldOnce) {
  const auto keys = *ApiKeys::Open(path_);
  CaptureStderr();
  for (const std::string& bad : {std::string("canary"), std::string()}) {
    Write(bad);
    for (int i = 0; i < 2; ++i) {
      WaitUntilOld();
      EXPECT_EQ(TenantOf(*keys, "Bearer one"), "alice");
    }
  }
  std::string log = GetCapturedStderr();
  EXPECT_THAT(log, HasSubstr("WARNING"));
  EXPECT_THAT(log, HasSubstr("line 1: "));
  EXPECT_THAT(log, Not(HasSubstr("canary")));
  for (int i = 0; i < 2; ++i) {
    const size_t at = log.find("new API keys are not used, the old ones stay");
    ASSERT_NE(at, std::string::npos) << log;
    log.erase(at, 8);
  }
  EXPECT_THAT(log, Not(HasSubstr("new API keys are not used"))) << "each cause is told once";

  Write(ApiKeyLine("two", "bob") + "\n" + ApiKeyLine("three", "carol"));
  WaitUntilOld();
  EXPECT_EQ(TenantOf(*keys, "Bearer three"), "carol");
  EXPECT_EQ(TenantOf(*keys, "Bearer two"), "bob");
  EXPECT_EQ(TenantOf(*keys, "Bearer one"), "");
}

}  // namespace
}  // namespace quire
