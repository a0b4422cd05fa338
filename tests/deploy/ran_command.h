// RanCommand is what a command of quire that runs in this process printed and returned.
//
// Thread safety: for tests, one thread.
#ifndef QUIRE_TESTS_DEPLOY_RAN_COMMAND_H_
#define QUIRE_TESTS_DEPLOY_RAN_COMMAND_H_

#include <string>
#include <vector>

#include "gtest/gtest.h"

#include "tests/support/capture_log.h"

namespace quire {

struct RanCommand {
  int exit_code = 0;
  std::string out;
  std::string err;
};

inline RanCommand Capture(int (*command)(const std::vector<std::string>&),
                          const std::vector<std::string>& args) {
  CaptureStdout();
  CaptureStderr();
  RanCommand ran;
  ran.exit_code = command(args);
  ran.out = GetCapturedStdout();
  ran.err = GetCapturedStderr();
  return ran;
}

}  // namespace quire

#endif  // QUIRE_TESTS_DEPLOY_RAN_COMMAND_H_
