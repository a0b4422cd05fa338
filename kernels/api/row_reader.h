// RowReader gives the rows of matrices that are not in memory yet. A backend that packs while it
// reads (KernelBackend::packs_while_reading) has each row in the cache when it needs it, and there
// is no second copy of a matrix at any time.
//
// Thread safety: Read is safe from any thread.
#ifndef QUIRE_KERNELS_API_ROW_READER_H_
#define QUIRE_KERNELS_API_ROW_READER_H_

#include <cstddef>
#include <cstdint>
#include <span>

#include "absl/status/status.h"

namespace quire {

class RowReader {
 public:
  virtual ~RowReader() = default;

  // Fills the buffer with whole rows of a part, from `first_row` on, as MatrixView has them.
  // Errors: those of where they come from.
  virtual absl::Status Read(size_t part, int64_t first_row, std::span<std::byte> buffer) const = 0;
};

}  // namespace quire

#endif  // QUIRE_KERNELS_API_ROW_READER_H_
