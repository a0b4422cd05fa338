// Bytes as events to a SchedulerCore: see core_player.h.
#include "tests/fuzz/core_player.h"
#include "tests/fuzz/fuzz_input.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  quire::FuzzInput input(data, size);
  quire::CorePlayer player(&input);
  player.Play();
  player.Drain();
  return 0;
}
