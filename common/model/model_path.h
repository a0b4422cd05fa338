// A model path names a directory as Hugging Face writes it, or a GGUF file.
//
// Thread safety: free functions, safe from any thread.
#ifndef QUIRE_COMMON_MODEL_MODEL_PATH_H_
#define QUIRE_COMMON_MODEL_MODEL_PATH_H_

#include <string>

namespace quire {

// Returns true for a GGUF file: the path ends in ".gguf", and is no directory. The file may be
// missing.
bool IsGgufPath(const std::string& model_path);

// Returns the name under which a model is served by default: a directory's last part, or a GGUF
// file's name without ".gguf" and without the number of a part. Returns "model" if the path has no
// such part.
std::string ModelNameOf(const std::string& model_path);

}  // namespace quire

#endif  // QUIRE_COMMON_MODEL_MODEL_PATH_H_
