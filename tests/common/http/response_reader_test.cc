#include "common/http/response_reader.h"

#include <random>
#include <string>
#include <utility>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "common/base/error.h"

namespace quire {
namespace {

using ::testing::AnyOf;
using ::testing::Contains;
using ::testing::Pair;

struct Answer {
  HttpResponse head;
  std::string body;
  absl::Status status;
  bool is_done = false;
  bool keep_alive = false;
  std::string rest;  // unused bytes
};

// Reads the bytes, which arrive in pieces of `step`, and then the connection's end unless the
// answer is complete.
Answer Read(const std::string& bytes, size_t step, bool is_head = false) {
  Answer answer;
  ResponseReader reader(is_head, [&](const HttpResponse& /*head*/, std::string_view piece) {
    EXPECT_FALSE(piece.empty());
    answer.body.append(piece);
    return true;
  });
  for (size_t i = 0; i < bytes.size(); i += step) {
    answer.rest += bytes.substr(i, step);
    while (answer.status.ok() && !reader.is_done() && !answer.rest.empty()) {
      const absl::StatusOr<size_t> used = reader.Put(answer.rest);
      answer.status = used.status();
      if (!used.ok() || *used == 0) {
        break;
      }
      answer.rest.erase(0, *used);
    }
  }
  if (answer.status.ok() && !reader.is_done()) {
    answer.status = reader.PutEnd();
  }
  answer.is_done = answer.status.ok() && reader.is_done();
  if (answer.is_done) {
    answer.head = reader.head();
    answer.keep_alive = reader.keep_alive();
  }
  return answer;
}

struct Good {
  std::string bytes;
  std::string body;
  bool keep_alive = true;
  bool is_head = false;
};

TEST(ResponseReaderTest, AnswersAreTheSameForPiecesOfEachSize) {
  const Good cases[] = {
      {"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nbody", "body"},
      {"HTTP/1.1 200 OK\r\nContent-Length: 4\r\nConnection: close\r\n\r\nbody", "body", false},
      {"HTTP/1.1 200 OK\r\ntransfer-encoding: Chunked\r\n\r\n4\r\nbody\r\n1;x=y\r\n!\r\n0\r\n\r\n",
       "body!"},
      {"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nab\r\n0\r\nTrailer: x\r\n\r\n",
       "ab"},
      {"HTTP/1.1 200 \r\n\r\nto the end", "to the end", false},
      {"HTTP/1.0 200 OK\r\n\r\nto the end", "to the end", false},
      {"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\n"
       "HTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\nb",
       "b"},
      {"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\n", "", true, /*is_head=*/true},
      {"HTTP/1.1 204 No Content\r\n\r\n", ""},
  };
  for (const Good& good : cases) {
    for (size_t step = 1; step <= good.bytes.size(); ++step) {
      const Answer answer = Read(good.bytes, step, good.is_head);
      ASSERT_TRUE(answer.is_done) << good.bytes << answer.status << " step " << step;
      EXPECT_EQ(answer.body, good.body) << good.bytes;
      EXPECT_EQ(answer.keep_alive, good.keep_alive) << good.bytes;
      EXPECT_EQ(answer.rest, "") << good.bytes;
    }
  }
}

TEST(ResponseReaderTest, TheHeadHasStatusAndHeaders) {
  const Answer answer = Read(
      "HTTP/1.1 302 Found\r\nLocation: http://a/b\r\nContent-Type: a/b\r\nContent-Length: 0\r\n\r\n"
      "next",
      1000);

  EXPECT_EQ(answer.head.status_code, 302);
  EXPECT_EQ(answer.head.content_type, "a/b");
  EXPECT_THAT(answer.head.headers, Contains(Pair("Location", "http://a/b")));
  EXPECT_EQ(answer.rest, "next");
}

TEST(ResponseReaderTest, AnswersThatEndEarlyAreCut) {
  const std::string answers[] = {
      "HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nbody",
      "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n4\r\nbody\r\n0\r\n\r\n"};
  for (const std::string& answer : answers) {
    for (size_t size = 0; size < answer.size(); ++size) {
      EXPECT_EQ(ReasonOf(Read(answer.substr(0, size), 7).status), "HTTP_CUT") << size;
    }
  }
}

TEST(ResponseReaderTest, BytesThatAreNoAnswerAreRefused) {
  const std::string answers[] = {
      "SSH-2.0-OpenSSH_9.2\r\n",
      "HTTP/2 200\r\n\r\n",
      "HTTP/1.1 020 OK\r\n\r\n",
      "HTTP/1.1 two\r\n\r\n",
      "HTTP/1.1 200 OK\r\nno colon\r\n\r\n",
      "HTTP/1.1 200 OK\r\nContent-Length: 4, 5\r\n\r\nbody",
      "HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\nbody",
      "HTTP/1.1 200 OK\r\nContent-Length: 99999999999999999999\r\n\r\nbody",
      "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nxyz\r\nbody\r\n0\r\n\r\n",
      "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n4\r\nbodyx0\r\n\r\n",
      "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nfffffffffffffffff\r\nx",
      std::string("HTTP/1.1 200 OK\r\nX: a\0b\r\n\r\n", 28),
  };
  for (const std::string& answer : answers) {
    for (const size_t step : {size_t{1}, answer.size()}) {
      EXPECT_EQ(ReasonOf(Read(answer, step).status), "HTTP_ANSWER") << answer;
    }
  }
}

TEST(ResponseReaderTest, HeadersChunkLinesAndTrailersAreBounded) {
  const std::string long_text(20'000, 'x');
  std::string interim;
  for (int i = 0; i < 1000; ++i) {
    interim += "HTTP/1.1 100 Continue\r\n\r\n";
  }
  const std::string chunked = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n";
  const std::string answers[] = {
      "HTTP/1.1 200 OK\r\nX: " + long_text,
      "HTTP/1.1 200 OK\r\nX: " + long_text + "\r\n\r\n",
      interim,
      chunked + "1;" + long_text,
      chunked + "0\r\nX: " + long_text,
  };
  for (const std::string& answer : answers) {
    for (const size_t step : {size_t{100}, answer.size()}) {
      EXPECT_THAT(ReasonOf(Read(answer, step).status), AnyOf("HTTP_ANSWER_SIZE", "HTTP_ANSWER"))
          << answer.substr(0, 80);
    }
  }
}

// Answers with random bytes changed, removed or repeated are refused or read, but in the same way
// whatever their pieces are.
TEST(ResponseReaderTest, BrokenAnswersAreTheSameForPiecesOfEachSize) {
  const std::string answers[] = {
      "HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nbody",
      "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n4\r\nbody\r\n1;x=\"y\"\r\n!\r\n"
      "0\r\nT: x\r\n\r\n",
      "HTTP/1.0 200 OK\r\nConnection: keep-alive\r\n\r\nto the end"};
  const std::string bytes("\r\n:;\"0f \t\0\xff,-", 13);
  std::mt19937_64 random(37);
  size_t num_read = 0;
  for (int i = 0; i < 10'000; ++i) {
    std::string answer = answers[i % 3];
    for (uint64_t changes = 1 + random() % 3; changes > 0; --changes) {
      const size_t at = random() % answer.size();
      switch (random() % 3) {
        case 0:
          answer[at] = bytes[random() % bytes.size()];
          break;
        case 1:
          answer.erase(at, 1 + random() % 3);
          break;
        default:
          answer.insert(at, answer.substr(random() % answer.size(), random() % 10));
      }
    }
    const Answer whole = Read(answer, answer.size());
    num_read += whole.is_done ? 1 : 0;
    for (const size_t step : {1, 2, 7}) {
      const Answer pieces = Read(answer, step);
      ASSERT_EQ(pieces.is_done, whole.is_done) << answer << whole.status << pieces.status;
      ASSERT_TRUE(!whole.is_done || pieces.body == whole.body) << answer;
      ASSERT_EQ(pieces.keep_alive, whole.keep_alive) << answer;
    }
  }
  EXPECT_GT(num_read, 300U);
}

TEST(ResponseReaderTest, TheCallbackCanCancel) {
  ResponseReader reader(false, [](const HttpResponse&, std::string_view) { return false; });
  const std::string answer = "HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nbody";
  const auto used = reader.Put(answer);
  ASSERT_TRUE(used.ok());
  EXPECT_EQ(reader.Put(answer.substr(*used)).status().code(), absl::StatusCode::kCancelled);
}

}  // namespace
}  // namespace quire
