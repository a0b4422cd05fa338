#include "kernels/gpu/gpu_library.h"

#include <cstdlib>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "common/base/error.h"

namespace quire {
namespace {

using testing::HasSubstr;

absl::Status OpenIn(const char* folder) {
  // NOLINTNEXTLINE(concurrency-mt-unsafe): no other thread runs
  EXPECT_EQ(setenv("QUIRE_LIBRARY_PATH", folder, /*overwrite=*/1), 0);
  return GpuLibrary::Open("emu", 0).status();
}

TEST(GpuLibraryTest, AFolderThatIsNotAbsoluteIsRefused) {
  for (const char* folder : {"", ".", "build/cpu-release/bin", "../bin"}) {
    const absl::Status status = OpenIn(folder);

    EXPECT_EQ(ReasonOf(status), "DEVICE") << folder;
    EXPECT_THAT(status.message(), HasSubstr("QUIRE_LIBRARY_PATH")) << folder;
  }
}

TEST(GpuLibraryTest, AnAbsoluteFolderIsWhereItLooks) {
  const absl::Status status = OpenIn("/nonexistent");

  EXPECT_THAT(status.message(),
              HasSubstr("no GPU library is installed (/nonexistent/quire_emu.so)"))
      << status;
}

}  // namespace
}  // namespace quire
