#include "kernels/gpu/staged_group.h"

#include <algorithm>
#include <numeric>
#include <span>

#include "common/base/check.h"
#include "kernels/cuda/device/element.h"

namespace quire {

StagedGroup::~StagedGroup() { Require(api_.synchronize(stream_), "upload sum"); }

void StagedGroup::AllReduce(const AllReduceParams& params) {
  QUIRE_CHECK(params.bias == nullptr);
  const int64_t elements = params.num_rows * params.width;
  const int64_t bytes = elements * SizeOf(params.dtype);
  Reserve(bytes);
  Download(params.data, bytes);
  if (params.merge == Merge::kDisjoint) {
    // `bytes` is a whole number of words, since rows are multiples of 16 bytes (gpu_ops.h).
    ranks_->AllReduceBits(std::span(reinterpret_cast<uint32_t*>(staging_.data()),
                                    static_cast<size_t>(bytes) / sizeof(uint32_t)));
  } else if (params.dtype == DType::kF32) {
    ranks_->AllReduce(std::span(reinterpret_cast<float*>(staging_.data()),  //
                                static_cast<size_t>(elements)));
  } else if (params.dtype == DType::kBF16) {
    AllReduceAs<gpu::Bf16>(static_cast<size_t>(elements));
  } else {
    AllReduceAs<gpu::F16>(static_cast<size_t>(elements));
  }
  Upload(params.data, staging_.data(), bytes);
}

template <typename T>
void StagedGroup::AllReduceAs(size_t elements) {
  auto* stored = reinterpret_cast<T*>(staging_.data());
  sums_.resize(elements);
  std::transform(
      stored, stored + elements, sums_.begin(), [](T value) { return gpu::ToFloat(value); });
  ranks_->AllReduce(sums_);
  std::transform(sums_.begin(), sums_.end(), stored, gpu::FromFloat<T>);
}

void StagedGroup::Gather(const GatherParams& params) {
  const auto bytes = [&](int64_t width) {
    return params.num_rows * width * int64_t{sizeof(float)};
  };
  const int64_t part = bytes(params.widths[static_cast<size_t>(ranks_->rank())]);
  const int64_t whole =
      ranks_->rank() != 0
          ? 0
          : bytes(std::accumulate(params.widths.begin(), params.widths.end(), int64_t{0}));
  Reserve(part + whole);
  Download(params.part, part);
  auto* gathered = reinterpret_cast<float*>(staging_.data() + part);
  ranks_->Gather(
      params.num_rows, params.widths, reinterpret_cast<float*>(staging_.data()), gathered);
  if (whole > 0) {
    Upload(params.whole, staging_.data() + part, whole);
  }
}

// Waits before it frees the staging memory, which the previous operation's upload may still read.
void StagedGroup::Reserve(int64_t bytes) {
  if (bytes > staging_.capacity_bytes()) {
    Require(api_.synchronize(stream_), "upload sum");
    RequireMemory(staging_.Reserve(bytes));
  }
}

// The previous operation's upload reads the same staging memory. Stream order makes the download
// wait for that upload.
void StagedGroup::Download(const void* device, int64_t bytes) {
  Require(api_.copy_to_host(staging_.data(), device, static_cast<size_t>(bytes), stream_),
          "download sum");
  Require(api_.synchronize(stream_), "step");
}

void StagedGroup::Upload(void* device, const std::byte* host, int64_t bytes) {
  Require(api_.copy_to_device(device, host, static_cast<size_t>(bytes), stream_), "upload sum");
}

}  // namespace quire
