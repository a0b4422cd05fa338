#include "common/wire/worker_address.h"

#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <optional>
#include <string>

#include <gtest/gtest.h>

#include "common/base/error.h"

namespace quire {
namespace {

namespace fs = std::filesystem;

class WorkerAddressTest : public testing::Test {
 public:
  WorkerAddressTest() {
    std::string name = testing::TempDir() + "/runtime-XXXXXX";
    runtime_ = ::mkdtemp(name.data());
    ::setenv("XDG_RUNTIME_DIR", runtime_.c_str(), 1);
  }
  ~WorkerAddressTest() override {
    ::unsetenv("XDG_RUNTIME_DIR");
    fs::remove_all(runtime_);
  }

 protected:
  fs::path folder() const { return runtime_ / "quire"; }

 private:
  fs::path runtime_;
};

TEST_F(WorkerAddressTest, IsAPlaceThatNobodyElseMayEnter) {
  for (int round = 0; round < 2; ++round) {  // the folder is there the second time
    const auto address = DefaultWorkerAddress();

    ASSERT_TRUE(address.ok()) << address.status();
    EXPECT_EQ(address->unix_path, folder() / "worker.sock");
    EXPECT_EQ(fs::status(folder()).permissions(), fs::perms::owner_all);
  }
}

TEST_F(WorkerAddressTest, AFolderTooLongForASocketIsPassedOver) {
  const std::string below = "/quire/worker.sock.ranks";
  const std::string fits = "/" + std::string(kMaxUnixPathBytes - below.size() - 1, 'x');
  ::setenv("XDG_RUNTIME_DIR", fits.c_str(), 1);
  EXPECT_EQ(RuntimeFolder(below), fits);
  EXPECT_EQ(RuntimeFolder(below + "x"), std::nullopt);

  ::setenv("XDG_RUNTIME_DIR", (fits + "x").c_str(), 1);
  const auto address = DefaultWorkerAddress();
  ASSERT_TRUE(address.ok()) << address.status();
  EXPECT_EQ(address->unix_path, "/tmp/quire-" + std::to_string(::geteuid()) + "/worker.sock");
}

TEST_F(WorkerAddressTest, AFolderThatOthersMayEnterIsRefused) {
  fs::create_directory(folder());
  fs::permissions(folder(), fs::perms::owner_all | fs::perms::others_exec);

  EXPECT_EQ(ReasonOf(DefaultWorkerAddress().status()), "ADDRESS");
}

TEST_F(WorkerAddressTest, ALinkIsRefused) {
  const fs::path elsewhere = folder().string() + "-elsewhere";
  fs::create_directory(elsewhere);
  fs::permissions(elsewhere, fs::perms::owner_all);
  fs::create_symlink(elsewhere, folder());

  EXPECT_EQ(ReasonOf(DefaultWorkerAddress().status()), "ADDRESS");
}

TEST_F(WorkerAddressTest, WithoutARuntimeFolderItIsOneOfTheUsersInTmp) {
  ::unsetenv("XDG_RUNTIME_DIR");

  const auto address = DefaultWorkerAddress();

  ASSERT_TRUE(address.ok()) << address.status();
  EXPECT_EQ(address->unix_path, "/tmp/quire-" + std::to_string(::geteuid()) + "/worker.sock");
}

}  // namespace
}  // namespace quire
