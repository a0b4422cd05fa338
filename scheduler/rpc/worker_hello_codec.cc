#include "scheduler/rpc/worker_hello_codec.h"

#include <optional>

#include "absl/strings/str_cat.h"

#include "common/base/error.h"
#include "common/wire/dtype_codec.h"
#include "common/wire/kv_backend_codec.h"
#include "common/wire/worker_protocol.h"

namespace quire {
namespace {

KvMemory KvMemoryOf(const v1::HandshakeResponse& response) {
  return {.backend = FromProto(response.kv_backend()),
          .page_bytes = response.window_page_bytes(),
          .padding_bytes = response.block_padding_bytes(),
          .max_places = response.has_max_window_places()
                            ? std::optional(response.max_window_places())
                            : std::nullopt};
}

}  // namespace

absl::StatusOr<WorkerHello> HelloOf(const v1::HandshakeResponse& response) {
  if (response.protocol_version() != kWorkerProtocolVersion) {
    return Error(
        absl::StatusCode::kFailedPrecondition,
        "CONFIG_MISMATCH",
        absl::StrCat(
            "protocol_version: the worker's protocol version differs from the scheduler's (got ",
            response.protocol_version(),
            ", expected ",
            kWorkerProtocolVersion,
            ")"));
  }
  return WorkerHello{.uuid = response.worker_uuid(),
                     .config_hash = response.config_hash(),
                     .model_hash = response.model_hash(),
                     .weights_sum = response.weights_sum(),
                     .block_bytes = response.block_bytes(),
                     .num_blocks_max = response.num_blocks_max(),
                     .num_host_blocks_max = response.num_host_blocks_max(),
                     .kv_cache_dtype = FromProto(response.kv_cache_dtype()),
                     .determinism_fingerprint = response.determinism_fingerprint(),
                     .vocab_size = response.vocab_size(),
                     .full_step_tokens = response.full_step_tokens(),
                     .rendezvous = response.rendezvous(),
                     .wants_next_blocks = response.wants_next_blocks(),
                     .kv_memory = KvMemoryOf(response)};
}

}  // namespace quire
