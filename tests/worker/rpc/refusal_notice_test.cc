#include "worker/rpc/refusal_notice.h"

#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "tests/support/capture_log.h"

namespace quire {
namespace {

constexpr Instant kStart = 1'000 * kNanosPerSecond;
constexpr Instant kEnd = kStart + RefusalNotice::kLifetimeNs;

TEST(RefusalNoticeTest, ARefusalThatIsNotRepeatedIsForgotten) {
  RefusalNotice notice;
  EXPECT_EQ(notice.Read(kStart), "");

  notice.Note("another model", kStart);

  EXPECT_EQ(notice.Read(kStart), "another model");
  EXPECT_EQ(notice.Read(kEnd - 1), "another model");
  EXPECT_EQ(notice.Read(kEnd), "");
  notice.Note("another model", kEnd);
  EXPECT_EQ(notice.Read(kEnd + 1), "another model");
  notice.Clear();
  EXPECT_EQ(notice.Read(kEnd + 1), "");
}

TEST(RefusalNoticeTest, TwoReasonsInTurnAreLoggedOnceEach) {
  RefusalNotice notice;
  CaptureStderr();

  for (int i = 0; i < 5; ++i) {
    notice.Note("differs from the previous worker", kStart);
    notice.Note("differs from rank 0", kStart);
  }

  const std::string log = GetCapturedStderr();
  for (const char* reason : {"differs from the previous worker", "differs from rank 0"}) {
    EXPECT_NE(log.find(reason), std::string::npos) << log;
    EXPECT_EQ(log.find(reason), log.rfind(reason)) << log;
  }
}

TEST(RefusalNoticeTest, APeerNeitherFloodsTheLogNorWritesLinesOfItsOwn) {
  RefusalNotice notice;
  CaptureStderr();

  for (int i = 0; i < 1'000; ++i) {
    notice.Note(std::string(10'000, 'x') + std::to_string(i), kStart);
    notice.Note(std::to_string(i) + "\r\nfalse line\x1b[2J", kStart);
  }

  EXPECT_LT(GetCapturedStderr().size(), 16U * 1024U);
  EXPECT_EQ(notice.Read(kStart), "999??false line?[2J");
}

}  // namespace
}  // namespace quire
