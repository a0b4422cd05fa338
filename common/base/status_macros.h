// QUIRE_RETURN_IF_ERROR and QUIRE_ASSIGN_OR_RETURN return a failed absl::Status to the caller.
// Abseil has macros like these since LTS 20260526; Debian 12 ships 20220623.
//
// Thread safety: macros without state.
#ifndef QUIRE_COMMON_BASE_STATUS_MACROS_H_
#define QUIRE_COMMON_BASE_STATUS_MACROS_H_

#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

#define QUIRE_STATUS_CONCAT_INNER(a, b) a##b
#define QUIRE_STATUS_CONCAT(a, b) QUIRE_STATUS_CONCAT_INNER(a, b)

#define QUIRE_RETURN_IF_ERROR(expression)     \
  do {                                        \
    absl::Status quire_status = (expression); \
    if (!quire_status.ok()) {                 \
      return quire_status;                    \
    }                                         \
  } while (false)

#define QUIRE_ASSIGN_OR_RETURN(lhs, expression) \
  QUIRE_ASSIGN_OR_RETURN_IMPL(QUIRE_STATUS_CONCAT(quire_statusor_, __LINE__), lhs, expression)
#define QUIRE_ASSIGN_OR_RETURN_IMPL(statusor, lhs, expression) \
  auto statusor = (expression);                                \
  if (!statusor.ok()) {                                        \
    return std::move(statusor).status();                       \
  }                                                            \
  lhs = std::move(statusor).value()

#endif  // QUIRE_COMMON_BASE_STATUS_MACROS_H_
