// FlipABit changes one bit of the text. The bytes choose the bit, so many executions reach every
// one.
//
// Thread safety: a free function of its arguments.
#ifndef QUIRE_TESTS_FUZZ_FLIP_A_BIT_H_
#define QUIRE_TESTS_FUZZ_FLIP_A_BIT_H_

#include <cstddef>
#include <string>

#include "common/base/fold_hash.h"

namespace quire {

// Where it was. REQUIRES: there is a byte.
inline size_t FlipABit(std::string* bytes) {
  FoldHash hash;
  hash.AddBytes(*bytes);
  const size_t place = hash.value() % bytes->size();
  (*bytes)[place] ^= static_cast<char>(1 << (hash.value() >> 61));
  return place;
}

}  // namespace quire

#endif  // QUIRE_TESTS_FUZZ_FLIP_A_BIT_H_
