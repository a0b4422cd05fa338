#include "common/wire/reloaded.h"

#include <memory>

#include "absl/synchronization/notification.h"
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
  }  // its end does not wait either
  goes_on->Notify();
}

}  // namespace
}  // namespace quire
