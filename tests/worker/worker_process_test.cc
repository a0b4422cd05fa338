// quire_worker as a process: exit codes, the ready line, and a clean end on SIGTERM.
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <unistd.h>

#include <chrono>
#include <filesystem>
#include <fstream>
#include <memory>
#include <regex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <grpcpp/client_context.h>
#include <gtest/gtest.h>

#include "proto/v1/worker.grpc.pb.h"

#include "common/wire/address.h"
#include "common/wire/channel.h"
#include "common/wire/step_codec.h"
#include "common/wire/worker_protocol.h"
#include "tests/support/with_digest.h"

#include <sys/wait.h>

namespace quire {
namespace {

constexpr char kModelDir[] = "tests/worker/model/testdata/llama";
constexpr char kBundledModelDir[] = "deploy/model";
constexpr char kReady[] = "quire_worker: ready listen=";
constexpr int kTimeoutMs = 60'000;

// Where a worker listens, of the line that says that it is ready.
std::string AddressIn(const std::string& ready) {
  const size_t begin = sizeof(kReady) - 1;
  return ready.substr(begin, ready.find(' ', begin) - begin);
}

// A child process whose output is read. It is killed when the test ends.
class Process {
 public:
  explicit Process(std::vector<std::string> arguments) {
    int out[2];
    int err[2];
    EXPECT_EQ(pipe(out), 0);
    EXPECT_EQ(pipe(err), 0);
    arguments.insert(arguments.begin(), QUIRE_WORKER_BINARY);
    pid_ = fork();
    if (pid_ == 0) {
      dup2(out[1], STDOUT_FILENO);
      dup2(err[1], STDERR_FILENO);
      for (int fd : {out[0], out[1], err[0], err[1]}) {
        close(fd);
      }
      std::vector<char*> argv;
      for (std::string& argument : arguments) {
        argv.push_back(argument.data());
      }
      argv.push_back(nullptr);
      execv(argv[0], argv.data());
      _exit(127);
    }
    close(out[1]);
    close(err[1]);
    out_ = out[0];
    err_ = err[0];
  }

  ~Process() {
    if (!has_ended_) {
      kill(pid_, SIGKILL);
      waitpid(pid_, nullptr, 0);
    }
    close(out_);
    close(err_);
  }

  // The next line of standard output, or what there is when it ends or nothing comes.
  std::string ReadLine() {
    std::string line;
    char byte = 0;
    pollfd waiting{.fd = out_, .events = POLLIN, .revents = 0};
    while (poll(&waiting, 1, kTimeoutMs) == 1 && read(out_, &byte, 1) == 1 && byte != '\n') {
      line += byte;
    }
    return line;
  }

  void Signal(int signal) { kill(pid_, signal); }

  // Reads standard error to its end. The exit code, or -N when signal N ended the process.
  int Wait() {
    char buffer[4096];
    ssize_t count = 0;
    while ((count = read(err_, buffer, sizeof(buffer))) > 0) {
      errors_.append(buffer, static_cast<size_t>(count));
    }
    int status = 0;
    waitpid(pid_, &status, 0);
    has_ended_ = true;
    return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
  }

  // The standard error of the process. REQUIRES: Wait has returned.
  const std::string& errors() const { return errors_; }
  std::string last_error_line() const {
    std::string text = errors_.substr(0, errors_.find_last_not_of('\n') + 1);
    return text.substr(text.rfind('\n') + 1);
  }

