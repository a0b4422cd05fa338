// EncodeKvEvents writes cache events as routers read them: a MessagePack array [timestamp, events,
// data_parallel_rank], where an event is a map of vLLM's field names.
//
// A block is named by the lower half of its hash, because routers keep 64 bits. The field `medium`
// is always "GPU", vLLM's word for the memory that a step reads: for routers, any other word means
// a slower tier. The cache salt is the first extra key of a sequence's first block. A salt that is
// not UTF-8 is written in hexadecimal.
//
// Thread safety: a free function, safe from any thread.
// Source:        vllm/distributed/kv_events.py of vLLM 0.33.0.
#ifndef QUIRE_SCHEDULER_KV_EVENTS_KV_EVENT_ENCODER_H_
#define QUIRE_SCHEDULER_KV_EVENTS_KV_EVENT_ENCODER_H_

#include <span>
#include <string>

#include "scheduler/kv_cache/cache_event.h"

namespace quire {

// Returns the events encoded as one batch. timestamp_s: seconds since 1970-01-01 UTC.
std::string EncodeKvEvents(double timestamp_s, std::span<const CacheEvent> events);

}  // namespace quire

#endif  // QUIRE_SCHEDULER_KV_EVENTS_KV_EVENT_ENCODER_H_
