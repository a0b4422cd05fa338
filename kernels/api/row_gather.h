// RowGather assembles rows on rank 0. Each rank has some columns of every row, its part. If only
// the n greatest values of a row matter, and n is at most a quarter of the narrowest part, each
// rank sends only the n greatest values of its part, the candidates.
//
// Thread safety: as Communicator.
// Cost:          whole parts: one transfer and two copies of their bytes. Candidates: two passes
//                over a part, 8 bytes sent per candidate, and one row that rank 0 fills. Allocates
//                only if rows need more room than in all earlier calls.
#ifndef QUIRE_KERNELS_API_ROW_GATHER_H_
#define QUIRE_KERNELS_API_ROW_GATHER_H_

#include <cstdint>
#include <vector>

#include "kernels/api/collective.h"
#include "kernels/collective/communicator.h"

namespace quire {

class RowGather {
 public:
  // As KernelBackend::Gather.
  void Gather(const GatherParams& params, Communicator& group);

 private:
  // One value of a row in the form in which it is sent.
  struct Candidate {
    float value = 0.0F;
    int32_t index = 0;  // the value's column in the part
  };

  // Returns how many candidates each rank sends for the row; 0: each rank sends its whole part.
  static int64_t NumSent(const GatherParams& params, int64_t row);
  void Pack(const GatherParams& params, int64_t width);
  void Unpack(const GatherParams& params);
  void PackCandidates(const float* part, int64_t width, int64_t count);
  float BoundOfGreatest(int64_t count);
  void CollectGreatest(const float* part, int64_t width, int64_t count);
  static void UnpackCandidates(const float* from, int64_t count, int64_t width, float* part);

  std::vector<float> packed_;    // this rank's rows as they are sent
  std::vector<float> gathered_;  // packed_ of all ranks, on rank 0
  std::vector<int64_t> sizes_;   // floats that each rank sends
  std::vector<float> maxima_;    // maximum of each 64 values; NaN if a value is not finite
  std::vector<float> sorted_;    // maxima_, partly sorted
  std::vector<Candidate> found_;
};

}  // namespace quire

#endif  // QUIRE_KERNELS_API_ROW_GATHER_H_
