#include "common/wire/reloaded.h"

#include <memory>

#include "absl/synchronization/notification.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "gtest/gtest.h"

namespace quire {
namespace {

TEST(ReloadedTest, NobodyWaitsForADiskThatHangs) {
  const auto hangs = std::make_shared<absl::Notification>();
  const auto goes_on = std::make_shared<absl::Notification>();
  const auto read = [hangs, goes_on]() -> absl::StatusOr<int> {
    hangs->Notify();
    goes_on->WaitForNotification();
    return 2;
  };
  {
    const Reloaded<int> number("numbers", "file", read, 1);
    hangs->WaitForNotification();
    EXPECT_EQ(*number.Get(), 1);
  }  // its end waits for a second at most
  goes_on->Notify();
}

// The thread may be inside a library that the end of the process takes down.
TEST(ReloadedTest, ItsEndWaitsForTheReaderThatComesBack) {
  absl::Notification reads;
  bool has_read = false;
  {
    const Reloaded<int> number(
        "numbers",
        "file",
        [&]() -> absl::StatusOr<int> {
          reads.Notify();
          absl::SleepFor(absl::Milliseconds(50));
          has_read = true;
          return 2;
        },
        1);
    reads.WaitForNotification();
  }
  EXPECT_TRUE(has_read);
}

}  // namespace
}  // namespace quire
