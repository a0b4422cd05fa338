// A model path names either a Hugging Face model directory or a GGUF file.
//
// Thread safety: free functions, safe from any thread.
#ifndef QUIRE_COMMON_MODEL_MODEL_PATH_H_
#define QUIRE_COMMON_MODEL_MODEL_PATH_H_

#include <string>

namespace quire {

// Returns true if the path ends in ".gguf" and does not name a directory. Does not check that the
// file exists.
bool IsGgufPath(const std::string& model_path);

// Returns the name under which a model is served by default. For a directory: the last component of
// its path. For a GGUF file: the file's name without ".gguf", and without the part number of a
// split model. Returns "model" if this name is empty, "." or "..".
std::string ModelNameOf(const std::string& model_path);

}  // namespace quire

#endif  // QUIRE_COMMON_MODEL_MODEL_PATH_H_
