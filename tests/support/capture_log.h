// Captures the text that this process writes to a standard stream through the stream's LossyWriter.
// CaptureStderr and CaptureStdout begin a capture; GetCapturedStderr and GetCapturedStdout end it.
//
// Thread safety: from the test's thread.
#ifndef QUIRE_TESTS_SUPPORT_CAPTURE_LOG_H_
#define QUIRE_TESTS_SUPPORT_CAPTURE_LOG_H_

#include <string>

#include "gtest/gtest.h"

#include "common/base/lossy_writer.h"

namespace quire {

// Flushes repeatedly: one Flush gives up after half a second, too short for a busy machine.
inline void FlushForLong(LossyWriter& writer) {
  constexpr int kMaxFlushes = 40;
  for (int i = 0; i < kMaxFlushes; ++i) {
    writer.Flush();
  }
}

inline void CaptureStderr() {
  FlushForLong(StandardError());
  testing::internal::CaptureStderr();
}

inline std::string GetCapturedStderr() {
  FlushForLong(StandardError());
  return testing::internal::GetCapturedStderr();
}

inline void CaptureStdout() {
  FlushForLong(StandardOutput());
  testing::internal::CaptureStdout();
}

inline std::string GetCapturedStdout() {
  FlushForLong(StandardOutput());
  return testing::internal::GetCapturedStdout();
}

}  // namespace quire

#endif  // QUIRE_TESTS_SUPPORT_CAPTURE_LOG_H_
