// The trace that a call is part of, as its client says: the W3C recommendation "Trace Context",
// part 3.2, the header traceparent "00-<trace id>-<parent id>-<flags>".
//
// Thread safety: free functions, safe from any thread.
#ifndef QUIRE_SCHEDULER_RPC_TRACE_CONTEXT_H_
#define QUIRE_SCHEDULER_RPC_TRACE_CONTEXT_H_

#include <optional>
#include <string>
#include <string_view>

namespace quire {

struct TraceContext {
  std::string trace_id;   // 32 hexadecimal digits, lower case, not all of them 0
  std::string parent_id;  // 16 likewise: the client's span
};

// Nothing when the header is not as the recommendation has it: it is ignored then. Of a later
// version what this one knows is read.
std::optional<TraceContext> ParseTraceParent(std::string_view header);

}  // namespace quire

#endif  // QUIRE_SCHEDULER_RPC_TRACE_CONTEXT_H_
