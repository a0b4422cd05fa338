// The trace of a call, read from its header traceparent: "00-<trace id>-<parent id>-<flags>".
//
// Thread safety: free functions, safe from any thread.
// Source:        W3C recommendation "Trace Context", section 3.2.
#ifndef QUIRE_SCHEDULER_RPC_TRACE_CONTEXT_H_
#define QUIRE_SCHEDULER_RPC_TRACE_CONTEXT_H_

#include <optional>
#include <string>
#include <string_view>

namespace quire {

struct TraceContext {
  std::string trace_id;   // 32 hexadecimal digits, lower case, not all of them 0
  std::string parent_id;  // 16 hexadecimal digits, in the same form: the id of the client's span
};

// Returns nullopt if the header is malformed: the recommendation says to ignore such a header. From
// a header of a later version, reads only the fields that version 00 has.
std::optional<TraceContext> ParseTraceParent(std::string_view header);

}  // namespace quire

#endif  // QUIRE_SCHEDULER_RPC_TRACE_CONTEXT_H_
