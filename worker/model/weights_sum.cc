#include "worker/model/weights_sum.h"

#include <algorithm>
#include <array>
#include <cstring>

#include "common/base/splitmix64.h"
#include "common/model/digest.h"

namespace quire {

WeightsSum::WeightsSum(std::string_view name) {
  Digest digest;
  digest.AddBytes(name);
  seed_ = digest.value();
  uint64_t state = seed_;
  for (uint32_t& factor : factors_) {
    factor = static_cast<uint32_t>(SplitMix64(state) >> 32) | 1;
  }
}

uint64_t WeightsSum::Of(int64_t begin, std::span<const std::byte> bytes) const {
  constexpr size_t kLineBytes = kWordsPerLine * sizeof(uint32_t);
  uint64_t sum = 0;
  auto line_index = static_cast<uint64_t>(begin) / kLineBytes;
  size_t in_line = static_cast<uint64_t>(begin) % kLineBytes;
  for (; !bytes.empty(); ++line_index) {
    std::array<uint32_t, kWordsPerLine> line;
    const size_t size = std::min(kLineBytes - in_line, bytes.size());
    if (size < kLineBytes) {
      // The rest is zero here, and the other way round where it is read: the two add up.
      line = {};
      std::memcpy(reinterpret_cast<std::byte*>(line.data()) + in_line, bytes.data(), size);
    } else {
      std::memcpy(line.data(), bytes.data(), kLineBytes);
    }
    uint64_t of_line = 0;
    for (size_t i = 0; i < kWordsPerLine; ++i) {
      of_line += uint64_t{line[i]} * factors_[i];
    }
    uint64_t state = seed_ + line_index;
    sum += of_line * (SplitMix64(state) | 1);
    bytes = bytes.subspan(size);
    in_line = 0;
  }
  return sum;
}

}  // namespace quire