 private:
  pid_t pid_ = -1;
  int out_ = -1;
  int err_ = -1;
  bool has_ended_ = false;
  std::string errors_;
};

absl::Status Handshake(const std::string& target, v1::HandshakeResponse* response) {
  auto stub = v1::WorkerService::NewStub(DialWorker(*ParseAddress(target)));
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(20));
  v1::HandshakeRequest request;
  request.set_protocol_version(kWorkerProtocolVersion);
  request.set_block_size_tokens(16);
  request.set_tensor_parallel_size(1);
  grpc::Status status = stub->Handshake(&context, request, response);
  return absl::Status(static_cast<absl::StatusCode>(status.error_code()), status.error_message());
}

TEST(WorkerProcessTest, ServesWhenItSaysSoAndEndsWellOnSigterm) {
  Process worker({"--model",
                  kModelDir,
                  "--listen",
                  "127.0.0.1:0",
                  "--threads",
                  "1",
                  "--kv-cache-memory-bytes",
                  "16MiB"});

  std::string ready = worker.ReadLine();
  ASSERT_EQ(ready.substr(0, sizeof(kReady) - 1), kReady);
  v1::HandshakeResponse response;
  absl::Status status = Handshake(AddressIn(ready), &response);
  worker.Signal(SIGTERM);
  int exit_code = worker.Wait();

  EXPECT_TRUE(status.ok()) << status;
  EXPECT_EQ(response.num_blocks_max(), (16 << 20) / response.block_bytes());
  EXPECT_EQ(response.vocab_size(), 96);
  EXPECT_EQ(response.determinism_fingerprint().substr(0, 4), "cpu-");
  EXPECT_EQ(exit_code, 0) << worker.errors();
}

TEST(WorkerProcessTest, ASocketIsGoneAfterSigint) {
  std::string path = "/tmp/quire_worker_process_" + std::to_string(getpid()) + ".sock";
  Process worker({"--model", kModelDir, "--listen", "unix:" + path, "--threads", "1"});

  std::string ready = worker.ReadLine();
  EXPECT_TRUE(std::filesystem::is_socket(path));
  worker.Signal(SIGINT);

  EXPECT_EQ(AddressIn(ready), "unix:" + path);
  EXPECT_EQ(worker.Wait(), 0);
  EXPECT_FALSE(std::filesystem::exists(path));
}

// A worker that fails on purpose, and a scheduler's calls to it.
class FailPointTest : public testing::Test {
 protected:
  struct Worker {
    Worker(const std::string& name, const std::string& fail_points)
        : path("/tmp/quire_fail_" + std::to_string(getpid()) + "_" + name + ".sock"),
          process({"--model",
                   kModelDir,
                   "--listen",
                   "unix:" + path,
                   "--threads",
                   "1",
                   "--kv-cache-memory-bytes",
                   "16MiB",
                   "--fail-points",
                   fail_points}),
          stub(v1::WorkerService::NewStub(DialWorker(*ParseAddress("unix:" + path)))) {}
    ~Worker() { std::filesystem::remove(path); }

    std::string path;
    Process process;
    std::unique_ptr<v1::WorkerService::Stub> stub;
  };

  static void Prepare(grpc::ClientContext* context) {
    context->set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(40));
    context->set_wait_for_ready(true);
  }

  static grpc::Status BeginEpoch(Worker& worker, uint64_t epoch) {
    v1::BeginEpochRequest request;
    request.set_scheduler_incarnation(1);
    request.set_group_epoch(epoch);
    request.set_num_blocks(8);
    request.set_block_size_tokens(16);
    request.set_max_sequences(1);
    request.set_max_tokens_per_step(16);
    request.set_max_model_len_tokens(16);
    grpc::ClientContext context;
    Prepare(&context);
    v1::BeginEpochResponse response;
    return worker.stub->BeginEpoch(&context, request, &response);
  }

  // Step 1 of an epoch computes tokens 3, 4 and 5; the others compute nothing.
  static StepPlan Step(uint64_t step_id) {
    StepPlan plan;
    plan.header = {.scheduler_incarnation = 1, .group_epoch = 1, .step_id = step_id};
    if (step_id == 1) {
      SequenceIntroduction introduction;
      introduction.token_ids = {3, 4, 5};
      introduction.num_prompt_tokens = 3;
      introduction.sampling.temperature = 0.0F;
      plan.introductions = {introduction};
      plan.slices = {{.handle = 0, .num_tokens = 3, .new_block_ids = {1}}};
    }
    return plan;
  }

