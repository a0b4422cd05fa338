// The supervisor over shell scripts in place of the programs. What takes real programs, signals and
// time is in tests/integration/serve_test.py.
#include "deploy/cli/supervisor.h"

#include <fcntl.h>
#include <signal.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include <grpcpp/server_builder.h>

#include "proto/v1/worker.grpc.pb.h"

#include "common/base/exit_codes.h"
#include "tests/support/capture_log.h"

#include <sys/signalfd.h>

namespace quire {
namespace {

constexpr char kListens[] =
    "echo quire_scheduler: listens grpc=127.0.0.1:1 http=127.0.0.1:2 admin=unix:/a;";
constexpr char kReady[] = "echo quire_scheduler: ready grpc=127.0.0.1:1 http=127.0.0.1:2;";
constexpr char kWait[] = "exec sleep 100";
constexpr char kGateway[] =
    "echo quire_gateway: listens api=127.0.0.1:3; echo quire_gateway: ready api=127.0.0.1:3;";

// A worker that reports, always the same: it loads.
class StuckLoading : public v1::WorkerService::Service {
 public:
  grpc::Status Watch(grpc::ServerContext* context,
                     const v1::WatchRequest* /*request*/,
                     grpc::ServerWriter<v1::WatchReport>* writer) override {
    v1::WatchReport report;
    report.set_phase(v1::WORKER_PHASE_LOADING);
    report.set_progress(7);
    while (!context->IsCancelled() && writer->Write(report)) {
      ::usleep(20'000);
    }
    return grpc::Status::OK;
  }
};

class SupervisorTest : public testing::Test {
 protected:
  SupervisorTest() {
    std::string pattern = testing::TempDir() + "quire-supervisor-XXXXXX";
    folder_ = ::mkdtemp(pattern.data());
    address_.unix_path = folder_ + "/no.sock";
    EXPECT_EQ(::pipe2(fds_, O_CLOEXEC | O_NONBLOCK), 0);
  }
  ~SupervisorTest() override {
    ::close(fds_[0]);
    ::close(fds_[1]);
    std::filesystem::remove_all(folder_);
  }

  void Send(int signal) const {
    signalfd_siginfo info = {};
    info.ssi_signo = static_cast<uint32_t>(signal);
    EXPECT_EQ(::write(fds_[1], &info, sizeof(info)), static_cast<ssize_t>(sizeof(info)));
  }

