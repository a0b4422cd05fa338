#include "common/http/sse_reader.h"

#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "common/base/error.h"

namespace quire {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

// Returns the events of the bytes, given in pieces of `step` bytes.
std::vector<std::string> Events(const std::string& bytes, size_t step) {
  SseReader reader(1 << 10);
  std::vector<std::string> events;
  for (size_t i = 0; i < bytes.size(); i += step) {
    const absl::Status status =
        reader.Put(std::string_view(bytes).substr(i, step),
                   [&](std::string_view data) { events.emplace_back(data); });
    EXPECT_TRUE(status.ok()) << status;
  }
  return events;
}

TEST(SseReaderTest, EventsAreTheSameForPiecesOfEachSize) {
  const std::string bytes =
      "\xEF\xBB\xBF"
      "data: one\n\n"
      ": a comment\n"
      "data:two\ndata:  three\n\n"
      "id: 7\nevent: x\nretry: 1\ndata: four\r\n\r\n"
      "data: five\r\r"
      "data: six\r\ndata: seven\r\n\r\n"
      "data\n\n"
      "datax: no\n\n"
      "\n\n"
      "data: {\"a\": \"b: c\"}\r\n\n"
      "data: unfinished\n";
  for (size_t step = 1; step <= bytes.size(); ++step) {
    EXPECT_THAT(
        Events(bytes, step),
        ElementsAre("one", "two\n three", "four", "five", "six\nseven", "", R"({"a": "b: c"})"))
        << step;
  }
}

TEST(SseReaderTest, DoneEndsTheStream) {
  SseReader reader(1 << 10);
  std::vector<std::string> events;
  const auto add = [&](std::string_view data) { events.emplace_back(data); };

  ASSERT_TRUE(reader.Put("data: one\n\ndata: [DONE]", add).ok());
  EXPECT_FALSE(reader.is_done());
  ASSERT_TRUE(reader.Put("\n\ndata: two\n\n", add).ok());

  EXPECT_TRUE(reader.is_done());
  EXPECT_THAT(events, ElementsAre("one"));
}

TEST(SseReaderTest, AnEventIsBoundedByItsLinesAndByItsData) {
  const auto none = [](std::string_view data) { ADD_FAILURE() << data; };
  {
    SseReader reader(100);
    EXPECT_TRUE(reader.Put(":" + std::string(99, 'x'), none).ok());
    const absl::Status status = reader.Put("x", none);
    EXPECT_EQ(ReasonOf(status), "SSE_EVENT_SIZE") << status;
  }
  SseReader reader(100);
  absl::Status status;
  int num_lines = 0;
  for (; status.ok() && num_lines < 1000; ++num_lines) {
    status = reader.Put("data: 0123456789\n", none);
  }
  EXPECT_EQ(ReasonOf(status), "SSE_EVENT_SIZE") << status;
  EXPECT_LT(num_lines, 11);
}

TEST(SseReaderTest, ManySmallEventsAreNotBounded) {
  SseReader reader(20);
  int num_events = 0;
  for (int i = 0; i < 1000; ++i) {
    ASSERT_TRUE(reader.Put("data: 01\n\n", [&](std::string_view) { ++num_events; }).ok());
  }
  EXPECT_EQ(num_events, 1000);
}

TEST(SseReaderTest, AnythingElseHasNoEvents) {
  EXPECT_THAT(Events("{\"error\": \"no stream\"}\n\n", 5), IsEmpty());
  EXPECT_THAT(Events(std::string("\0\xff\n\n\r", 6), 2), IsEmpty());
}

}  // namespace
}  // namespace quire
