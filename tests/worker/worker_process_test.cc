// quire_worker as a process: exit codes, the ready line, and a clean end on SIGTERM.
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <unistd.h>

#include <chrono>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include <grpcpp/client_context.h>
#include <gtest/gtest.h>

#include "proto/v1/worker.grpc.pb.h"

#include "common/wire/address.h"
#include "common/wire/channel.h"

#include <sys/wait.h>

namespace quire {
namespace {

constexpr char kModelDir[] = "tests/worker/model/testdata/llama";
constexpr char kBundledModelDir[] = "deploy/model";
constexpr char kReady[] = "quire_worker: ready listen=";
constexpr int kTimeoutMs = 60'000;

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

  // Reads standard error to its end. The exit code, or -1 when a signal ended the process.
  int Wait() {
    char buffer[4096];
    ssize_t count = 0;
    while ((count = read(err_, buffer, sizeof(buffer))) > 0) {
      errors_.append(buffer, static_cast<size_t>(count));
    }
    int status = 0;
    waitpid(pid_, &status, 0);
    has_ended_ = true;
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  }

  // After Wait.
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
  request.set_protocol_version(1);
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
  absl::Status status = Handshake(ready.substr(sizeof(kReady) - 1), &response);
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

  EXPECT_EQ(ready, kReady + ("unix:" + path));
  EXPECT_EQ(worker.Wait(), 0);
  EXPECT_FALSE(std::filesystem::exists(path));
}

TEST(WorkerProcessTest, AMistakeOnTheCommandLineIsOneLineAndTwo) {
  Process worker({"--model", kModelDir, "--device", "abacus"});

  EXPECT_EQ(worker.Wait(), 2);
  EXPECT_EQ(worker.errors(), "quire_worker: --device: must be auto, cpu, cuda or emu\n");
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
  EXPECT_NE(worker.errors().find("computing on the CPU"), std::string::npos) << worker.errors();
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
  const absl::Status status = Handshake(ready.substr(sizeof(kReady) - 1), &response);
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
  std::string target = first.ReadLine().substr(sizeof(kReady) - 1);
  Process second({"--model", kModelDir, "--listen", target, "--threads", "1"});

  EXPECT_EQ(second.Wait(), 1);
  EXPECT_NE(second.errors().find("quire_worker: --listen: cannot listen on " + target),
            std::string::npos)
      << second.errors();
}

}  // namespace
}  // namespace quire
