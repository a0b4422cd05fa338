#include "kernels/api/row_gather.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <functional>
#include <limits>

namespace quire {
namespace {

constexpr int64_t kBlock = 64;

// Stands for a value that was not sent. No sent value is lower, so sampling never prefers a value
// that was not sent.
constexpr float kNotSent = std::numeric_limits<float>::lowest();

// Returns NaN if one of the `count` values is a NaN or an infinity, else the greatest value. Tests
// the bits of the exponents, because a maximum by comparison would lose a NaN. The compiler
// vectorizes this test.
float MaxOfBlock(const float* values, int64_t count) {
  constexpr uint32_t kExponent = 0x7F800000;
  uint32_t is_finite = 1;
  float max = values[0];
  for (int64_t i = 0; i < count; ++i) {
    is_finite &=
        static_cast<uint32_t>((std::bit_cast<uint32_t>(values[i]) & kExponent) != kExponent);
    max = values[i] > max ? values[i] : max;
  }
  return is_finite != 0 ? max : std::numeric_limits<float>::quiet_NaN();
}

}  // namespace

int64_t RowGather::NumSent(const GatherParams& params, int64_t row) {
  const int64_t wanted =
      params.num_candidates.empty() ? 0 : params.num_candidates[static_cast<size_t>(row)];
  // A rank sends candidates (8 bytes each) or its whole part of the row (4 bytes a value). It sends
  // candidates only if they take at most half of the bytes of the narrowest part. The ranks must
  // decide alike, else rank 0 would misread what it receives. They do: all have the same widths and
  // the same `wanted`.
  const int64_t narrowest = *std::min_element(params.widths.begin(), params.widths.end());
  return wanted * 4 <= narrowest ? wanted : 0;
}

void RowGather::Gather(const GatherParams& params, Communicator& group) {
  int64_t num_candidates = 0;
  int64_t num_whole_rows = 0;
  for (int64_t row = 0; row < params.num_rows; ++row) {
    const int64_t sent = NumSent(params, row);
    num_candidates += sent;
    num_whole_rows += sent == 0 ? 1 : 0;
  }
  if (num_candidates == 0) {
    group.Gather(params.num_rows, params.widths, params.part, params.whole);
    return;
  }
  sizes_.clear();
  int64_t total = 0;
  for (const int64_t width : params.widths) {
    sizes_.push_back(num_whole_rows * width + 2 * num_candidates);
    total += sizes_.back();
  }
  const auto rank = static_cast<size_t>(group.rank());
  packed_.clear();
  Pack(params, params.widths[rank]);
  if (rank == 0) {
    gathered_.resize(static_cast<size_t>(total));
  }
  group.Gather(1, sizes_, packed_.data(), gathered_.data());
  if (rank == 0) {
    Unpack(params);
  }
}

void RowGather::Pack(const GatherParams& params, int64_t width) {
  for (int64_t row = 0; row < params.num_rows; ++row) {
    const float* part = params.part + row * width;
    if (const int64_t count = NumSent(params, row); count > 0) {
      PackCandidates(part, width, count);
    } else {
      packed_.insert(packed_.end(), part, part + width);
    }
  }
}

void RowGather::PackCandidates(const float* part, int64_t width, int64_t count) {
  CollectGreatest(part, width, count);
  for (const Candidate& candidate : found_) {
    packed_.push_back(candidate.value);
    packed_.push_back(std::bit_cast<float>(candidate.index));
  }
}

// Returns a bound that at least `count` values of the part reach: the count-th greatest element of
// maxima_, or the lowest float if maxima_ has fewer elements.
float RowGather::BoundOfGreatest(int64_t count) {
  if (count > static_cast<int64_t>(maxima_.size())) {
    return kNotSent;
  }
  sorted_ = maxima_;
  std::nth_element(sorted_.begin(), sorted_.begin() + count - 1, sorted_.end(), std::greater<>());
  return sorted_[static_cast<size_t>(count - 1)];
}

// Collects the `count` greatest values; ties go to the lowest index, as in sampling. If a value of
// the part is not finite, all candidates are NaN, because such a row cannot be sampled.
void RowGather::CollectGreatest(const float* part, int64_t width, int64_t count) {
  maxima_.clear();
  for (int64_t begin = 0; begin < width; begin += kBlock) {
    maxima_.push_back(MaxOfBlock(part + begin, std::min(kBlock, width - begin)));
  }
  found_.clear();
  if (std::any_of(maxima_.begin(), maxima_.end(), [](float max) { return std::isnan(max); })) {
    found_.assign(static_cast<size_t>(count), {std::numeric_limits<float>::quiet_NaN(), 0});
    return;
  }
  const float bound = BoundOfGreatest(count);
  for (int64_t i = 0; i < width; ++i) {
    if (maxima_[static_cast<size_t>(i / kBlock)] < bound) {
      i += kBlock - 1;  // skips these kBlock values
    } else if (part[i] >= bound) {
      found_.push_back({part[i], static_cast<int32_t>(i)});
    }
  }
  const auto greater = [](const Candidate& a, const Candidate& b) {
    return a.value > b.value || (a.value == b.value && a.index < b.index);
  };
  std::partial_sort(found_.begin(), found_.begin() + count, found_.end(), greater);
  found_.resize(static_cast<size_t>(count));
}

void RowGather::Unpack(const GatherParams& params) {
  float* whole = params.whole;
  int64_t num_candidates = 0;  // candidates that each rank sent for earlier rows
  int64_t num_whole_rows = 0;  // earlier rows that were sent whole
  for (int64_t row = 0; row < params.num_rows; ++row) {
    const int64_t count = NumSent(params, row);
    const float* of_rank = gathered_.data();
    for (size_t rank = 0; rank < sizes_.size(); ++rank) {
      const int64_t width = params.widths[rank];
      const float* from = of_rank + 2 * num_candidates + num_whole_rows * width;
      if (count == 0) {
        std::copy_n(from, width, whole);
      } else {
        UnpackCandidates(from, count, width, whole);
      }
      whole += width;
      of_rank += sizes_[rank];
    }
    num_candidates += count;
    num_whole_rows += count == 0 ? 1 : 0;
  }
}

void RowGather::UnpackCandidates(const float* from, int64_t count, int64_t width, float* part) {
  std::fill_n(part, width, kNotSent);
  for (int64_t i = 0; i < count; ++i) {
    // A corrupted index from another process must not lead to a write outside the part.
    const auto index = std::bit_cast<uint32_t>(from[2 * i + 1]);
    part[index < width ? index : 0] = from[2 * i];
  }
}

}  // namespace quire
