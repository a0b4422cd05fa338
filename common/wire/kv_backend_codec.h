// Converts between KvBackend and v1::KvBackend, its form on the wire.
//
// Thread safety: free functions, safe from any thread.
#ifndef QUIRE_COMMON_WIRE_KV_BACKEND_CODEC_H_
#define QUIRE_COMMON_WIRE_KV_BACKEND_CODEC_H_

#include <optional>

#include "proto/v1/types.pb.h"

#include "common/step/kv_memory.h"

namespace quire {

inline v1::KvBackend ToProto(KvBackend backend) {
  switch (backend) {
    case KvBackend::kPaged:
      return v1::KV_BACKEND_PAGED;
    case KvBackend::kVmm:
      return v1::KV_BACKEND_VMM;
  }
  return v1::KV_BACKEND_UNSPECIFIED;
}

// Returns nullopt for KV_BACKEND_UNSPECIFIED and for values of a later version.
inline std::optional<KvBackend> FromProto(v1::KvBackend backend) {
  switch (backend) {
    case v1::KV_BACKEND_PAGED:
      return KvBackend::kPaged;
    case v1::KV_BACKEND_VMM:
      return KvBackend::kVmm;
    default:
      return std::nullopt;
  }
}

}  // namespace quire

#endif  // QUIRE_COMMON_WIRE_KV_BACKEND_CODEC_H_
