#include "worker/model/alibi.h"

#include <bit>
#include <cmath>

namespace quire {
namespace {

// Returns the first of `num_heads` slopes, rounded to fp32 as in transformers. The other slopes are
// powers of the first.
double FirstSlope(uint32_t num_heads) { return static_cast<float>(std::exp2(-8.0 / num_heads)); }

}  // namespace

std::vector<float> AlibiSlopes(int32_t num_heads) {
  const auto wanted = static_cast<size_t>(num_heads);
  const uint32_t power_of_two = std::bit_floor(static_cast<uint32_t>(num_heads));
  std::vector<float> slopes;
  const double first = FirstSlope(power_of_two);
  for (double slope = first; slopes.size() < power_of_two; slope *= first) {
    slopes.push_back(static_cast<float>(slope));
  }
  const double between = FirstSlope(2 * power_of_two);
  for (double slope = between; slopes.size() < wanted; slope *= between * between) {
    slopes.push_back(static_cast<float>(slope));
  }
  return slopes;
}

}  // namespace quire
