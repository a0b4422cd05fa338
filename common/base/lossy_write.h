// LossyWrite is for all that a server says of itself while it serves. It does not wait: whoever
// reads our standard error may stop reading (a full pipe of a log collector, a stopped terminal),
// and the service must go on. What there is no room for is lost.
//
// Thread safety: safe from any thread; text arrives in one piece.
#ifndef QUIRE_COMMON_BASE_LOSSY_WRITE_H_
#define QUIRE_COMMON_BASE_LOSSY_WRITE_H_

#include <cstddef>
#include <string_view>

namespace quire {

// A pipe that takes anything takes so much (PIPE_BUF); longer text is cut.
inline constexpr size_t kMaxLossyWriteBytes = 4096;

void LossyWrite(int fd, std::string_view text);

}  // namespace quire

#endif  // QUIRE_COMMON_BASE_LOSSY_WRITE_H_
