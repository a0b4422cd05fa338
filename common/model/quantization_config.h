// QuantizationConfig is quantization_config of config.json. It tells which modules of a Hugging
// Face model directory are quantized, and how the files store their matrices.
//
// A quantized matrix holds codes: integers of 4 or 8 bits, or 8-bit floats. A weight is scale *
// code, or scale * (code - zero). Formats: compressed-tensors (pack-quantized, int-quantized,
// float-quantized, naive-quantized), AWQ (gemm), GPTQ (v1 and v2), FP8.
//
// Scales of activations in the files are ignored, because Quire computes with the decoded weights.
//
// Thread safety: value types; const functions are safe from any thread.
// Source:        compressed-tensors' QuantizationConfig; AutoAWQ; AutoGPTQ and GPTQModel;
//                transformers' FineGrainedFP8Config and FbgemmFp8Config.
#ifndef QUIRE_COMMON_MODEL_QUANTIZATION_CONFIG_H_
#define QUIRE_COMMON_MODEL_QUANTIZATION_CONFIG_H_

#include <cstdint>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"

#include "common/model/config_reader.h"
#include "common/model/digest.h"
#include "common/model/name_pattern.h"

namespace quire {

// Name, type and shape of the tensor that holds the codes of a quantized matrix [rows, cols].
enum class WeightStorage : uint8_t {
  kPacked = 1,  // weight_packed I32 [rows, cols / (32 / bits)]
  kInt8 = 2,    // weight I8 [rows, cols]
  kFloat8 = 3,  // weight F8_E4M3 [rows, cols]
  kGptq = 4,    // qweight I32 [cols / (32 / bits), rows]
  kAwq = 5,     // qweight I32 [cols, rows / 8]
};

struct WeightScheme {
  WeightStorage storage = WeightStorage::kPacked;
  int32_t bits = 8;  // bits of a code: 4 or 8
  // Numbers of consecutive rows and columns that share a scale. group_cols 0: a scale covers whole
  // rows; the file has one scale for each row, or one for the whole matrix.
  int32_t group_rows = 1;
  int32_t group_cols = 0;
  bool is_symmetric = true;         // true: every zero is 0, and the file stores no zeros
  bool needs_group_index = false;   // the file stores the group of each column (act-order)
  bool has_zeros_less_one = false;  // the file stores zero - 1 in place of zero (GPTQ v1)

  friend bool operator==(const WeightScheme&, const WeightScheme&) = default;
};

struct QuantizationConfig {
  // The scheme of all modules that match at least one target.
  struct Group {
    std::vector<NamePattern> targets;
    WeightScheme scheme;

    friend bool operator==(const Group&, const Group&) = default;
  };

  std::vector<Group> groups;        // empty: no module is quantized
  std::vector<NamePattern> ignore;  // matching modules are not quantized, even if a group matches

  // Returns the scheme of a module of a class ("Linear", "Embedding"), or nullptr if the module is
  // not quantized. If several groups match, a target that is the module's name comes first, then a
  // regular expression, then a class. Errors: those of NamePattern::Matches.
  absl::StatusOr<const WeightScheme*> SchemeFor(std::string_view module,
                                                std::string_view class_name) const;

  friend bool operator==(const QuantizationConfig&, const QuantizationConfig&) = default;
};

// Reads quantization_config, or compression_config, of config.json. Without such a field, no module
// is quantized. Errors: kInvalidArgument, reason CONFIG, with the field's name; the error of an
// unsupported format names the nearest supported one.
absl::StatusOr<QuantizationConfig> ParseQuantizationConfig(const ConfigReader& config_json);

// Adds every field to the digest.
void AddTo(Digest& digest, const QuantizationConfig& config);

}  // namespace quire

#endif  // QUIRE_COMMON_MODEL_QUANTIZATION_CONFIG_H_
