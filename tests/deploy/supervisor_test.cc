// The supervisor over shell scripts in place of the programs. What takes real programs, signals and
// time is in tests/integration/serve_test.py.
#include "deploy/cli/supervisor.h"

#include <fcntl.h>
#include <signal.h>
#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "gtest/gtest.h"

#include "common/base/exit_codes.h"

#include <sys/signalfd.h>

namespace quire {
namespace {

constexpr char kListens[] =
    "echo quire_scheduler: listens grpc=127.0.0.1:1 http=127.0.0.1:2 admin=unix:/a;";
constexpr char kReady[] = "echo quire_scheduler: ready grpc=127.0.0.1:1 http=127.0.0.1:2;";
constexpr char kWait[] = "exec sleep 100";

class SupervisorTest : public testing::Test {
 protected:
  SupervisorTest() {
    std::string pattern = testing::TempDir() + "quire-supervisor-XXXXXX";
    folder_ = ::mkdtemp(pattern.data());
    EXPECT_EQ(::pipe2(fds_, O_CLOEXEC | O_NONBLOCK), 0);
  }
  ~SupervisorTest() override {
    ::close(fds_[0]);
    ::close(fds_[1]);
    std::filesystem::remove_all(folder_);
  }

  // Runs the two scripts. SIGTERM comes when `stop_when` says so; without it, never.
  int Run(const std::string& scheduler,
          const std::string& worker,
          const std::function<bool()>& stop_when = nullptr) {
    std::atomic<bool> is_over = false;
    std::thread stopper;
    if (stop_when != nullptr) {
      stopper = std::thread([&] {
        while (!is_over && !stop_when()) {
          ::usleep(1'000);
        }
        signalfd_siginfo info = {};
        info.ssi_signo = SIGTERM;
        EXPECT_EQ(::write(fds_[1], &info, sizeof(info)), static_cast<ssize_t>(sizeof(info)));
      });
    }
    const std::string cd = "cd " + folder_ + ";";
    testing::internal::CaptureStdout();
    testing::internal::CaptureStderr();
    const int code = Supervisor({"/bin/sh", "-c", cd + scheduler},
                                {{.argv = {"/bin/sh", "-c", cd + worker},
                                  .address = {.unix_path = folder_ + "/no.sock"}}},
                                fds_[0])
                         .Run();
    out_ = testing::internal::GetCapturedStdout();
    err_ = testing::internal::GetCapturedStderr();
    is_over = true;
    if (stopper.joinable()) {
      stopper.join();
    }
    return code;
  }

  std::vector<std::string> LinesOf(const std::string& file) const {
    std::ifstream in(folder_ + "/" + file);
    std::vector<std::string> lines;
    for (std::string line; std::getline(in, line);) {
      lines.push_back(line);
    }
    return lines;
  }

  std::string folder_;
  int fds_[2] = {-1, -1};
  std::string out_;
  std::string err_;
};

TEST_F(SupervisorTest, ARefusalBeforeTheFirstReadyEndsItWithTheReason) {
  const std::string refuses = std::string(kListens) + "echo quire_scheduler: refuses ";

  EXPECT_EQ(Run(refuses + "CONFIG_MISMATCH vocab_size: other;" + kWait, kWait), kExitUsage);
  EXPECT_EQ(err_, "quire: serve: CONFIG_MISMATCH vocab_size: other\n");
  EXPECT_EQ(Run(refuses + "STEP_LIMITS too large;" + kWait, kWait), kExitUsage);
  EXPECT_EQ(Run(refuses + "NO_MEMORY no block;" + kWait, kWait), kExitMemory);
  EXPECT_EQ(err_, "quire: serve: NO_MEMORY no block\n");
  EXPECT_EQ(Run(refuses + "MEMORY cannot map it;" + kWait, kWait), kExitMemory);
}

TEST_F(SupervisorTest, ARefusalAfterTheFirstReadyIsLoggedOnce) {
  const std::string refuses = "echo quire_scheduler: refuses CONFIG_MISMATCH model_hash: other;";

  const int code = Run(std::string(kListens) + kReady + refuses + refuses + "touch said;" + kWait,
                       kWait,
                       [this] { return std::filesystem::exists(folder_ + "/said"); });

  EXPECT_EQ(code, 0);
  EXPECT_EQ(out_, "quire: ready grpc=127.0.0.1:1 http=127.0.0.1:2\n");
  EXPECT_EQ(err_.find("model_hash: other"), err_.rfind("model_hash: other"));
  EXPECT_NE(err_.find("model_hash: other"), std::string::npos);
}

TEST_F(SupervisorTest, AProgramThatCannotStartEndsItWithItsExitCode) {
  for (const int code : {kExitUsage, kExitModel, kExitMemory, kExitDevice}) {
    const std::string exits = "exit " + std::to_string(code);
    EXPECT_EQ(Run(exits, kWait), code);
    EXPECT_EQ(Run(std::string(kListens) + kWait, exits), code);
    EXPECT_EQ(err_, "") << "the program has said why";
  }
  EXPECT_EQ(Run("exit 1", kWait), 1);
}

TEST_F(SupervisorTest, TheWorkerIsNotStartedBeforeTheSchedulerListens) {
  EXPECT_EQ(Run("exit 3", "touch started;" + std::string(kWait)), kExitModel);

  EXPECT_FALSE(std::filesystem::exists(folder_ + "/started"));
}

TEST_F(SupervisorTest, CrashesBeforeTheFirstReadyAreNoReasonToEnd) {
  const int code = Run(std::string(kListens) + kWait,
                       "echo x >> starts; [ $(wc -l < starts) = 1 ] && kill -SEGV $$; exit 70",
                       [this] { return LinesOf("starts").size() >= 3; });

  EXPECT_EQ(code, 0);
  EXPECT_NE(err_.find("how=\"signal 11\" served=no pause_ms=100"), std::string::npos) << err_;
  EXPECT_NE(err_.find("how=\"exit code 70\" served=no pause_ms=200"), std::string::npos) << err_;
}

TEST_F(SupervisorTest, OnceReadyNoExitCodeEndsIt) {
  const int code = Run(std::string(kListens) + kReady + "sleep 0.1; touch ready;" + kWait,
                       "while [ ! -e ready ]; do sleep 0.01; done; echo x >> starts; exit 3",
                       [this] { return LinesOf("starts").size() >= 3; });

  EXPECT_EQ(code, 0);
}

TEST_F(SupervisorTest, ASchedulerThatDiedGetsItsAddressesAgain) {
  const std::string first = "if [ ! -e first ]; then touch first;" + std::string(kListens) +
                            kReady + "kill -KILL $$; fi;";

  const int code = Run(first + "echo \"$0 $1 $2\" >> arguments;" + kListens + kReady + kWait,
                       "echo x >> workers;" + std::string(kWait),
                       [this] { return !LinesOf("arguments").empty(); });

  EXPECT_EQ(code, 0);
  EXPECT_EQ(LinesOf("arguments"),
            std::vector<std::string>{"--port=1 --http-port=2 --admin-address=unix:/a"});
  EXPECT_LE(LinesOf("workers").size(), 1U);
  EXPECT_EQ(out_, "quire: ready grpc=127.0.0.1:1 http=127.0.0.1:2\n");
  EXPECT_NE(err_.find("program=scheduler"), std::string::npos) << err_;
}

TEST_F(SupervisorTest, AWorkerThatDiesDuringTheDrainIsStartedAgain) {
  // A scheduler that takes its time after SIGTERM, until the worker was started twice.
  const std::string scheduler =
      "trap 'touch draining; while [ ! -e again ]; do sleep 0.01; done; exit 0' TERM;" +
      std::string(kListens) + kReady + "touch up; while :; do sleep 0.01; done";
  const std::string worker =
      "[ -e draining ] && touch again; while [ ! -e draining ]; do sleep 0.01; done; kill -KILL $$";

  const int code =
      Run(scheduler, worker, [this] { return std::filesystem::exists(folder_ + "/up"); });

  EXPECT_EQ(code, 0);
}

TEST_F(SupervisorTest, AMissingProgramIsNamed) {
  testing::internal::CaptureStderr();
  const int code = Supervisor({"/no/such/scheduler"}, {}, fds_[0]).Run();

  EXPECT_EQ(code, EXIT_FAILURE);
  EXPECT_EQ(testing::internal::GetCapturedStderr(),
            "quire: serve: /no/such/scheduler: is not an executable file\n");
}

}  // namespace
}  // namespace quire
