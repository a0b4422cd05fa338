// GemmTuner times the algorithms that cuBLASLt suggests for a product, once for each weight shape
// and range of row counts (RowRange). It keeps the fastest algorithm in a file for the next start,
// unless the algorithms were timed on a weight in the L2 cache.
//
// Thread safety: one caller at a time; processes may share the file.
// Errors:        those of gemm.h. A file that cannot be read or written is no error:
//                GemmOptions::warn is called once, and the file is not used any more.
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

// Copies of a weight, used in turn so that no copy is in the L2 cache at its next use. This
// imitates a model's step, which reads all other weights between two uses of one weight. There are
// at most 64 copies, so copies of less than 1/64 of the L2 cache each can stay in the cache. This
// does little harm, because the product of so small a weight takes mostly launch time.
class RotatedWeight {
 public:
  // Allocates 256 MB at most, and less if the device has less. If the memory is too small for two
  // copies, makes no copies, and Next returns the weight itself.
  RotatedWeight(const GemmArgs& args, Stream stream);
  ~RotatedWeight();
  RotatedWeight(const RotatedWeight&) = delete;
  RotatedWeight& operator=(const RotatedWeight&) = delete;

  const void* Next();
  // Returns false if there was no memory for the copies, so that the weight may still be in the L2
  // cache when it is used again.
  bool is_read_from_memory() const { return !needs_copies_ || num_copies_ >= 2; }

 private:
  const void* const weight_;
  bool needs_copies_ = false;
  size_t stride_bytes_ = 0;
  size_t num_copies_ = 0;
  size_t next_ = 0;
  void* copies_ = nullptr;
};

class GemmTuner {
 public:
  explicit GemmTuner(const GemmOptions& options);

  // Reads the algorithms in the file. version: the version of cuBLASLt.
  int Open(uint64_t version);

  // Sets *algorithm to the fastest algorithm, and *is_final to true. If the fastest algorithm is
  // not known yet, times the library's suggestions. This is impossible while a graph is being
  // recorded: the call then sets *algorithm to the library's first suggestion and *is_final to
  // false, and a later call times the suggestions.
  int Choose(const GemmArgs& args,
             CublasLtProduct& product,
             Stream stream,
             cublasLtMatmulAlgo_t* algorithm,
             bool* is_final);

 private:
  GemmKey KeyOf(const GemmArgs& args) const;
  // Sets *milliseconds to the time of one run.
  int Time(CublasLtProduct& product,
           RotatedWeight& weight,
           const cublasLtMatmulAlgo_t& algorithm,
           Stream stream,
           float* milliseconds);
  int TimeRuns(int num_runs,
               CublasLtProduct& product,
               RotatedWeight& weight,
               const cublasLtMatmulAlgo_t& algorithm,
               Stream stream,
               float* milliseconds);
  // Adds the algorithm to the file.
  void Keep(const GemmKey& key, const GemmAlgorithm& algorithm);
  void GiveUpFile(const std::string& why);

  std::string path_;  // empty if there is no file
  const std::string device_;
  void (*const warn_)(const char* sentence);
  uint64_t version_ = 0;
  GemmCache found_;  // algorithms from the file, and algorithms found since
  GemmCache kept_;   // algorithms found since that belong in the file
};

}  // namespace quire::gpu

#endif  // QUIRE_KERNELS_CUDA_GEMM_TUNER_H_
