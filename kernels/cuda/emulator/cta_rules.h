// Rules of a test for the CTAs of later launches: the order in which they run, and whether their
// accesses to global memory are watched.
//
// On a device, CTAs run in any order and side by side. The emulator runs them one by one, which
// would hide errors of kernels whose CTAs count arrivals. A watch detects such errors:
// - It is a fault if a CTA changes bytes that another CTA of the launch has changed. This detects a
//   CTA that folds although it is not the last to arrive. The last CTA would overwrite the wrong
//   result.
// - A CTA reads NaN where other CTAs of the launch have changed memory, until it calls
//   AddAcquireRelease. Changes that a CTA makes after its last AddAcquireRelease stay NaN for other
//   CTAs. This detects reads that nothing orders.
// Bytes of atomic operations are exempt.
//
// Limits of a watch: it does not see a write that leaves the bytes as they were, so a test must
// fill outputs with contents that no fold computes. An AddAcquireRelease of one counter counts for
// all counters. A watch covers only kernels that refer to at most 16 MiB.
//
// Thread safety: each thread has its own rules, which hold for its launches.
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
  uint64_t seed = 0;  // used by kShuffled
  bool watches_memory = false;
};

// Sets the calling thread's rules. Returns the former rules, which are CtaRules() at first.
CtaRules SetCtaRules(CtaRules rules);

// Returns which of num_ctas CTAs runs as the i-th one.
uint64_t NthCta(uint64_t i, uint64_t num_ctas);

// Watches one launch. Call Begin before the first CTA, EndCta after each, and End after the last.
class CtaWatch {
 public:
  // Begins to watch a launch if the rules say so. references: memory that the launched operation
  // refers to, or null to watch nothing.
  void Begin(const References* references);
  // Exempts an atomic operation's bytes.
  void Exempt(const void* address, size_t bytes);
  // Makes what the running CTA has changed so far visible to later CTAs. Shows the running CTA what
  // earlier CTAs made visible in this way.
  void AcquireRelease();
  // Hides the changes of all CTAs that have ended: sets the bytes to NaN. Returns false if a CTA
  // has changed bytes that another CTA of the launch had changed.
  bool EndCta();
  // Writes all hidden changes back to memory.
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

  std::vector<Bytes> before_;     // contents at the last call of TakeChanges or Put
  std::vector<Watched> watched_;  // entry i is for the allocation of before_[i]
  std::vector<Bytes> released_;   // released changes by CTAs that have ended
  std::vector<Bytes> unreleased_;
  std::vector<Bytes> own_;  // released changes by the running CTA
  bool sees_released_ = false;
  bool is_clean_ = true;
};

}  // namespace quire::gpu::emulator

#endif  // QUIRE_KERNELS_CUDA_EMULATOR_CTA_RULES_H_
