#include "common/wire/address.h"

#include <string>

#include <gtest/gtest.h>

#include "common/base/error.h"

namespace quire {
namespace {

TEST(AddressTest, ReadsBackWhatItWrites) {
  for (const char* text : {"unix:/run/quire.sock",
                           "127.0.0.1:50051",
                           "localhost:0",
                           "worker-0.svc:443",
                           "[::1]:50051",
                           "0.0.0.0:65535"}) {
    auto address = ParseAddress(text);

    ASSERT_TRUE(address.ok()) << text << ": " << address.status();
    EXPECT_EQ(address->ToString(), text);
  }
}

TEST(AddressTest, BothSpellingsOfASocketPathAreOne) {
  EXPECT_EQ(ParseAddress("unix:///run/q.sock")->unix_path, "/run/q.sock");
  EXPECT_EQ(ParseAddress("unix:relative.sock")->unix_path, "relative.sock");
}

TEST(AddressTest, RefusesWhatIsNoAddress) {
  for (const std::string& text : {std::string(""),
                                  std::string("unix:"),
                                  "unix:/" + std::string(107, 'x'),
                                  std::string("host"),
                                  std::string(":50051"),
                                  std::string("host:"),
                                  std::string("host:x"),
                                  std::string("host:-1"),
                                  std::string("host: 1"),
                                  std::string("host:65536"),
                                  std::string("host:99999999999"),
                                  std::string("::1:50051"),
                                  std::string("[]:1")}) {
    EXPECT_EQ(ReasonOf(ParseAddress(text).status()), "ADDRESS") << text;
  }
}

TEST(AddressTest, KnowsWhoCanReachIt) {
  for (const char* text : {"unix:/x", "localhost:1", "127.0.0.1:1", "127.1.2.3:1", "[::1]:1"}) {
    EXPECT_TRUE(ParseAddress(text)->is_local()) << text;
  }
  for (const char* text : {"0.0.0.0:1",
                           "[::]:1",
                           "10.0.0.1:1",
                           "example.com:1",
                           "127.example.com:1",
                           "localhost.example.com:1"}) {
    EXPECT_FALSE(ParseAddress(text)->is_local()) << text;
  }
}

}  // namespace
}  // namespace quire
