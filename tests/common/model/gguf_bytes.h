// GgufBytes writes a GGUF file for tests. It checks nothing, so that a test can write a file with
// one fault.
//
// Thread safety: one caller at a time.
#ifndef QUIRE_TESTS_COMMON_MODEL_GGUF_BYTES_H_
#define QUIRE_TESTS_COMMON_MODEL_GGUF_BYTES_H_

#include <bit>
#include <concepts>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "common/model/ggml_type.h"
#include "common/model/gguf_metadata.h"

namespace quire {

// Returns the number's bytes, little endian.
template <std::integral T>
std::string LittleEndian(T number) {
  std::string bytes;
  for (size_t i = 0; i < sizeof(T); ++i) {
    bytes.push_back(static_cast<char>(static_cast<uint64_t>(number) >> (8 * i)));
  }
  return bytes;
}
inline std::string LittleEndian(float value) {
  return LittleEndian(std::bit_cast<uint32_t>(value));
}
inline std::string LittleEndian(double value) {
  return LittleEndian(std::bit_cast<uint64_t>(value));
}
// Returns the length and the text.
inline std::string LittleEndian(std::string_view text) {
  return LittleEndian(uint64_t{text.size()}).append(text);
}

struct GgufBytes {
  struct Key {
    std::string name;
    uint32_t type = 0;
    std::string value;  // the bytes after the type
  };
  struct Tensor {
    std::string name;
    std::vector<uint64_t> dims;  // in the file's order: the contiguous dimension first
    uint32_t type = 0;
    uint64_t offset = 0;
  };

  std::string magic = "GGUF";
  uint32_t version = 3;
  std::vector<Key> keys;
  std::vector<Tensor> tensors;
  // Stand in the header for the numbers of keys and tensors, if they are not 0.
  uint64_t num_keys = 0;
  uint64_t num_tensors = 0;
  uint64_t alignment = 32;  // of the data; the key general.alignment is up to the test
  std::string data;

  template <typename T>
  void Add(std::string_view name, GgufValueType type, T value) {
    keys.push_back({std::string(name), static_cast<uint32_t>(type), LittleEndian(value)});
  }
  void Add(std::string_view name, std::string_view text) {
    Add(name, GgufValueType::kString, text);
  }
  void AddUint32(std::string_view name, uint32_t number) {
    Add(name, GgufValueType::kUint32, number);
  }
  // T: the type of an element in the file.
  template <typename T>
  void AddArray(std::string_view name, GgufValueType element_type, const std::vector<T>& values) {
    std::string bytes =
        LittleEndian(static_cast<uint32_t>(element_type)) + LittleEndian(uint64_t{values.size()});
    for (const T& value : values) {
      bytes += LittleEndian(value);
    }
    keys.push_back({std::string(name), static_cast<uint32_t>(GgufValueType::kArray), bytes});
  }
  // Adds a tensor at the next free offset, with `bytes` as its data.
  void AddTensor(std::string_view name,
                 std::vector<uint64_t> dims,
                 GgmlType type,
                 std::string_view bytes) {
    data.resize((data.size() + alignment - 1) / alignment * alignment);
    tensors.push_back(
        {std::string(name), std::move(dims), static_cast<uint32_t>(type), data.size()});
    data += bytes;
  }

  std::string Header() const {
    std::string file = magic + LittleEndian(version);
    file += LittleEndian(num_tensors != 0 ? num_tensors : uint64_t{tensors.size()});
    file += LittleEndian(num_keys != 0 ? num_keys : uint64_t{keys.size()});
    for (const Key& key : keys) {
      file += LittleEndian(std::string_view(key.name)) + LittleEndian(key.type) + key.value;
    }
    for (const Tensor& tensor : tensors) {
      file += LittleEndian(std::string_view(tensor.name));
      file += LittleEndian(static_cast<uint32_t>(tensor.dims.size()));
      for (uint64_t size : tensor.dims) {
        file += LittleEndian(size);
      }
      file += LittleEndian(tensor.type) + LittleEndian(tensor.offset);
    }
    return file;
  }
  std::string File() const {
    std::string file = Header();
    file.resize((file.size() + alignment - 1) / alignment * alignment);
    return file + data;
  }
};

}  // namespace quire

#endif  // QUIRE_TESTS_COMMON_MODEL_GGUF_BYTES_H_
