// QuantizationConfig is quantization_config of config.json: how the quantized matrices of a Hugging
// Face model directory are stored, and which modules each rule is for.
//
// A quantized matrix holds integers of 4 or 8 bits or 8-bit floats. A weight is scale * (code -
// zero), or scale * code. Formats: compressed-tensors (pack-quantized, int-quantized,
// float-quantized, naive-quantized), AWQ (gemm), GPTQ (v1 and v2), FP8.
//
// Scales of activations are ignored, because Quire computes with the decoded weights.
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

// The tensors of a quantized matrix [rows, cols], and how they hold its codes.
enum class WeightStorage : uint8_t {
  kPacked = 1,  // weight_packed I32 [rows, cols / (32 / bits)]
  kInt8 = 2,    // weight I8 [rows, cols]
  kFloat8 = 3,  // weight F8_E4M3 [rows, cols]
  kGptq = 4,    // qweight I32 [cols / (32 / bits), rows]
  kAwq = 5,     // qweight I32 [cols, rows / 8]
};

struct WeightScheme {
  WeightStorage storage = WeightStorage::kPacked;
  int32_t bits = 8;  // of a code: 4 or 8
  // Consecutive rows and columns that share a scale. If group_cols is 0, a scale is for whole rows:
  // the file has one for each row, or one for the matrix.
  int32_t group_rows = 1;
  int32_t group_cols = 0;
  bool is_symmetric = true;         // true: all zeros are 0, and the file has none
  bool needs_group_index = false;   // a tensor says the group of each column (act-order)
  bool has_zeros_less_one = false;  // the file has zero - 1 (GPTQ v1)

  friend bool operator==(const WeightScheme&, const WeightScheme&) = default;
};

struct QuantizationConfig {
  // A scheme for the modules that match any of the targets.
  struct Group {
    std::vector<NamePattern> targets;
    WeightScheme scheme;

    friend bool operator==(const Group&, const Group&) = default;
  };

  std::vector<Group> groups;        // empty: no module is quantized
  std::vector<NamePattern> ignore;  // modules that are not quantized although a group matches

  // Returns the scheme of a module of a class ("Linear", "Embedding"), or nullptr if the module is
  // not quantized. A target that is the module's name counts before one that is a regular
  // expression, and a class counts last. Errors: those of NamePattern::Matches.
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
