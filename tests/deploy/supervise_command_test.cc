// `quire supervise` over shell scripts in place of the programs. supervise_test.py, in
// tests/integration, runs the programs themselves.
#include "deploy/cli/supervise_command.h"

#include <fcntl.h>
#include <signal.h>
#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>
#include <thread>

#include "gtest/gtest.h"

#include "common/base/exit_codes.h"
#include "tests/support/capture_log.h"

#include <sys/signalfd.h>
#include <sys/stat.h>

namespace quire {
namespace {

constexpr char kReady[] = "echo quire_worker: ready listen=unix:/a; ";

class SuperviseCommandTest : public testing::Test {
 protected:
  SuperviseCommandTest() {
    std::string pattern = testing::TempDir() + "quire-supervise-XXXXXX";
    folder_ = ::mkdtemp(pattern.data());
    EXPECT_EQ(::pipe2(fds_, O_CLOEXEC | O_NONBLOCK), 0);
  }
  ~SuperviseCommandTest() override {
    ::close(fds_[0]);
    ::close(fds_[1]);
    std::filesystem::remove_all(folder_);
  }

  // Runs the script as quire_worker. SIGTERM comes when the script has made the file "stop".
  int Run(const std::string& script) {
    const std::string program = folder_ + "/quire_worker";
    std::ofstream(program) << "#!/bin/sh\ncd " << folder_ << "\n" << script << "\n";
    ::chmod(program.c_str(), S_IRWXU);
    is_over_ = false;
    std::thread stopper([this] {
      while (!std::filesystem::exists(folder_ + "/stop")) {
        if (is_over_) {
          return;
        }
        ::usleep(1'000);
      }
      signalfd_siginfo info = {};
      info.ssi_signo = SIGTERM;
      EXPECT_EQ(::write(fds_[1], &info, sizeof(info)), static_cast<ssize_t>(sizeof(info)));
    });
    CaptureStdout();
    CaptureStderr();
    const int code = SuperviseProgram({program}, fds_[0]);
    out_ = GetCapturedStdout();
    err_ = GetCapturedStderr();
    is_over_ = true;
    stopper.join();
    return code;
  }

  std::string folder_;
  int fds_[2] = {-1, -1};
  std::atomic<bool> is_over_ = false;
  std::string out_;
  std::string err_;
};

TEST_F(SuperviseCommandTest, AProgramThatDiesIsStartedAgainAndItsLinesArePassedOn) {
  const int code =
      Run("echo x >> starts\n" + std::string(kReady) +
          "[ $(wc -l < starts) -lt 3 ] && kill -KILL $$\n"
          "trap 'echo stopped; exit 7' TERM; touch stop; while :; do sleep 0.01; done");

  EXPECT_EQ(code, 7) << "the signal is passed on, and the exit code is that of the program";
  EXPECT_EQ(out_,
            "quire_worker: ready listen=unix:/a\nquire_worker: ready listen=unix:/a\n"
            "quire_worker: ready listen=unix:/a\nstopped\n");
  EXPECT_NE(err_.find("signal 9"), std::string::npos) << err_;
}

TEST_F(SuperviseCommandTest, AnExitCodeThatIsHopelessEndsItOnlyBeforeTheFirstReady) {
  for (const int code : {kExitUsage, kExitModel, kExitMemory, kExitDevice, EXIT_FAILURE}) {
    EXPECT_EQ(Run("exit " + std::to_string(code)), code);
  }
  const int code =
      Run(kReady + std::string("echo x >> starts; [ $(wc -l < starts) = 2 ] && touch stop "
                               "&& exec sleep 100; exit 5"));
  EXPECT_EQ(code, EXIT_SUCCESS) << "the second start had not set a handler for SIGTERM";
}

TEST_F(SuperviseCommandTest, AProgramThatCannotStartIsAnError) {
  EXPECT_EQ(SuperviseProgram({folder_ + "/no-such-program"}, fds_[0]), EXIT_FAILURE);
}

}  // namespace
}  // namespace quire