  // Steps 1 to `last` of epoch 1. The number of them that were answered.
  static int NumAnswered(Worker& worker, uint64_t last) {
    worker.process.ReadLine();  // until it is ready, an epoch is refused with LOADING
    EXPECT_TRUE(BeginEpoch(worker, 1).ok());
    grpc::ClientContext context;
    Prepare(&context);
    auto stream = worker.stub->Steps(&context);
    int num_answered = 0;
    for (uint64_t id = 1; id <= last; ++id) {
      const StepPlan plan = Step(id);
      v1::StepRequest request;
      v1::StepResponse response;
      EncodePlan(WithDigest(plan), &request);
      num_answered += stream->Write(request) && stream->Read(&response) ? 1 : 0;
    }
    context.TryCancel();
    stream->Finish();
    return num_answered;
  }

  // The first report, and the first of other progress; where there is none, the last of a second's
  // worth.
  static std::pair<v1::WatchReport, v1::WatchReport> Watch(Worker& worker, bool moves) {
    constexpr int kReportsOfASecond = 4;
    grpc::ClientContext context;
    Prepare(&context);
    auto stream = worker.stub->Watch(&context, v1::WatchRequest());
    v1::WatchReport first;
    EXPECT_TRUE(stream->Read(&first));
    v1::WatchReport last = first;
    for (int i = 1; moves ? last.progress() == first.progress() : i <= kReportsOfASecond; ++i) {
      if (!stream->Read(&last)) {
        ADD_FAILURE() << "the reports end";
        break;
      }
    }
    context.TryCancel();
    stream->Finish();
    return {first, last};
  }
};

TEST_F(FailPointTest, AWorkerThatLoadsListensAndSaysSo) {
  Worker stuck("load", "stick-in-load");
  Worker slow("slow", "slow-load=600000");

  const auto [stuck_first, stuck_second] = Watch(stuck, /*moves=*/false);
  const auto [slow_first, slow_second] = Watch(slow, /*moves=*/true);
  v1::HandshakeResponse response;
  const absl::Status status = Handshake("unix:" + stuck.path, &response);
  slow.process.Signal(SIGTERM);

  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(stuck_first.phase(), v1::WORKER_PHASE_LOADING);
  EXPECT_EQ(stuck_first.progress(), stuck_second.progress());
  EXPECT_EQ(slow_second.phase(), v1::WORKER_PHASE_LOADING);
  EXPECT_NE(slow_first.progress(), slow_second.progress());
  EXPECT_EQ(slow.process.Wait(), 0) << slow.process.errors();
  EXPECT_NE(slow.process.errors().find("fail-points are on"), std::string::npos);
}

TEST_F(FailPointTest, CrashesComeWhereTheyWereAskedFor) {
  Worker before("before", "crash-before-step=2");
  Worker after("after", "crash-after-step=2");
  Worker on_token("token", "crash-on-token=4");

  EXPECT_EQ(NumAnswered(before, 3), 1);
  EXPECT_EQ(NumAnswered(after, 3), 1);
  EXPECT_EQ(NumAnswered(on_token, 3), 0);
  for (Worker* worker : {&before, &after, &on_token}) {
    EXPECT_EQ(worker->process.Wait(), -SIGABRT) << worker->process.errors();
  }
}

