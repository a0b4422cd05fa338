// GgufGolden is a record of testdata/gguf_blocks.bin or testdata/gguf_quantized.bin, which
// testdata/make_gguf_goldens.py wrote with ggml's Python package.
#ifndef QUIRE_TESTS_KERNELS_GGUF_GOLDEN_H_
#define QUIRE_TESTS_KERNELS_GGUF_GOLDEN_H_

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <fstream>
#include <sstream>
#include <string>
#include <vector>

#include "tests/kernels/float_bits.h"

namespace quire {

struct GgufGolden {
  std::string name;
  uint32_t number = 0;  // ggml's number of the type
  int32_t block_weights = 0;
  int32_t block_bytes = 0;
  std::vector<std::byte> blocks;
  std::vector<float> weights;
};

// Returns the records of a file in testdata. A file that is missing or cut gives fewer records.
inline std::vector<GgufGolden> ReadGgufGoldens(const std::string& file_name) {
  std::ifstream file("tests/kernels/testdata/" + file_name, std::ios::binary);
  std::vector<GgufGolden> goldens;
  for (std::string line; std::getline(file, line);) {
    GgufGolden golden;
    size_t num_blocks = 0;
    std::istringstream(line) >> golden.name >> golden.number >> golden.block_weights >>
        golden.block_bytes >> num_blocks;
    std::string bytes(num_blocks * static_cast<size_t>(golden.block_bytes), '\0');
    std::string weights(num_blocks * static_cast<size_t>(golden.block_weights) * sizeof(float),
                        '\0');
    if (!file.read(bytes.data(), static_cast<std::streamsize>(bytes.size())) ||
        !file.read(weights.data(), static_cast<std::streamsize>(weights.size()))) {
      break;
    }
    golden.blocks.resize(bytes.size());
    std::memcpy(golden.blocks.data(), bytes.data(), bytes.size());
    golden.weights.resize(weights.size() / sizeof(float));
    std::memcpy(golden.weights.data(), weights.data(), weights.size());
    goldens.push_back(golden);
  }
  return goldens;
}

// The bits of the weights, so that a comparison tells -0 from 0.
inline std::vector<uint32_t> BitsOf(const std::vector<float>& weights) {
  std::vector<uint32_t> bits;
  bits.reserve(weights.size());
  for (const float weight : weights) {
    bits.push_back(BitsOf(weight));
  }
  return bits;
}

}  // namespace quire

#endif  // QUIRE_TESTS_KERNELS_GGUF_GOLDEN_H_
