// Errors of loading a model: one line "load: <file>: <rule>" or "load: <file>: <tensor>:
// <rule>", reason MODEL_FILE. Names of files and tensors come from outside, so they are made
// printable and short.
//
// Thread safety: free functions, safe from any thread.
#ifndef QUIRE_COMMON_MODEL_LOAD_ERROR_H_
#define QUIRE_COMMON_MODEL_LOAD_ERROR_H_

#include <string>
#include <string_view>

#include "absl/status/status.h"

namespace quire {

// Returns the name with '?' for each byte outside printable ASCII. A longer name is cut to 120
// bytes and ends with "...".
std::string PrintableName(std::string_view name);

absl::Status LoadError(std::string_view file, std::string_view rule);
absl::Status TensorError(std::string_view file, std::string_view tensor, std::string_view rule);

}  // namespace quire

#endif  // QUIRE_COMMON_MODEL_LOAD_ERROR_H_
