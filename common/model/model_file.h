// Decides which files of a model folder may be read. An untrusted folder must not make a program
// read other files: symbolic links are followed inside the folder, and from a revision of a Hugging
// Face hub cache (snapshots/<revision>/) to its blobs (blobs/), nowhere else.
//
// Thread safety: a free function, safe from any thread.
#ifndef QUIRE_COMMON_MODEL_MODEL_FILE_H_
#define QUIRE_COMMON_MODEL_MODEL_FILE_H_

#include <string>

#include "absl/status/statusor.h"

namespace quire {

// Returns the path of <model_dir>/<name>, with links resolved. Errors: reason MODEL_FILE, with
// the rule as message: kNotFound if there is no such file or folder; kInvalidArgument for a broken
// link or a link that leads out of the folder.
absl::StatusOr<std::string> ResolveModelFile(const std::string& model_dir, const std::string& name);

}  // namespace quire

#endif  // QUIRE_COMMON_MODEL_MODEL_FILE_H_
