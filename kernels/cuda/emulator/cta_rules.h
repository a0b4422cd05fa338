// Rules of a test for the CTAs of later launches: the order in which they run, and whether their
// accesses to global memory are watched.
//
// CTAs of a device run in any order, and beside each other. The emulator runs them one by one, so
// that two mistakes of CTAs that count arrivals would stay unseen. Under a watch:
// - It is a fault if a CTA changes bytes that another CTA of the launch has changed. So a fold by a
//   CTA that is not the last one shows, although the last one overwrites it.
// - What other CTAs of the launch have changed is NaN to a CTA until its AddAcquireRelease. What
//   they changed after their own last one stays NaN. So reads that nothing orders show.
// Bytes of atomic operations are exempt.
//
// Limits of a watch: it does not see a write that leaves the bytes as they were, does not tell
// counters apart, and watches only kernels that refer to at most 16 MiB. A test gives outputs
// contents that no fold computes.
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
  bool watches_memory = false;
};

// Returns the former rules. The first ones are CtaRules().
CtaRules SetCtaRules(CtaRules rules);

// Returns which of num_ctas CTAs runs as the i-th one.
uint64_t NthCta(uint64_t i, uint64_t num_ctas);

// Watches a launch. Functions are called at the begin of the launch, for each CTA, and at the end.
class CtaWatch {
 public:
  // references: of the operation, or null. Watches nothing unless the rules say so.
  void Begin(const References* references);
  // Exempts an atomic operation's bytes.
  void Exempt(const void* address, size_t bytes);
  // The running CTA releases its changes, and sees the released changes of the CTAs before it.
  void AcquireRelease();
  // Hides all changes. Returns whether the CTA that has ended changed no bytes that an earlier CTA
  // has changed.
  bool EndCta();
  // Shows all changes.
  void End();

 private:
  // Bytes of an allocation that CTAs have changed, and bytes of atomic operations.
  struct Watched {
    std::vector<bool> is_changed;
    std::vector<bool> is_exempt;
  };
  void TakeChanges(std::vector<Bytes>* changes);
  void Mark(const Bytes& changed);
  void Put(const Bytes& bytes, bool is_hidden);

  std::vector<Bytes> before_;     // contents when changes were last taken or put
  std::vector<Watched> watched_;  // of the allocation in before_ with the same index
  std::vector<Bytes> released_;   // changes by CTAs that have ended
  std::vector<Bytes> unreleased_;
  std::vector<Bytes> own_;  // released changes by the running CTA
  bool sees_released_ = false;
  bool is_clean_ = true;
};

}  // namespace quire::gpu::emulator

#endif  // QUIRE_KERNELS_CUDA_EMULATOR_CTA_RULES_H_
