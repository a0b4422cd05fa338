// RowReader reads rows of matrices that are not in memory yet. A backend that packs while it reads
// (KernelBackend::packs_while_reading) packs a row while the CPU cache still holds it, and memory
// never holds a matrix twice.
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

  // Fills the buffer with whole rows of LinearSource::parts[part], from `first_row` on, row-major.
  // Errors: those of the underlying source.
  virtual absl::Status Read(size_t part, int64_t first_row, std::span<std::byte> buffer) const = 0;
};

}  // namespace quire

#endif  // QUIRE_KERNELS_API_ROW_READER_H_
