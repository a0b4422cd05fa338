// The real library, where it is installed.
#include "kernels/cuda/nccl.h"

#include <dlfcn.h>

#include <filesystem>

#include "gtest/gtest.h"

namespace quire::gpu {
namespace {

TEST(NcclTest, EveryNameResolves) {
  if (dlopen("libnccl.so.2", RTLD_NOW | RTLD_LOCAL) == nullptr &&
      !std::filesystem::exists("/usr/local/cuda/lib64/libnccl.so.2")) {
    GTEST_SKIP() << "NCCL is not installed";
  }
  const auto functions = OpenNcclLibrary(nullptr);
  ASSERT_TRUE(functions.has_value());
  // Needs no GPU.
  ncclUniqueId id = {};
  EXPECT_EQ(functions->get_unique_id(&id), ncclSuccess);
}

TEST(NcclTest, ALibraryWithoutTheNamesIsNone) {
  EXPECT_FALSE(OpenNcclLibrary("libm.so.6").has_value());
  EXPECT_FALSE(OpenNcclLibrary("libnosuch.so").has_value());
}

}  // namespace
}  // namespace quire::gpu