  // Runs the two scripts, that of the worker for each of them. SIGTERM comes when `stop_when` says
  // so; without it, never.
  int Run(const std::string& scheduler,
          const std::string& worker,
          const std::function<bool()>& stop_when = nullptr,
          size_t num_workers = 1) {
    std::atomic<bool> is_over = false;
    std::thread stopper;
    if (stop_when != nullptr) {
      stopper = std::thread([&] {
        while (!is_over && !stop_when()) {
          ::usleep(1'000);
        }
        Send(SIGTERM);
      });
    }
    const std::string cd = "cd " + folder_ + ";";
    CaptureStdout();
    CaptureStderr();
    const std::vector<Supervisor::Worker> workers(
        num_workers, {.argv = {"/bin/sh", "-c", cd + worker}, .address = address_});
    const int code = Supervisor({"/bin/sh", "-c", cd + scheduler},
                                {"/bin/sh", "-c", cd + gateway_},
                                workers,
                                fds_[0],
                                max_loading_pause_ns_)
                         .Run();
    out_ = GetCapturedStdout();
    err_ = GetCapturedStderr();
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
  std::string gateway_ = std::string(kGateway) + kWait;
  Address address_;
  int fds_[2] = {-1, -1};
  int64_t max_loading_pause_ns_ = Supervisor::kMaxLoadingPauseNs;
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
  EXPECT_EQ(Run(refuses + "MEMORY cannot be mapped;" + kWait, kWait), kExitMemory);
}

TEST_F(SupervisorTest, WhatEachRankWouldRefuseIsSaidOnce) {
  const int code = Run(std::string(kListens) + kWait,
                       "echo started >> starts; sleep 0.2; exit 2",
                       /*stop_when=*/nullptr,
                       /*num_workers=*/4);

  EXPECT_EQ(code, kExitUsage);
  EXPECT_EQ(LinesOf("starts").size(), 1U);
}

TEST_F(SupervisorTest, ARefusalAfterTheFirstReadyIsLoggedOnce) {
  const std::string refuses = "echo quire_scheduler: refuses CONFIG_MISMATCH model_hash: other;";

  const int code =
      Run(std::string(kListens) + kReady + refuses + refuses + "sleep 0.3; touch said;" + kWait,
          kWait,
          [this] { return std::filesystem::exists(folder_ + "/said"); });

  EXPECT_EQ(code, 0);
  EXPECT_EQ(out_, "quire: ready grpc=127.0.0.1:1 http=127.0.0.1:3\n");
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
  EXPECT_EQ(Run(std::string(kListens) + kWait, "exit 1"), 1) << "it cannot listen";
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
  EXPECT_EQ(out_, "quire: ready grpc=127.0.0.1:1 http=127.0.0.1:3\n");
  EXPECT_NE(err_.find("program=scheduler"), std::string::npos) << err_;
}

TEST_F(SupervisorTest, AWorkerThatComesBackHasTheMemoryOfTheFirst) {
  const int code = Run(std::string(kListens) + kReady + kWait,
                       "echo \"$0 $1\" >> arguments; echo x >> starts;"
                       "echo quire_worker: ready listen=unix:/a"
                       " --kv-cache-memory-bytes=$(wc -l < starts)000 --swap-space=5; sleep 0.05;"
                       "kill -KILL $$",
                       [this] { return LinesOf("arguments").size() >= 3; });

  EXPECT_EQ(code, 0);
  const std::string sizes = "--kv-cache-memory-bytes=1000 --swap-space=5";
  const std::vector<std::string> seen = LinesOf("arguments");
  EXPECT_EQ(std::vector<std::string>(seen.begin(), seen.begin() + 3),
            (std::vector<std::string>{"/bin/sh ", sizes, sizes}));
}

TEST_F(SupervisorTest, AWorkerThatComesBackHasTheHttpPortOfTheFirstWhichIsSaidOnce) {
  const int code =
      Run(std::string(kListens) + "while [ ! -e said ]; do sleep 0.01; done;" + kReady + kWait,
          "echo \"$0\" >> arguments; echo x >> starts;"
          "echo quire_worker: listens listen=unix:/a"
          " http=127.0.0.1:$(wc -l < starts)000; touch said; sleep 0.3;"
          "kill -KILL $$",
          [this] { return LinesOf("arguments").size() >= 3; });

  EXPECT_EQ(code, 0);
  const std::vector<std::string> seen = LinesOf("arguments");
  EXPECT_EQ(std::vector<std::string>(seen.begin(), seen.begin() + 3),
            (std::vector<std::string>{"/bin/sh", "--http-port=1000", "--http-port=1000"}));
  EXPECT_EQ(out_.find("quire: worker 0 http=127.0.0.1:1000\nquire: ready "), 0U) << out_;
}

TEST_F(SupervisorTest, TheFolderOfSocketsComesBack) {
  address_.unix_path = folder_ + "/sockets/worker.sock";

  const int code = Run(std::string(kListens) + kReady + kWait,
                       "[ -d sockets ] && echo x >> starts; rm -rf sockets; kill -KILL $$",
                       [this] { return LinesOf("starts").size() >= 2; });

  EXPECT_EQ(code, 0);
}

// A scheduler that waited for its dead predecessor would cost two seconds, and one that did not
// wait for the scheduler of somebody else would take the workers from it.
TEST_F(SupervisorTest, ASchedulerInThePlaceOfOneThatStoodByStandsByToo) {
  // Each is killed, the second one after it was superseded; then it runs.
  const std::string scheduler =
      "echo \"$*\" | grep -o -e '--standby=[a-z]*' | tail -n 1 >> standby; echo x >> starts;"
      "while [ ! -e worker ]; do sleep 0.01; done; case $(wc -l < starts) in"
      " 1|3) kill -KILL $$;; 2) echo 'quire_scheduler: stands by grpc=a http=b'; kill -KILL $$;;"
      " esac;" +
      std::string(kWait);

  const int code = Run(std::string(kListens) + kReady + scheduler,
                       "touch worker;" + std::string(kWait),
                       [this] { return LinesOf("starts").size() >= 4; });

  EXPECT_EQ(code, 0);
  EXPECT_THAT(LinesOf("standby"),
              testing::ElementsAre("--standby=false", "--standby=true", "--standby=false"))
      << "the first one has no flag";
  EXPECT_NE(err_.find("another scheduler has the workers"), std::string::npos) << err_;
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

TEST_F(SupervisorTest, AnotherSignalIsTheSchedulersTooButNotThatOfAClosedTerminal) {
  // A scheduler that ends at the second SIGTERM.
  const std::string scheduler = "trap 'echo x >> terms; [ $(wc -l < terms) = 2 ] && exit 0' TERM;" +
                                std::string(kListens) + kReady +
                                "touch up; while :; do sleep 0.01; done";

  const int code = Run(scheduler, kWait, [this] {
    if (!std::filesystem::exists(folder_ + "/up")) {
      return false;
    }
    Send(SIGINT);
    while (LinesOf("terms").empty()) {
      ::usleep(1'000);
    }
    Send(SIGHUP);
    ::usleep(100'000);  // two turns of the supervisor
    EXPECT_EQ(LinesOf("terms").size(), 1U);
    return true;
  });

  EXPECT_EQ(code, 0);
  EXPECT_EQ(LinesOf("terms").size(), 2U);
}

TEST_F(SupervisorTest, AWorkerThatLoadsWithoutProgressIsKilledAndStartedAgain) {
  StuckLoading service;
  grpc::ServerBuilder builder;
  builder.AddListeningPort("unix:" + folder_ + "/no.sock", grpc::InsecureServerCredentials());
  builder.RegisterService(&service);
  const std::unique_ptr<grpc::Server> server = builder.BuildAndStart();
  max_loading_pause_ns_ = kNanosPerSecond;

  const int code = Run(std::string(kListens) + kReady + kWait,
                       "echo x >> starts;" + std::string(kWait),
                       [this] { return LinesOf("starts").size() >= 2; });

  EXPECT_EQ(code, 0);
  EXPECT_NE(err_.find("it loads without progress"), std::string::npos) << err_;
  server->Shutdown(std::chrono::system_clock::now());
}

TEST_F(SupervisorTest, AGatewayThatCannotServeEndsIt) {
  for (const int code : {EXIT_FAILURE, kExitUsage, kExitModel}) {
    gateway_ = "exit " + std::to_string(code);
    EXPECT_EQ(Run(std::string(kListens) + kReady + kWait, kWait), code);
    EXPECT_EQ(out_, "") << "it is not ready without its gateway";
  }
  gateway_ = "echo quire_gateway: listens api=127.0.0.1:3; exit 3";
  EXPECT_EQ(Run(std::string(kListens) + kWait, kWait), kExitModel);
}

TEST_F(SupervisorTest, AGatewayThatDiedGetsItsPortsAgain) {
  gateway_ =
      "echo \"$0 $1 $2\" >> arguments;"
      "echo quire_gateway: listens api=127.0.0.1:3 http=127.0.0.1:4;"
      "echo quire_gateway: ready api=127.0.0.1:3 http=127.0.0.1:4;"
      "[ $(wc -l < arguments) = 1 ] && kill -KILL $$;" +
      std::string(kWait);

  const int code = Run(std::string(kListens) + kReady + kWait, kWait, [this] {
    return LinesOf("arguments").size() == 2;
  });

  EXPECT_EQ(code, 0);
  EXPECT_EQ(LinesOf("arguments")[0], "--scheduler-http=127.0.0.1:2  ");
  EXPECT_EQ(LinesOf("arguments")[1], "--scheduler-http=127.0.0.1:2 --port=3 --http-port=4");
  EXPECT_EQ(out_, "quire: ready grpc=127.0.0.1:1 http=127.0.0.1:3\n") << "said once";
  EXPECT_NE(err_.find("program=gateway"), std::string::npos) << err_;
}

TEST_F(SupervisorTest, AMissingProgramIsNamed) {
  CaptureStderr();
  const int code = Supervisor({"/no/such/scheduler"}, {"/bin/true"}, {}, fds_[0]).Run();

  EXPECT_EQ(code, EXIT_FAILURE);
  EXPECT_EQ(GetCapturedStderr(), "quire: serve: /no/such/scheduler: is not an executable file\n");
}

}  // namespace
}  // namespace quire
