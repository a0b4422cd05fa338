// From the message of a client to a request that the core may trust: every rule on the fields of
// GenerateRequest is here, and every default.
//
// Two steps, because the tokenizer runs between them, on another thread:
//   CheckGenerateRequest   everything that can be said without the prompt's tokens
//   SetPrompt              the prompt, and what depends on it
//
// Thread safety: free functions of their arguments.
// Errors:        kInvalidArgument with the reason of the rule (README.md lists them);
//                kNotFound MODEL; kFailedPrecondition NO_TOKENIZER; kPermissionDenied
//                TENANT_OF_KEY; those of resume_check.h. No message repeats user text.
#ifndef QUIRE_SCHEDULER_RPC_GENERATE_REQUEST_H_
#define QUIRE_SCHEDULER_RPC_GENERATE_REQUEST_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

#include "proto/v1/generation.pb.h"

#include "scheduler/core/request.h"
#include "scheduler/loop/output_router.h"
#include "scheduler/rpc/served_model.h"
#include "scheduler/text/text_budget.h"

namespace quire {

inline constexpr size_t kMaxPromptBytes = 1 << 20;
inline constexpr size_t kMaxModelNameBytes = 256;
inline constexpr size_t kMaxRequestIdBytes = 128;
inline constexpr size_t kMaxCacheSaltBytes = 128;
inline constexpr int kMaxSequencesPerRequest = 16;
inline constexpr int kMaxStopTokenIds = 64;
inline constexpr int32_t kMaxPriority = 100;

struct GenerateSpec {
  Request request;  // without id, prompt, arrival and deadline; max_tokens after SetPrompt
  OutputOptions output;
  std::optional<std::string> text;  // to be tokenized; else token_ids
  std::vector<TokenId> token_ids;
  bool add_special_tokens = true;
  bool parse_special_tokens = false;
  std::optional<int32_t> max_tokens;  // as asked for
  bool is_length_promised = false;    // max_tokens is what a server before admitted
  std::optional<int64_t> timeout_ms;

  // Whether the client has all that there will be.
  bool has_all_ended() const;
};

struct RequestRules {
  const ServedModel* model = nullptr;
  int32_t max_model_len = 0;            // tokens of prompt and output
  uint64_t fresh_seed = 0;              // for a request without a seed
  bool has_priorities = false;          // the policy asks for them
  bool requires_cache_salt = false;     // of requests that use the prefix cache
  std::string tenant;                   // of the client's API key; empty: the request names it
  std::string determinism_fingerprint;  // see DeterminismFingerprint
};

absl::StatusOr<GenerateSpec> CheckGenerateRequest(const v1::GenerateRequest& message,
                                                  const RequestRules& rules);

// stop_check is asked while output that is resumed is gone through; what it says ends that.
absl::Status SetPrompt(std::vector<TokenId> prompt,
                       const RequestRules& rules,
                       const StopCheck& stop_check,
                       GenerateSpec* spec);

// "field: rule (got 3, limit 2)".
std::string OutOf(std::string_view field, std::string_view rule, int64_t got, int64_t limit);

// OK when `id` is empty or may name a request.
absl::Status CheckRequestId(std::string_view id);

// OK when `name` is empty or one of the model's.
absl::Status CheckModelName(std::string_view name, const ServedModel& model);

// OK for a salt that blocks may be shared under.
absl::Status CheckCacheSalt(std::string_view salt);

// OK for text that may go to the tokenizer.
absl::Status CheckText(std::string_view text, const ServedModel& model);

// OK when every id is a token of the model, and of the tokenizer if there is one.
absl::Status CheckTokenIds(std::string_view field,
                           const std::vector<TokenId>& ids,
                           const ServedModel& model);

}  // namespace quire

#endif  // QUIRE_SCHEDULER_RPC_GENERATE_REQUEST_H_
