// Matrix products by cuBLASLt. GemmTuner times the algorithms that the library suggests, once for
// each weight shape and range of row counts. It keeps the fastest algorithm in memory, and in a
// file for the next start.
//
// Batch-invariant products (GemmOptions): each weight shape has one algorithm for all row counts,
// the library's first suggestion for kMostTileRows rows without split-k. If the algorithm does not
// support a row count, the product is cut into tiles of a supported row count, and a partial tile
// is padded.
#include <map>
#include <memory>
#include <tuple>
#include <vector>

#include "kernels/cuda/cublaslt.h"
#include "kernels/cuda/cublaslt_product.h"
#include "kernels/cuda/gemm.h"
#include "kernels/cuda/gemm_tiles.h"
#include "kernels/cuda/gemm_tuner.h"

namespace quire::gpu {
namespace {

// How products of one shape are computed.
struct Plan {
  cublasLtMatmulAlgo_t algorithm = {};
  int64_t tile_rows = 0;  // rows of a tile; 0 if the product is computed in one piece
};

// Rows, out_features, in_features, has bias, dtype, y_dtype.
using Shape = std::tuple<int64_t, int64_t, int64_t, bool, DType, DType>;

Shape ShapeOf(const GemmArgs& args) {
  return {args.rows,
          args.out_features,
          args.in_features,
          args.bias != nullptr,
          args.dtype,
          args.y_dtype};
}

class Gemm {
 public:
  explicit Gemm(const GemmOptions& options)
      : invariant_(options.batch_invariant != 0), tuner_(options) {}

  int Open(const char* path) {
    const int error = library_.Open(path);
    return error != 0 ? error : tuner_.Open(library_.version());
  }

  int Check(GemmArgs args) {
    if (args.bias != nullptr) {
      // The library checks the bias pointer's alignment, but callers of CheckGemm may pass any
      // pointer. So the address of the workspace, which is aligned, replaces the pointer.
      args.bias = library_.workspace();
    }
    CublasLtProduct product(library_);
    std::vector<cublasLtMatmulAlgo_t> algorithms;
    const bool is_there = product.Describe(args) == 0 &&
                          product.Candidates(/*split_k=*/!invariant_, &algorithms) == 0;
    return is_there ? 0 : kUnsupported;
  }

  bool IsPlanned(const GemmArgs& args) const { return plans_.contains(ShapeOf(args)); }

  int Run(const GemmArgs& args, Stream stream) {
    CublasLtProduct product(library_);
    if (const int error = product.Describe(args); error != 0) {
      return error;
    }
    auto plan = plans_.find(ShapeOf(args));
    if (plan == plans_.end()) {
      Plan made;
      bool is_final = true;
      const int error = invariant_
                            ? PlanInvariant(args, product, &made)
                            : tuner_.Choose(args, product, stream, &made.algorithm, &is_final);
      if (error != 0) {
        return error;
      }
      if (!is_final) {
        return product.Multiply(made.algorithm, stream);
      }
      plan = plans_.emplace(ShapeOf(args), made).first;
    }
    const Plan& chosen = plan->second;
    if (chosen.tile_rows == 0) {
      return product.Multiply(chosen.algorithm, stream);
    }
    return tiles_.Run(args, chosen.tile_rows, stream, [&](const GemmArgs& tile) {
      CublasLtProduct part(library_);
      const int error = part.Describe(tile);
      return error != 0 ? error : part.Multiply(chosen.algorithm, stream);
    });
  }

 private:
  int PlanInvariant(const GemmArgs& args, CublasLtProduct& product, Plan* plan) {
    if (const int error = Pinned(args, &plan->algorithm); error != 0) {
      return error;
    }
    if (product.Takes(plan->algorithm)) {
      return 0;
    }
    plan->tile_rows = TileRows(args.rows, [&](int64_t rows) {
      GemmArgs tile = args;
      tile.rows = rows;
      CublasLtProduct part(library_);
      return part.Describe(tile) == 0 && part.Takes(plan->algorithm);
    });
    return plan->tile_rows == 0 ? kUnsupported : 0;
  }

  // Sets *algorithm to the library's first suggestion for this product with kMostTileRows rows.
  int Pinned(const GemmArgs& args, cublasLtMatmulAlgo_t* algorithm) {
    GemmArgs middling = args;
    middling.rows = kMostTileRows;
    auto found = pinned_.find(ShapeOf(middling));
    if (found == pinned_.end()) {
      CublasLtProduct product(library_);
      std::vector<cublasLtMatmulAlgo_t> algorithms;
      int error = product.Describe(middling);
      error = error != 0 ? error : product.Candidates(/*split_k=*/false, &algorithms);
      if (error != 0) {
        return error;
      }
      found = pinned_.emplace(ShapeOf(middling), algorithms[0]).first;
    }
    *algorithm = found->second;
    return 0;
  }

  const bool invariant_;
  CublasLt library_;
  GemmTuner tuner_;
  GemmTiles tiles_;
  std::map<Shape, Plan> plans_;
  // Algorithms of batch-invariant products. The keys have kMostTileRows as their row count.
  std::map<Shape, cublasLtMatmulAlgo_t> pinned_;
};

}  // namespace

int CreateGemm(const GemmOptions& options, void** gemm) {
  auto created = std::make_unique<Gemm>(options);
  if (const int error = created->Open(options.library_path); error != 0) {
    return error;
  }
  *gemm = created.release();
  return 0;
}

int DestroyGemm(void* gemm) {
  delete static_cast<Gemm*>(gemm);
  return 0;
}

int CheckGemm(void* gemm, const GemmArgs& args) {
  return IsValidProduct(args) ? static_cast<Gemm*>(gemm)->Check(args) : kUnsupported;
}

int IsGemmPlanned(void* gemm, const GemmArgs& args, bool* is_planned) {
  *is_planned = static_cast<const Gemm*>(gemm)->IsPlanned(args);
  return 0;
}

int RunGemm(void* gemm, const GemmArgs& args, Stream stream) {
  return IsValidProduct(args) ? static_cast<Gemm*>(gemm)->Run(args, stream) : kUnsupported;
}

}  // namespace quire::gpu
