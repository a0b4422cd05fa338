// GemmTuner finds the fastest algorithm for a product: it times those that the library names, once
// for each range of row counts, and keeps what it found in a file for the next start.
//
// Thread safety: one caller at a time; the file may be shared by processes.
// Errors:        those of gemm.h. A file that cannot be read or written is no error: it is told to
//                GemmOptions::warn once, and left alone from then on.
#ifndef QUIRE_KERNELS_CUDA_GEMM_TUNER_H_
#define QUIRE_KERNELS_CUDA_GEMM_TUNER_H_

#include <cstddef>
#include <cstdint>
#include <string>

#include <cublasLt.h>

#include "kernels/cuda/cublaslt_product.h"
#include "kernels/cuda/gemm.h"
#include "kernels/cuda/gemm_cache.h"

namespace quire::gpu {

// Copies of a weight to use in turns, so that none is in the L2 cache when its turn comes: in a
// step of a model all other weights pass between two uses of one. Weights under 4 MB, whose time is
// that of the launch, may be.
class RotatedWeight {
 public:
  // 256 MB of memory at most, until it ends. Where there is none, the weight alone.
  RotatedWeight(const GemmArgs& args, Stream stream);
  ~RotatedWeight();
  RotatedWeight(const RotatedWeight&) = delete;
  RotatedWeight& operator=(const RotatedWeight&) = delete;

  const void* Next();

 private:
  const void* const weight_;
  size_t stride_bytes_ = 0;
  size_t num_copies_ = 0;
  size_t next_ = 0;
  void* copies_ = nullptr;
};

class GemmTuner {
 public:
  explicit GemmTuner(const GemmOptions& options);

  // version: of the library.
  int Open(uint64_t version);

  // is_final: false when nothing could be timed because a graph is being recorded. Then the
  // algorithm is the library's first, and another call will time.
  int Choose(const GemmArgs& args,
             CublasLtProduct& product,
             Stream stream,
             cublasLtMatmulAlgo_t* algorithm,
             bool* is_final);

 private:
  GemmKey KeyOf(const GemmArgs& args) const;
  int Time(CublasLtProduct& product,
           RotatedWeight& weight,
           const cublasLtMatmulAlgo_t& algorithm,
           Stream stream,
           float* milliseconds);
  void Keep(const GemmKey& key, const cublasLtMatmulAlgo_t& algorithm);
  void GiveUpFile(const std::string& why);

  std::string path_;  // empty: no file
  const std::string device_;
  void (*const warn_)(const char* sentence);
  uint64_t version_ = 0;
  GemmCache found_;  // in the file when it was read, and since then
};

}  // namespace quire::gpu

#endif  // QUIRE_KERNELS_CUDA_GEMM_TUNER_H_