// Both for more than the ten seconds after which a standstill is taken for one.
TEST_F(FailPointTest, AStuckExecutorEndsTheProcessAndASlowOneDoesNot) {
  Worker stuck("stuck", "stick-at-step=2");
  Worker slow("crawl", "slow-step=2:13000");
  int num_answered_by_stuck = 0;
  int num_answered_by_slow = 0;
  std::thread steps_of_stuck([&] { num_answered_by_stuck = NumAnswered(stuck, 2); });
  std::thread steps_of_slow([&] { num_answered_by_slow = NumAnswered(slow, 2); });
  for (Worker* worker : {&stuck, &slow}) {
    while (Watch(*worker, /*moves=*/false).second.step_id() < 2) {
    }
  }

  grpc::Status newer_of_stuck;
  std::thread epoch_of_stuck([&] { newer_of_stuck = BeginEpoch(stuck, 2); });
  const grpc::Status newer_of_slow = BeginEpoch(slow, 2);
  for (std::thread* thread : {&steps_of_stuck, &steps_of_slow, &epoch_of_stuck}) {
    thread->join();
  }

  EXPECT_EQ(num_answered_by_stuck, 1);
  EXPECT_FALSE(newer_of_stuck.ok());
  EXPECT_EQ(stuck.process.Wait(), 70);
  EXPECT_NE(stuck.process.last_error_line().find("the executor is stuck"), std::string::npos)
      << stuck.process.errors();
  EXPECT_EQ(num_answered_by_slow, 2);
  EXPECT_TRUE(newer_of_slow.ok()) << newer_of_slow.error_message();
}

TEST(WorkerProcessTest, AFailPointThatIsNoneIsOneLineAndTwo) {
  Process worker({"--model", kModelDir, "--fail-points", "stick-at-step=0"});

  EXPECT_EQ(worker.Wait(), 2);
  EXPECT_EQ(worker.last_error_line().rfind("quire_worker: --fail-points: stick-at-step: ", 0), 0U)
      << worker.errors();
}

TEST(WorkerProcessTest, MemoryThatIsNotThereIsOneLineAndFour) {
  struct Case {
    const char* device;
    const char* flag;
    std::string line;
  };
  for (const auto& [device, flag, line] :
       {Case{"cpu", "--kv-cache-memory-bytes=4096TiB", "--kv-cache-memory-bytes: exceeds the"},
        Case{"emu", "--kv-cache-memory-bytes=4096TiB", "--kv-cache-memory-bytes: exceeds the"},
        Case{"cpu", "--swap-space=4096TiB", "--swap-space: exceeds the"},
        Case{"cpu", "--kv-cache-memory-bytes=100", "KV cache: two blocks"}}) {
    Process worker({"--model", kModelDir, "--listen", "127.0.0.1:0", "--device", device, flag});

    EXPECT_EQ(worker.Wait(), 4) << flag;
    EXPECT_EQ(worker.last_error_line().rfind("quire_worker: " + line, 0), 0U) << worker.errors();
  }
}

TEST(WorkerProcessTest, AMistakeOnTheCommandLineIsOneLineAndTwo) {
  Process worker({"--model", kModelDir, "--device", "abacus"});

  EXPECT_EQ(worker.Wait(), 2);
  EXPECT_EQ(worker.errors(),
            "quire_worker: --device: must be auto, cpu, cuda or emu (got abacus)\n");
}

TEST(WorkerProcessTest, AGpuThatIsNotThereIsOneLineAndTwo) {
  // A number that no machine has: the test says the same with a GPU and without.
  Process worker({"--model", kModelDir, "--device", "cuda", "--device-index", "4095"});

  EXPECT_EQ(worker.Wait(), 2);
  EXPECT_EQ(worker.last_error_line().rfind("quire_worker: --device: device: ", 0), 0U)
      << worker.errors();
}

TEST(WorkerProcessTest, AGpuBeyondTheLastIsNamed) {
  Process worker({"--model", kModelDir, "--device", "emu", "--device-index", "2"});

  EXPECT_EQ(worker.Wait(), 2);
  EXPECT_EQ(worker.last_error_line(),
            "quire_worker: --device: device: no GPU 2: invalid device ordinal");
}

