// ReservingEngine serves like the PagedAttention paper's three versions of Orca: iteration-level
// scheduling, first come first served. Each sequence reserves one run of adjacent slots when it
// begins, and frees the run when it ends. A slot holds K and V of one token. The sequences of a
// request begin together and share nothing: each has its own copy of the prompt. Copies of K and V
// from beam to beam take no time.
//
// Thread safety: not thread-safe.
// Source:        Kwon et al. 2023, section 6.1, "Baseline 2: Orca".
#ifndef QUIRE_SCHEDULER_SIM_RESERVING_ENGINE_H_
#define QUIRE_SCHEDULER_SIM_RESERVING_ENGINE_H_

#include <cstdint>
#include <deque>
#include <vector>

#include "scheduler/sim/buddy_allocator.h"
#include "scheduler/sim/simulation.h"

namespace quire {

// Returns the number of slots that a policy reserves for a sequence, before the allocator rounds
// this number up. REQUIRES: policy is one of Orca's.
int32_t ReservedSlots(MemoryPolicy policy, const SimRequest& request, int32_t max_model_len);

// Returns true if an empty pool has room for the reserved slots of all sequences of the request.
// REQUIRES: config.policy is one of Orca's.
bool FitsReserved(const SimConfig& config, const SimRequest& request);

class ReservingEngine : public Engine {
 public:
  // REQUIRES: Validate(config, trace) is OK for the trace that is to be served.
  explicit ReservingEngine(const SimConfig& config);

  void Arrive(const SimRequest& request, size_t index, Instant now) override;
  bool BeginStep(Instant now, EngineStep* step) override;
  void EndStep(Instant now, std::vector<size_t>* finished) override;
  int64_t num_free_slots() const override { return allocator_.num_free_slots(); }
  int64_t num_slots() const override { return allocator_.num_slots(); }

 private:
  struct Running {
    SimRequest request;
    size_t index = 0;
    std::vector<BuddyAllocator::Chunk> chunks;  // one for each sequence
    int32_t num_reserved = 0;                   // slots that each sequence asked for
    int32_t num_output_tokens = 0;              // output tokens of each sequence so far
  };
  struct Waiting {
    SimRequest request;
    size_t index = 0;
  };

  void AdmitWaiting();
  // Returns a run for each sequence of a request, or an empty vector if not all fit.
  std::vector<BuddyAllocator::Chunk> Reserve(int32_t num_slots);
  void Free(const std::vector<BuddyAllocator::Chunk>& chunks);
  static int32_t NumTokensToCompute(const Running& running);

  SimConfig config_;
  BuddyAllocator allocator_;
  std::deque<Waiting> waiting_;
  std::vector<Running> running_;  // oldest first
};

}  // namespace quire

#endif  // QUIRE_SCHEDULER_SIM_RESERVING_ENGINE_H_
