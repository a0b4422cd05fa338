#include "worker/model/weights_sum.h"

#include <algorithm>
#include <cstring>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include "common/base/splitmix64.h"
#include "common/model/digest.h"

namespace quire {
namespace {

constexpr size_t kLineBytes = WeightsSum::kWordsPerLine * sizeof(uint32_t);

// Returns the odd factor by which a line's sum is multiplied.
uint64_t FactorOfLine(uint64_t seed, uint64_t line) {
  uint64_t state = seed + line;
  return SplitMix64(state) | 1;
}

uint64_t SumOfWords(const std::byte* line, const WeightsSum::Factors& factors) {
  uint64_t sum = 0;
  for (size_t i = 0; i < factors.even.size(); ++i) {
    uint32_t words[2];
    std::memcpy(words, line + i * sizeof(words), sizeof(words));
    sum += uint64_t{words[0]} * static_cast<uint32_t>(factors.even[i]);
    sum += uint64_t{words[1]} * static_cast<uint32_t>(factors.odd[i]);
  }
  return sum;
}

#if defined(__x86_64__)
// Returns the same as SumOfWords, but adds eight words at a time. The factors fit in 32 bits, so
// 32-by-32-bit multiplications suffice. gcc cannot know that, hence the intrinsics.
[[gnu::target("avx2")]] uint64_t SumOfWordsAvx2(const std::byte* line,
                                                const WeightsSum::Factors& factors) {
  __m256i of_even = _mm256_setzero_si256();
  __m256i of_odd = _mm256_setzero_si256();
  const auto* const even = reinterpret_cast<const __m256i*>(factors.even.data());
  const auto* const odd = reinterpret_cast<const __m256i*>(factors.odd.data());
  for (size_t i = 0; i < kLineBytes / sizeof(__m256i); ++i, line += sizeof(__m256i)) {
    const __m256i words = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(line));
    of_even = _mm256_add_epi64(of_even, _mm256_mul_epu32(words, even[i]));
    of_odd = _mm256_add_epi64(of_odd, _mm256_mul_epu32(_mm256_srli_epi64(words, 32), odd[i]));
  }
  std::array<uint64_t, 4> sums;
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(sums.data()), _mm256_add_epi64(of_even, of_odd));
  return sums[0] + sums[1] + sums[2] + sums[3];
}

[[gnu::target("avx2")]] uint64_t SumOfLinesAvx2(std::span<const std::byte> lines,
                                                uint64_t seed,
                                                uint64_t line,
                                                const WeightsSum::Factors& factors) {
  uint64_t sum = 0;
  for (size_t at = 0; at < lines.size(); at += kLineBytes, ++line) {
    sum += SumOfWordsAvx2(lines.data() + at, factors) * FactorOfLine(seed, line);
  }
  return sum;
}
#endif

// Returns what these lines add to the sum. `line`: number of the first line. REQUIRES: `lines`
// holds whole lines.
uint64_t SumOfLines(std::span<const std::byte> lines,
                    uint64_t seed,
                    uint64_t line,
                    const WeightsSum::Factors& factors) {
#if defined(__x86_64__)
  if (__builtin_cpu_supports("avx2")) {
    return SumOfLinesAvx2(lines, seed, line, factors);
  }
#endif
  uint64_t sum = 0;
  for (size_t at = 0; at < lines.size(); at += kLineBytes, ++line) {
    sum += SumOfWords(lines.data() + at, factors) * FactorOfLine(seed, line);
  }
  return sum;
}

}  // namespace

WeightsSum::WeightsSum(std::string_view name) {
  Digest digest;
  digest.AddBytes(name);
  seed_ = digest.value();
  uint64_t state = seed_;
  for (size_t i = 0; i < kWordsPerLine / 2; ++i) {
    factors_.even[i] = SplitMix64(state) >> 32 | 1;
    factors_.odd[i] = SplitMix64(state) >> 32 | 1;
  }
}

uint64_t WeightsSum::Of(int64_t begin, std::span<const std::byte> bytes) const {
  auto line = static_cast<uint64_t>(begin) / kLineBytes;
  size_t in_line = static_cast<uint64_t>(begin) % kLineBytes;
  uint64_t sum = 0;
  while (!bytes.empty()) {
    if (in_line == 0 && bytes.size() >= kLineBytes) {
      const auto whole = bytes.first(bytes.size() / kLineBytes * kLineBytes);
      sum += SumOfLines(whole, seed_, line, factors_);
      line += whole.size() / kLineBytes;
      bytes = bytes.subspan(whole.size());
      continue;
    }
    // The line's other bytes count as zero. Sums are linear, so the calls that get the other bytes
    // add the rest.
    std::array<std::byte, kLineBytes> part = {};
    const size_t size = std::min(kLineBytes - in_line, bytes.size());
    std::memcpy(part.data() + in_line, bytes.data(), size);
    sum += SumOfLines(part, seed_, line, factors_);
    bytes = bytes.subspan(size);
    ++line;
    in_line = 0;
  }
  return sum;
}

}  // namespace quire
