#include "deploy/cli/openai_server.h"

#include <stdlib.h>

#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace quire {
namespace {

using ::testing::Contains;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::Pair;

class OpenAiServerTest : public testing::Test {
 protected:
  OpenAiServerTest() {
    ::unsetenv("QUIRE_API_KEY");
    ::unsetenv("OPENAI_API_KEY");
  }
  ~OpenAiServerTest() override {
    ::unsetenv("QUIRE_API_KEY");
    ::unsetenv("OPENAI_API_KEY");
  }
};

TEST_F(OpenAiServerTest, BaseUrlsAreRead) {
  struct Case {
    std::string url;
    std::string address;
    bool is_tls;
    std::string path;
  };
  const Case cases[] = {
      {"http://127.0.0.1:8000", "127.0.0.1:8000", false, ""},
      {"http://a/", "a:80", false, ""},
      {"https://a.b", "a.b:443", true, ""},
      {"https://a.b:1/c/d//", "a.b:1", true, "/c/d"},
      {"http://[::1]:8000", "[::1]:8000", false, ""},
      {"http://[::1]", "[::1]:80", false, ""},
      {"unix:/a/b", "unix:/a/b", false, ""},
  };
  for (const Case& c : cases) {
    const auto server = OpenAiServerOf(c.url, {});
    ASSERT_TRUE(server.ok()) << c.url << server.status();
    EXPECT_EQ(server->client.address.ToString(), c.address) << c.url;
    EXPECT_EQ(server->client.tls != nullptr, c.is_tls) << c.url;
    EXPECT_EQ(server->path, c.path) << c.url;
    EXPECT_THAT(server->headers, Not(Contains(Pair("Authorization", testing::_))));
  }
  for (const std::string url : {"",
                                "a:1",
                                "ftp://a",
                                "http://",
                                "http://:1",
                                "http://a:b",
                                "http://a:99999",
                                "http://user@a",
                                "http://a/?b",
                                "http://a b"}) {
    EXPECT_EQ(OpenAiServerOf(url, {}).status().code(), absl::StatusCode::kInvalidArgument) << url;
  }
}

TEST_F(OpenAiServerTest, KeysGoToThisMachineOrOverTls) {
  for (const std::string variable : {"OPENAI_API_KEY", "QUIRE_API_KEY"}) {
    ::setenv(variable.c_str(), "the-key", 1);
    for (const std::string url : {"http://localhost", "unix:/a", "https://a"}) {
      const auto server = OpenAiServerOf(url, {});
      ASSERT_TRUE(server.ok()) << server.status();
      EXPECT_THAT(server->headers, Contains(Pair("Authorization", "Bearer the-key"))) << url;
    }
    const auto refused = OpenAiServerOf("http://a", {});
    EXPECT_THAT(std::string(refused.status().message()), HasSubstr("only over TLS"));
    ::unsetenv(variable.c_str());
  }
  ::setenv("OPENAI_API_KEY", "two words", 1);
  EXPECT_FALSE(OpenAiServerOf("https://a", {}).ok());
  ::setenv("QUIRE_API_KEY", "first", 1);
  EXPECT_THAT(OpenAiServerOf("https://a", {})->headers,
              Contains(Pair("Authorization", "Bearer first")));
}

TEST_F(OpenAiServerTest, TlsFlagsNeedHttps) {
  ServerAccess access;
  access.tls_paths.authorities = "ca.pem";
  EXPECT_THAT(std::string(OpenAiServerOf("http://localhost", access).status().message()),
              HasSubstr("https://"));
  EXPECT_THAT(std::string(OpenAiServerOf("https://localhost", access).status().message()),
              HasSubstr("ca.pem"));
}

}  // namespace
}  // namespace quire
