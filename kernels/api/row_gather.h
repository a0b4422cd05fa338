// RowGather puts rows together on rank 0 from the columns of all ranks. Of a row that a few of its
// greatest values decide, only those are sent: of each rank's part the greatest, as many as the row
// can need from there.
//
// Thread safety: as Communicator.
// Cost:          of a whole row its bytes, sent and copied twice. Else two passes over the part,
//                8 bytes a candidate, and on rank 0 a row that is filled. No allocation once it has
//                seen its largest rows.
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
  // What one value of a row is sent as.
  struct Candidate {
    float value = 0.0F;
    int32_t index = 0;  // in the part
  };

  // Candidates that each rank sends of the row; 0: its whole part.
  static int64_t NumSent(const GatherParams& params, int64_t row);
  void Pack(const GatherParams& params, int64_t width);
  void Unpack(const GatherParams& params);
  void PackCandidates(const float* part, int64_t width, int64_t count);
  float BoundOfGreatest(int64_t count);
  void CollectGreatest(const float* part, int64_t width, int64_t count);
  static void UnpackCandidates(const float* from, int64_t count, int64_t width, float* part);

  std::vector<float> packed_;    // this rank's rows, one after another
  std::vector<float> gathered_;  // all ranks' on rank 0
  std::vector<int64_t> sizes_;   // of each rank's
  std::vector<float> maxima_;    // of blocks of the part
  std::vector<float> sorted_;    // some of them
  std::vector<Candidate> found_;
};

}  // namespace quire

#endif  // QUIRE_KERNELS_API_ROW_GATHER_H_
