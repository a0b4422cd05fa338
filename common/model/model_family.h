// ParseModelFamily reads the fields of config.json that the model's family has. A family is a set
// of architectures whose layers have the same parts. The family decides which fields are read,
// their names, the defaults of missing fields, and the parts of the layers that no field names.
// Defaults are those of the family's class in Hugging Face transformers.
//
// Thread safety: any thread; one caller at a time for each reader.
// Errors:        kInvalidArgument, reason CONFIG, message "config.json: field: rule".
#ifndef QUIRE_COMMON_MODEL_MODEL_FAMILY_H_
#define QUIRE_COMMON_MODEL_MODEL_FAMILY_H_

#include "absl/status/status.h"

#include "common/model/config_reader.h"
#include "common/model/model_config.h"

namespace quire {

// Fills every field of config except architecture. Refuses an unknown architecture. REQUIRES:
// config.architecture is set; reader reads config.json.
absl::Status ParseModelFamily(ConfigReader& reader, ModelConfig& config);

}  // namespace quire

#endif  // QUIRE_COMMON_MODEL_MODEL_FAMILY_H_
