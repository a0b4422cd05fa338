// ReadFile returns a whole file as text.
//
// Thread safety: a free function, safe from any thread.
#ifndef QUIRE_COMMON_BASE_READ_FILE_H_
#define QUIRE_COMMON_BASE_READ_FILE_H_

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"

namespace quire {

// Reads a regular file of at most max_bytes. Refuses any other kind of file at once: opening a
// FIFO, for example, does not wait for a writer.
// Errors: reason FILE, message beginning with the path; kNotFound if the file is missing, else
//         kInvalidArgument.
absl::StatusOr<std::string> ReadFile(const std::string& path, int64_t max_bytes);

}  // namespace quire

#endif  // QUIRE_COMMON_BASE_READ_FILE_H_
