// The version of proto/v1/worker.proto that this build speaks. Scheduler and worker exchange their
// versions in the handshake and refuse any other version.
//
// Thread-safe: a constant.
#ifndef QUIRE_COMMON_WIRE_WORKER_PROTOCOL_H_
#define QUIRE_COMMON_WIRE_WORKER_PROTOCOL_H_

#include <cstdint>

namespace quire {

inline constexpr uint32_t kWorkerProtocolVersion = 4;

}  // namespace quire

#endif  // QUIRE_COMMON_WIRE_WORKER_PROTOCOL_H_
