// main of the tests on a GPU: without one they say so and pass, so that the build can be tried
// anywhere. With QUIRE_REQUIRE_GPU in the environment that is a failure.
#include <cstdio>
#include <cstdlib>

#include "gtest/gtest.h"

#include "kernels/cuda/runtime.h"

int main(int argc, char** argv) {
  testing::InitGoogleTest(&argc, argv);
  quire::gpu::DeviceInfo device;
  if (const int error = quire::gpu::QueryDevice(0, &device); error != 0) {
    // NOLINTNEXTLINE(concurrency-mt-unsafe): there is one thread
    if (getenv("QUIRE_REQUIRE_GPU") != nullptr) {
      printf("a GPU is required: %s\n", quire::gpu::ErrorText(error));
      return EXIT_FAILURE;
    }
    printf("no GPU: %s; nothing was tested\n", quire::gpu::ErrorText(error));
    return EXIT_SUCCESS;
  }
  printf("device: %s, sm_%d\n", device.name, device.compute_capability);
  return RUN_ALL_TESTS();
}
