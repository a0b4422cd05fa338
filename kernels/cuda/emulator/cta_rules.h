// Rules of a test for the CTAs of later launches: the order in which they run, and whether their
// writes to global memory are watched.
//
// CTAs of a device run in any order, and beside each other. A kernel whose CTAs count arrivals can
// be wrong only in some orders: a fold by a CTA that is not the last one is overwritten, or not, by
// the fold of the last one. So under a watch it is a fault if a CTA changes bytes that another CTA
// of the launch has changed. Bytes of atomic operations are exempt.
//
// Limits of a watch: it does not see a write that leaves the bytes as they were, and watches only
// kernels that refer to at most 16 MiB. A test gives outputs contents that no fold computes.
//
// Thread safety: rules are those of the calling thread's launches.
#ifndef QUIRE_KERNELS_CUDA_EMULATOR_CTA_RULES_H_
#define QUIRE_KERNELS_CUDA_EMULATOR_CTA_RULES_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "kernels/cuda/emulator/memory_changes.h"

namespace quire::gpu::emulator {

enum class CtaOrder : uint8_t { kForward, kBackward, kShuffled };

struct CtaRules {
  CtaOrder order = CtaOrder::kForward;
  uint64_t seed = 0;  // of kShuffled
  bool watches_writes = false;
};

// Returns the former rules. The first ones are CtaRules().
CtaRules SetCtaRules(CtaRules rules);

// Returns which of num_ctas CTAs runs as the i-th one.
uint64_t NthCta(uint64_t i, uint64_t num_ctas);

// Watches the writes of a launch's CTAs.
class CtaWatch {
 public:
  // references: of the operation, or null. Watches nothing unless the rules say so.
  void Begin(const References* references);
  // Excludes an atomic operation's bytes.
  void Exempt(const void* address, size_t bytes);
  // Returns whether the CTA that has ended changed no bytes that an earlier CTA has changed.
  bool EndCta();

 private:
  // An allocation: its contents when the last CTA ended, and which bytes CTAs have changed.
  struct Watched {
    std::vector<bool> is_changed;
    std::vector<bool> is_exempt;
  };
  bool Mark(const Bytes& changed);

  std::vector<Bytes> before_;
  std::vector<Watched> watched_;  // of the allocation in before_ with the same index
};

}  // namespace quire::gpu::emulator

#endif  // QUIRE_KERNELS_CUDA_EMULATOR_CTA_RULES_H_
