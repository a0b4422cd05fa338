// ParseRope reads the RoPE parameters of config.json, in both spellings: rope_parameters, which
// transformers 5 writes, or rope_scaling with rope_theta, which earlier versions write.
//
// Thread safety: any thread; one caller at a time for each reader.
// Errors:        kInvalidArgument, reason CONFIG, message "config.json: field: rule".
#ifndef QUIRE_COMMON_MODEL_ROPE_CONFIG_H_
#define QUIRE_COMMON_MODEL_ROPE_CONFIG_H_

#include <cstdint>

#include "absl/status/statusor.h"

#include "common/model/config_reader.h"
#include "common/model/model_config.h"

namespace quire {

// A missing field takes its default in RopeConfig, except original_max_position_embeddings, which
// takes max_position_embeddings. REQUIRES: reader reads config.json.
absl::StatusOr<RopeConfig> ParseRope(ConfigReader& reader, int32_t max_position_embeddings);

}  // namespace quire

#endif  // QUIRE_COMMON_MODEL_ROPE_CONFIG_H_
