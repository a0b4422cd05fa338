#include "worker/rpc/executor_thread.h"

#include <cstdint>
#include <memory>

#include "absl/synchronization/notification.h"
#include <gtest/gtest.h>

#include "kernels/reference/reference_backend.h"

namespace quire {
namespace {

TEST(ExecutorThreadTest, WhatItHasToDoIsSeenAndWhatItDoesIsProgress) {
  const std::unique_ptr<KernelBackend> backend = CreateReferenceBackend();
  WorkerProgress progress(*backend);
  ExecutorThread executor(/*capacity=*/2, progress);
  absl::Notification has_begun;
  absl::Notification may_end;
  const uint64_t at_first = progress.Read().report.progress();

  ASSERT_TRUE(executor.Run([&] {
    has_begun.Notify();
    may_end.WaitForNotification();
  }));
  has_begun.WaitForNotification();
  const uint64_t begun = progress.Read().report.progress();
  ASSERT_TRUE(executor.Run([] {}));
  ASSERT_TRUE(executor.Run([] {}));
  ASSERT_FALSE(executor.Run([] {}));  // it is full
  const WorkerProgress::State waiting = progress.Read();
  may_end.Notify();
  executor.Stop();
  const WorkerProgress::State done = progress.Read();

  EXPECT_GT(begun, at_first);
  EXPECT_EQ(waiting.num_tasks, 3);
  EXPECT_EQ(waiting.report.progress(), begun);  // tasks that wait are none
  EXPECT_EQ(done.num_tasks, 0);
  EXPECT_EQ(done.report.progress(), begun + 5);  // one end, and two tasks whole
}

}  // namespace
}  // namespace quire
