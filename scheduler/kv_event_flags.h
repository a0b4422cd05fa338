// The flags for KV events of quire_scheduler (--kv-events-...), named after vLLM's
// --kv-events-config.
//
// Thread safety: one thread, after the flags are parsed.
#ifndef QUIRE_SCHEDULER_KV_EVENT_FLAGS_H_
#define QUIRE_SCHEDULER_KV_EVENT_FLAGS_H_

#include "absl/status/status.h"

#include "scheduler/scheduler_config.h"

namespace quire {

// Sets config->kv_events. REQUIRES: config->loop.core.prefix_caching is set. Errors:
// kInvalidArgument FLAG.
absl::Status SetKvEvents(SchedulerConfig* config);

}  // namespace quire

#endif  // QUIRE_SCHEDULER_KV_EVENT_FLAGS_H_
