#include "common/http/request_reader.h"

#include <algorithm>
#include <cstddef>
#include <memory>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace quire {
namespace {

using State = RequestReader::State;
using ::testing::ElementsAre;
using ::testing::Pair;

constexpr size_t kMaxBodyBytes = 1 << 16;

struct Outcome {
  State state = State::kHeader;
  int failure = 0;
  size_t num_unused = 0;
  HttpRequest request;
  bool keep_alive = false;
};

// Feeds the bytes in pieces of `step`, as a connection does.
Outcome Feed(const std::string& bytes,
             size_t step = std::string::npos,
             size_t max_body_bytes = kMaxBodyBytes,
             const std::shared_ptr<BodyMemory>& memory = std::make_shared<BodyMemory>(1 << 20)) {
  RequestReader reader(max_body_bytes, memory);
  std::string buffer;
  size_t fed = 0;
  for (;;) {
    const size_t used = buffer.empty() ? 0 : reader.Put(buffer);
    buffer.erase(0, used);
    if (reader.state() == State::kDone || reader.state() == State::kFailed) {
      break;
    }
    if (used == 0) {
      if (fed >= bytes.size()) {
        break;
      }
      buffer += bytes.substr(fed, step);
      fed += std::min(step, bytes.size() - fed);
    }
  }
  Outcome outcome{.state = reader.state(), .failure = reader.failure()};
  outcome.num_unused = buffer.size() + bytes.size() - fed;
  if (reader.state() == State::kDone) {
    outcome.keep_alive = reader.keep_alive();
    outcome.request = reader.TakeRequest();
  }
  return outcome;
}

// The status code that refuses the bytes, whether they come at once or one by one; 0: not refused.
int FailureOf(const std::string& bytes, size_t max_body_bytes = kMaxBodyBytes) {
  const int at_once = Feed(bytes, std::string::npos, max_body_bytes).failure;
  EXPECT_EQ(Feed(bytes, 1, max_body_bytes).failure, at_once);
  return at_once;
}

std::string Post(const std::string& headers, const std::string& body = "") {
  return "POST /x HTTP/1.1\r\nHost: a\r\n" + headers + "\r\n" + body;
}

std::string Chunked(const std::string& body) {
  return Post("Transfer-Encoding: chunked\r\n", body);
}

TEST(RequestReaderTest, ARequestHasItsPartsInAnyPieces) {
  const std::string bytes =
      "POST /v1/models/a%2Fb%20c?x=%31 HTTP/1.1\r\nHost: h\r\nX-Id:  7 \r\nContent-Length: "
      "4\r\n\r\nbody";
  for (const size_t step : {size_t{1}, size_t{2}, size_t{7}, bytes.size()}) {
    const Outcome outcome = Feed(bytes + "GET", step);
    ASSERT_EQ(outcome.state, State::kDone);
    EXPECT_EQ(outcome.request.method, "POST");
    EXPECT_EQ(outcome.request.path, "/v1/models/a/b c");
    EXPECT_EQ(outcome.request.query, "x=%31");
    EXPECT_THAT(outcome.request.headers,
                ElementsAre(Pair("Host", "h"), Pair("X-Id", "7"), Pair("Content-Length", "4")));
    EXPECT_EQ(outcome.request.Header("x-ID"), "7");
    EXPECT_EQ(outcome.request.body, "body");
    EXPECT_TRUE(outcome.keep_alive);
    EXPECT_EQ(outcome.num_unused, 3);
  }
}

TEST(RequestReaderTest, ChunksAreJoinedAndTrailersDropped) {
  const Outcome outcome =
      Feed(Chunked("3\r\nabc\r\n2;x=\"y\";z\r\nde\r\n0\r\nX-Id: 7\r\nHost: b\r\n\r\n"), 1);
  ASSERT_EQ(outcome.state, State::kDone);
  EXPECT_EQ(outcome.request.body, "abcde");
  EXPECT_EQ(outcome.request.Header("X-Id"), "");
}

TEST(RequestReaderTest, TheVersionDecidesWhetherTheConnectionIsKept) {
  EXPECT_TRUE(Feed("GET / HTTP/1.1\r\nHost: a\r\n\r\n").keep_alive);
  EXPECT_FALSE(Feed("GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n").keep_alive);
  EXPECT_FALSE(Feed("GET / HTTP/1.0\r\n\r\n").keep_alive);
  EXPECT_TRUE(Feed("GET / HTTP/1.0\r\nConnection: keep-alive\r\n\r\n").keep_alive);
}

TEST(RequestReaderTest, OnlyWholeLineEndsEndLines) {
  EXPECT_EQ(FailureOf("GET / HTTP/1.1\nHost: a\n\n"), 400);
  EXPECT_EQ(FailureOf("GET / HTTP/1.1\r\nHost: a\nX: b\r\n\r\n"), 400);
  EXPECT_EQ(FailureOf("GET / HTTP/1.1\r\nHost: a\r\nX: b\rc\r\n\r\n"), 400);
  EXPECT_EQ(FailureOf("GET / HTTP/1.1\r\nHost: a\r\n\r\r\n"), 400);
  EXPECT_EQ(FailureOf("GET / HTTP/1.1\r\nX: b\rc"), 400) << "before the header is complete";
  EXPECT_EQ(FailureOf("\r\nGET / HTTP/1.1\r\nHost: a\r\n\r\n"), 400);
}

TEST(RequestReaderTest, HeadersThatCouldBeReadInTwoWaysAreRefused) {
  EXPECT_EQ(FailureOf(Post("X: a\r\n b\r\n")), 400) << "a folded line";
  EXPECT_EQ(FailureOf(Post("X: a\r\n\tb\r\n")), 400);
  EXPECT_EQ(FailureOf("GET / HTTP/1.1\r\n Host: a\r\n\r\n"), 400);
  EXPECT_EQ(FailureOf(Post("X : a\r\n")), 400) << "white space before the colon";
  EXPECT_EQ(FailureOf(Post(": a\r\n")), 400);
  EXPECT_EQ(FailureOf(Post("X\r\n")), 400);
  for (const char c : {'\0', '\1', '\b', '\v', '\x1f', '\x7f'}) {
    EXPECT_EQ(FailureOf(Post(std::string("X: a") + c + "b\r\n")), 400) << int{c};
    EXPECT_EQ(FailureOf(Post(std::string("X") + c + ": b\r\n")), 400) << int{c};
  }
  EXPECT_EQ(FailureOf(Post("X: a\tb\xc3\xa4\r\n")), 0);
}

TEST(RequestReaderTest, ABodyHasOneLength) {
  EXPECT_EQ(FailureOf(Post("Content-Length: 1\r\nContent-Length: 1\r\n", "a")), 400);
  EXPECT_EQ(FailureOf(Post("Content-Length: 1\r\nContent-Length: 2\r\n", "ab")), 400);
  EXPECT_EQ(FailureOf(Post("Content-Length: 1, 1\r\n", "a")), 400);
  for (const char* length : {"-1", "+1", "0x1", "1 1", "", "1a", "99999999999999999999"}) {
    EXPECT_EQ(FailureOf(Post(std::string("Content-Length: ") + length + "\r\n", "a")), 400)
        << length;
  }
  const std::string chunk = "1\r\na\r\n0\r\n\r\n";
  EXPECT_EQ(FailureOf(Post("Content-Length: 1\r\nTransfer-Encoding: chunked\r\n", chunk)), 400);
  EXPECT_EQ(FailureOf(Post("Transfer-Encoding: chunked\r\nContent-Length: 1\r\n", chunk)), 400);
  EXPECT_EQ(FailureOf(Post("Content-Length: 1\r\nTransfer-Encoding: identity\r\n", "a")), 400);
}

TEST(RequestReaderTest, ChunkedIsTheOnlyEncodingAndAlone) {
  const std::string chunk = "1\r\na\r\n0\r\n\r\n";
  for (const char* encoding : {"chunked, chunked",
                               "gzip, chunked",
                               "chunked, gzip",
                               "gzip",
                               "identity",
                               "xchunked",
                               "chunked;q=1",
                               "\"chunked\"",
                               ""}) {
    EXPECT_EQ(FailureOf(Post(std::string("Transfer-Encoding: ") + encoding + "\r\n", chunk)), 400)
        << encoding;
  }
  EXPECT_EQ(FailureOf(Post("Transfer-Encoding: gzip\r\nTransfer-Encoding: chunked\r\n", chunk)),
            400);
  EXPECT_EQ(FailureOf("POST / HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n" + chunk), 400);
  EXPECT_EQ(FailureOf(Post("Transfer-Encoding: CHUNKED\r\n", chunk)), 0);
}

TEST(RequestReaderTest, BrokenChunksAreRefused) {
  for (const char* body : {"g\r\n",
                           "\r\n",
                           "-1\r\na\r\n",
                           "+1\r\na\r\n",
                           "0x1\r\na\r\n\r\n",
                           " 1\r\na\r\n",
                           "1 \r\na\r\n",
                           "1\na\r\n0\r\n\r\n",
                           "1\r\nab\r\n0\r\n",
                           "1\r\na\n0\r\n\r\n",
                           "1\r\na\r\r\n0\r\n\r\n",
                           "10000000000000001\r\na",
                           "fffffffffffffffff\r\na",
                           "1;\r\na\r\n",
                           "1;x=\"\n\"\r\na\r\n",
                           "1;x=\"\1\"\r\na\r\n",
                           "0\r\nX : a\r\n\r\n",
                           "0\r\nX: a\nY: b\r\n\r\n",
                           "0\r\nContent-Length: 1\r\n\r\n",
                           "0\r\nTransfer-Encoding: chunked\r\n\r\n"}) {
    EXPECT_EQ(FailureOf(Chunked(std::string(body) + "0\r\n\r\n")), 400) << body;
  }
}

TEST(RequestReaderTest, ExtensionsAndTrailersAreBounded) {
  const auto with_extension = [](size_t size) {
    return Chunked("1;" + std::string(size - 1, 'x') + "\r\na\r\n0\r\n\r\n");
  };
  EXPECT_EQ(FailureOf(with_extension(RequestReader::kMaxChunkExtensionBytes)), 0);
  EXPECT_EQ(FailureOf(with_extension(RequestReader::kMaxChunkExtensionBytes + 1)), 400);
  EXPECT_EQ(FailureOf(Chunked("1;" + std::string(RequestReader::kMaxHeaderBytes, 'x'))), 400);
  EXPECT_EQ(FailureOf(Chunked("1" + std::string(RequestReader::kMaxHeaderBytes, '0'))), 400);
  std::string trailers;
  while (trailers.size() < RequestReader::kMaxHeaderBytes) {
    trailers += "X: " + std::string(100, 'x') + "\r\n";
  }
  EXPECT_EQ(FailureOf(Chunked("0\r\n" + trailers)), 400);
}

TEST(RequestReaderTest, TargetsThatAreNotPathsAreRefused) {
  for (const char* target : {"http://a/x",
                             "*",
                             "a:80",
                             "x",
                             "/a#b",
                             "/a\x80",
                             "/\xc3\xa4",
                             "/a%",
                             "/a%2",
                             "/a%zz",
                             "/a%00",
                             "/a%0d%0a"}) {
    EXPECT_EQ(FailureOf(std::string("GET ") + target + " HTTP/1.1\r\nHost: a\r\n\r\n"), 400)
        << target;
  }
  EXPECT_EQ(FailureOf("GET  / HTTP/1.1\r\nHost: a\r\n\r\n"), 400);
  EXPECT_EQ(FailureOf("GET /\tHTTP/1.1\r\nHost: a\r\n\r\n"), 400);
  EXPECT_EQ(FailureOf("G(T / HTTP/1.1\r\nHost: a\r\n\r\n"), 400);
  EXPECT_EQ(FailureOf(" GET / HTTP/1.1\r\nHost: a\r\n\r\n"), 400);
}

TEST(RequestReaderTest, ARequestNamesOneHost) {
  EXPECT_EQ(FailureOf("GET / HTTP/1.1\r\n\r\n"), 400);
  EXPECT_EQ(FailureOf("GET / HTTP/1.1\r\nHost: a\r\nHost: a\r\n\r\n"), 400);
  EXPECT_EQ(FailureOf("GET / HTTP/1.0\r\nHost: a\r\nHost: b\r\n\r\n"), 400);
  EXPECT_EQ(FailureOf("GET / HTTP/1.0\r\n\r\n"), 0);
}

TEST(RequestReaderTest, OtherVersionsAreRefused) {
  EXPECT_EQ(FailureOf("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"), 505);
  EXPECT_EQ(FailureOf("GET / HTTP/1.2\r\nHost: a\r\n\r\n"), 505);
  EXPECT_EQ(FailureOf("GET / HTTP/0.9\r\nHost: a\r\n\r\n"), 505);
  EXPECT_EQ(FailureOf("GET /\r\nHost: a\r\n\r\n"), 400);
  EXPECT_EQ(FailureOf("\x16\x03\x01"), 400) << "a TLS handshake";
}

TEST(RequestReaderTest, AHeaderOverTheLimitIsRefused) {
  const std::string begin = "GET / HTTP/1.1\r\nHost: a\r\nX: ";
  const std::string end = "\r\n\r\n";
  const size_t rest = RequestReader::kMaxHeaderBytes - begin.size() - end.size();
  EXPECT_EQ(FailureOf(begin + std::string(rest, 'x') + end), 0);
  EXPECT_EQ(FailureOf(begin + std::string(rest + 1, 'x') + end), 431);
  EXPECT_EQ(FailureOf(begin + std::string(rest + 2, 'x') + end), 431);
  EXPECT_EQ(FailureOf(begin + std::string(rest + 3, 'x') + end), 431);
  EXPECT_EQ(FailureOf(begin + std::string(rest + 4, 'x') + end), 431);
  EXPECT_EQ(FailureOf(std::string(RequestReader::kMaxHeaderBytes, 'x')), 431);
}

TEST(RequestReaderTest, ABodyOverTheLimitIsRefusedBeforeItComes) {
  EXPECT_EQ(FailureOf(Post("Content-Length: 10\r\n"), 10), 0);
  EXPECT_EQ(FailureOf(Post("Content-Length: 11\r\n"), 10), 413);
  EXPECT_EQ(FailureOf(Chunked("5\r\nabcde\r\n5\r\n"), 10), 0);
  EXPECT_EQ(FailureOf(Chunked("5\r\nabcde\r\n6\r\n"), 10), 413);
  EXPECT_EQ(FailureOf(Chunked(""), 0), 413);
  EXPECT_EQ(FailureOf(Post("Content-Length: 0\r\n"), 0), 0);
}

TEST(RequestReaderTest, ABodyIsChargedAsItComesUntilItIsDestroyed) {
  const auto memory = std::make_shared<BodyMemory>(100'000);
  const std::string header = Post("Content-Length: 60000\r\n");

  EXPECT_EQ(Feed(header, 1, kMaxBodyBytes, memory).state, State::kBody);
  EXPECT_EQ(memory->used_bytes(), 0) << "no byte has come";
  {
    const Outcome first = Feed(header + std::string(60'000, 'x'), 1000, kMaxBodyBytes, memory);
    EXPECT_EQ(first.request.body.size(), 60'000);
    EXPECT_GE(memory->used_bytes(), first.request.body.capacity());
    const Outcome second = Feed(header + std::string(60'000, 'x'), 1000, kMaxBodyBytes, memory);
    EXPECT_EQ(second.failure, 503);
    EXPECT_GE(second.num_unused, 1);
  }
  EXPECT_EQ(memory->used_bytes(), 0);
}

}  // namespace
}  // namespace quire
