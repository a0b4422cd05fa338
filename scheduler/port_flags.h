// The flags of the scheduler's ports: addresses, TLS and API keys.
//
// Thread safety: call from main.
#ifndef QUIRE_SCHEDULER_PORT_FLAGS_H_
#define QUIRE_SCHEDULER_PORT_FLAGS_H_

#include "absl/status/status.h"

#include "scheduler/scheduler_config.h"

namespace quire {

// Sets the config's ports, API keys and TLS files, including the TLS files of the links to workers.
// Reads each file once.
// Errors: kInvalidArgument FLAG; the errors of TlsFiles::Open and ApiKeys::Open.
absl::Status SetPorts(SchedulerConfig* config);

}  // namespace quire

#endif  // QUIRE_SCHEDULER_PORT_FLAGS_H_