TEST(WorkerProcessTest, AutoComputesOnTheCpuWhereThereIsNoGpuAndSaysWhy) {
  Process worker({"--model",
                  kModelDir,
                  "--device-index",
                  "4095",
                  "--listen",
                  "127.0.0.1:0",
                  "--kv-cache-memory-bytes",
                  "16MiB"});

  std::string ready = worker.ReadLine();
  worker.Signal(SIGTERM);

  EXPECT_EQ(ready.rfind(kReady, 0), 0U) << ready;
  EXPECT_EQ(worker.Wait(), 0);
  EXPECT_TRUE(std::regex_search(worker.errors(),
                                std::regex(R"(computing on the CPU why="?(device: )?no GPU)")))
      << worker.errors();
  EXPECT_NE(worker.errors().find("backend=cpu-"), std::string::npos) << worker.errors();
}

TEST(WorkerProcessTest, AutoDoesNotLeaveTheQuantizationOut) {
  Process worker({"--model", kModelDir, "--device-index", "4095", "--quantization", "fp8"});

  EXPECT_EQ(worker.Wait(), 2);
  EXPECT_EQ(worker.last_error_line().rfind("quire_worker: --device: device: ", 0), 0U)
      << worker.errors();
}

// The answer of a worker with the GPU's kernels emulated to a scheduler's handshake.
v1::HandshakeResponse HandshakeOfEmulated(const std::string& quantization) {
  Process worker({"--model",
                  kBundledModelDir,
                  "--device",
                  "emu",
                  "--quantization",
                  quantization,
                  "--listen",
                  "127.0.0.1:0",
                  "--kv-cache-memory-bytes",
                  "16MiB"});
  const std::string ready = worker.ReadLine();
  EXPECT_EQ(ready.rfind(kReady, 0), 0U) << ready;
  v1::HandshakeResponse response;
  const absl::Status status = Handshake(AddressIn(ready), &response);
  EXPECT_TRUE(status.ok()) << status;
  worker.Signal(SIGTERM);
  EXPECT_EQ(worker.Wait(), 0) << worker.errors();
  return response;
}

// The scheduler compares config_hash with its own config.json, and model_hash with the worker
// before: sequences must not go on with other weights than they began with.
TEST(WorkerProcessTest, QuantizedWeightsAreOtherWeightsOfTheSameConfiguration) {
  const v1::HandshakeResponse plain = HandshakeOfEmulated("none");
  const v1::HandshakeResponse fp8 = HandshakeOfEmulated("fp8");

  EXPECT_EQ(fp8.config_hash(), plain.config_hash());
  EXPECT_NE(fp8.model_hash(), plain.model_hash());
  EXPECT_NE(fp8.determinism_fingerprint(), plain.determinism_fingerprint());
}

TEST(WorkerProcessTest, AModelThatIsNotThereIsOneLineAndThree) {
  Process worker({"--model", "tests/worker/model/testdata/no_such_model"});

  EXPECT_EQ(worker.Wait(), 3);
  EXPECT_EQ(worker.last_error_line().substr(0, 6), "load: ") << worker.errors();
}

TEST(WorkerProcessTest, ABrokenModelFileIsOneLineAndThree) {
  std::filesystem::path dir =
      std::filesystem::temp_directory_path() / ("quire_broken_" + std::to_string(getpid()));
  std::filesystem::create_directory(dir);
  std::filesystem::copy(std::filesystem::path(kModelDir) / "config.json", dir);
  std::ofstream(dir / "model.safetensors") << "junk";
  Process worker({"--model", dir.string()});

  int exit_code = worker.Wait();
  std::filesystem::remove_all(dir);

  EXPECT_EQ(exit_code, 3);
  EXPECT_EQ(worker.last_error_line().substr(0, 6), "load: ") << worker.errors();
  EXPECT_NE(worker.last_error_line().find("model.safetensors"), std::string::npos);
}

TEST(WorkerProcessTest, ATakenPortIsOneAndNotShared) {
  Process first({"--model", kModelDir, "--listen", "127.0.0.1:0", "--threads", "1"});
  std::string target = AddressIn(first.ReadLine());
  Process second({"--model", kModelDir, "--listen", target, "--threads", "1"});

  EXPECT_EQ(second.Wait(), 1);
  EXPECT_NE(second.errors().find("quire_worker: --listen: cannot listen on " + target),
            std::string::npos)
      << second.errors();
}

}  // namespace
}  // namespace quire
