#include "deploy/gateway/origin_check.h"

#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "common/http/http_message.h"

namespace quire {
namespace {

const std::vector<std::string> kAllowed = {"http://chat.example"};

bool Admits(bool is_local, HttpHeaders headers) {
  return OriginCheck(kAllowed, is_local).Admits({.method = "POST", .headers = std::move(headers)});
}

// A page of the server's own origin, as a browser sends its requests by plain HTTP.
bool AdmitsOwnPage(bool is_local, const std::string& host) {
  return Admits(is_local, {{"Host", host}, {"Origin", "http://" + host}});
}

TEST(OriginCheckTest, AReboundNameIsNotAdmittedOnLoopback) {
  for (const char* host : {"evil.example:8000",
                           "evil.example",
                           "127.0.0.1.evil.example:8000",
                           "localhost.evil.example:8000",
                           "evillocalhost:8000",
                           "[evil.example]:8000",
                           "1.2.3:8000",
                           "::1",
                           ""}) {
    EXPECT_FALSE(AdmitsOwnPage(/*is_local=*/true, host)) << host;
  }
}

TEST(OriginCheckTest, HostsOutsideDnsAreAdmittedOnLoopback) {
  for (const char* host : {"localhost:8000",
                           "LocalHost",
                           "quire.localhost:8000",
                           "127.0.0.1:8000",
                           "10.0.0.7",
                           "[::1]:8000",
                           "[2001:db8::7]"}) {
    EXPECT_TRUE(AdmitsOwnPage(/*is_local=*/true, host)) << host;
    EXPECT_FALSE(Admits(/*is_local=*/true, {{"Host", host}, {"Origin", "http://a.example"}}));
  }
}

TEST(OriginCheckTest, NamesAreAdmittedOnOtherAddresses) {
  EXPECT_TRUE(AdmitsOwnPage(/*is_local=*/false, "quire.example:8000"));
  EXPECT_FALSE(
      Admits(/*is_local=*/false, {{"Host", "quire.example"}, {"Origin", "http://a.example"}}));
}

TEST(OriginCheckTest, AllowedOriginsAndPagesThatTheBrowserVouchesForAreAdmitted) {
  for (const bool is_local : {false, true}) {
    EXPECT_TRUE(AdmitsOwnPage(is_local, "chat.example"));
    EXPECT_TRUE(Admits(is_local, {{"Host", "a:1"}, {"Origin", "http://chat.example"}}));
    EXPECT_TRUE(Admits(
        is_local,
        {{"Host", "a:1"}, {"Origin", "https://b.example"}, {"Sec-Fetch-Site", "same-origin"}}));
    for (const char* site : {"same-site", "cross-site", "none"}) {
      EXPECT_FALSE(Admits(
          is_local, {{"Host", "a:1"}, {"Origin", "https://b.example"}, {"Sec-Fetch-Site", site}}));
    }
  }
}

TEST(OriginCheckTest, ProgramsAreAdmittedByAnyHost) {
  for (const bool is_local : {false, true}) {
    EXPECT_TRUE(Admits(is_local, {{"Host", "quire:8000"}}));
    EXPECT_TRUE(Admits(is_local, {}));
    EXPECT_FALSE(Admits(is_local, {{"Host", "localhost"}, {"Origin", "null"}}));
  }
}

}  // namespace
}  // namespace quire
