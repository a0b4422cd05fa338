// What this process writes to its standard streams through their LossyWriters, between Capture and
// GetCaptured.
//
// Thread safety: from the test's thread.
#ifndef QUIRE_TESTS_SUPPORT_CAPTURE_LOG_H_
#define QUIRE_TESTS_SUPPORT_CAPTURE_LOG_H_

#include <string>

#include "gtest/gtest.h"

#include "common/base/lossy_writer.h"

namespace quire {

inline void CaptureStderr() {
  StandardError().Flush();
  testing::internal::CaptureStderr();
}

inline std::string GetCapturedStderr() {
  StandardError().Flush();
  return testing::internal::GetCapturedStderr();
}

inline void CaptureStdout() {
  StandardOutput().Flush();
  testing::internal::CaptureStdout();
}

inline std::string GetCapturedStdout() {
  StandardOutput().Flush();
  return testing::internal::GetCapturedStdout();
}

}  // namespace quire

#endif  // QUIRE_TESTS_SUPPORT_CAPTURE_LOG_H_
