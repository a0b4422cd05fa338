// ParseRope reads the RoPE parameters of config.json. Transformers 5 writes them as
// rope_parameters, earlier versions as rope_scaling with rope_theta. Parameters for each layer type
// are accepted if they are the same for all layer types.
//
// Thread safety: any thread; one caller at a time for each reader.
// Errors:        kInvalidArgument, reason CONFIG, message "config.json: field: rule".
// Source:        modeling_rope_utils.py of Hugging Face transformers; YaRN, Peng et al. 2023;
//                LongRoPE, Ding et al. 2024.
#ifndef QUIRE_COMMON_MODEL_ROPE_CONFIG_H_
#define QUIRE_COMMON_MODEL_ROPE_CONFIG_H_

#include <cstdint>
#include <optional>

#include "absl/status/statusor.h"

#include "common/model/config_reader.h"
#include "common/model/model_config.h"

namespace quire {

// A missing field takes its default in RopeConfig, except original_max_position_embeddings, which
// takes `positions`, and fields that transformers derives from others. positions: the model's
// max_position_embeddings. REQUIRES: reader reads config.json.
absl::StatusOr<RopeConfig> ParseRope(ConfigReader& reader, int32_t positions, int32_t head_dim);

// Returns the number of positions that a model can serve: `positions` (max_position_embeddings), or
// with dynamic or yarn scaling at least factor * original_max_position_embeddings. Published files
// with such scaling often give max_position_embeddings before scaling.
int32_t ServablePositions(const RopeConfig& rope, int32_t positions);

// Returns the context length for which dynamic and longrope frequencies are computed, if a server
// admits contexts of max_context_tokens. Equal results give equal frequencies. If n is a result,
// RopeLength(rope, n) is n. Returns 0 without RoPE and for other scalings, whose frequencies do not
// depend on the length. transformers instead changes the frequencies while a sequence grows, so
// keys cached before and after a change do not match.
int32_t RopeLength(const std::optional<RopeConfig>& rope, int32_t max_context_tokens);

}  // namespace quire

#endif  // QUIRE_COMMON_MODEL_ROPE_CONFIG_H_
