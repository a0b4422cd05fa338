// ResolveModelFile decides which files of a model folder may be read. An untrusted folder must not
// make a program read other files. So symbolic links may lead only to files inside the folder. In a
// Hugging Face hub cache, links of a revision (snapshots/<revision>/) may also lead to the cache's
// blobs (blobs/).
//
// Thread safety: a free function, safe from any thread.
#ifndef QUIRE_COMMON_MODEL_MODEL_FILE_H_
#define QUIRE_COMMON_MODEL_MODEL_FILE_H_

#include <string>

#include "absl/status/statusor.h"

namespace quire {

// Returns the path of <model_dir>/<name>, with links resolved. Errors: reason MODEL_FILE, with a
// message that does not name the file. kNotFound if the file or the folder does not exist;
// kInvalidArgument for a broken link or a link that leads out of the folder.
absl::StatusOr<std::string> ResolveModelFile(const std::string& model_dir, const std::string& name);

}  // namespace quire

#endif  // QUIRE_COMMON_MODEL_MODEL_FILE_H_
