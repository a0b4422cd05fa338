// CheckExpansion refuses a serialized message that would take many times its size in memory after
// parsing. An empty message in a list is 2 bytes on the wire and some 50 in memory, so 4 MiB of
// empty messages become 100 MiB.
//
// Thread safety: a free function, safe from any thread.
// Errors:        kInvalidArgument, reason MALFORMED_PROTO: too many fields, or bytes that are no
//                message of the type.
// Cost:          reads the bytes once; a packed column of numbers is skipped as one field.
#ifndef QUIRE_COMMON_WIRE_EXPANSION_GUARD_H_
#define QUIRE_COMMON_WIRE_EXPANSION_GUARD_H_

#include "absl/status/status.h"
#include <google/protobuf/descriptor.h>
#include <grpcpp/support/byte_buffer.h>

namespace quire {

// Refuses a message that has, at any depth, more than max_fields fields that need an allocation:
// messages, strings, bytes and unknown fields. Numbers are not counted: a number takes at most
// eight times as many bytes in memory as on the wire.
absl::Status CheckExpansion(const grpc::ByteBuffer& bytes,
                            const google::protobuf::Descriptor& type,
                            int max_fields);

}  // namespace quire

#endif  // QUIRE_COMMON_WIRE_EXPANSION_GUARD_H_
