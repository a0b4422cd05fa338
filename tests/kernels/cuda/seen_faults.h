// SeenFaults keeps the faults that the emulator reports while it lives, instead of the end of the
// program.
//
// Thread safety: one object at a time, on the thread that launches.
#ifndef QUIRE_TESTS_KERNELS_CUDA_SEEN_FAULTS_H_
#define QUIRE_TESTS_KERNELS_CUDA_SEEN_FAULTS_H_

#include <string>
#include <vector>

#include "kernels/cuda/emulator/emulator.h"

namespace quire::gpu {

class SeenFaults {
 public:
  struct Seen {
    emulator::FaultKind kind;
    std::string operation;
    std::string text;
  };

  SeenFaults() : former_(emulator::SetFaultHandler(&Keep)) { All().clear(); }
  ~SeenFaults() { emulator::SetFaultHandler(former_); }
  SeenFaults(const SeenFaults&) = delete;
  SeenFaults& operator=(const SeenFaults&) = delete;

  const std::vector<Seen>& all() const { return All(); }

 private:
  static std::vector<Seen>& All() {
    static std::vector<Seen> all;
    return all;
  }
  static void Keep(const emulator::Fault& fault) {
    All().push_back({fault.kind, fault.kernel, fault.text});
  }

  emulator::FaultHandler former_;
};

}  // namespace quire::gpu

#endif  // QUIRE_TESTS_KERNELS_CUDA_SEEN_FAULTS_H_
