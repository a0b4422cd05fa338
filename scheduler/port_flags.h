// The flags of the scheduler's ports: where it listens, and who may connect and call there.
//
// Thread safety: call from main.
#ifndef QUIRE_SCHEDULER_PORT_FLAGS_H_
#define QUIRE_SCHEDULER_PORT_FLAGS_H_

#include "absl/status/status.h"

#include "scheduler/scheduler_config.h"

namespace quire {

// Sets what the config says of ports, and of TLS of the links to workers. Reads files, once.
// Errors: kInvalidArgument FLAG; those of TlsFiles::Open and ApiKeys::Open.
absl::Status SetPorts(SchedulerConfig* config);

}  // namespace quire

#endif  // QUIRE_SCHEDULER_PORT_FLAGS_H_
