// Turns a client's GenerateRequest into a Request that the core can trust. All rules and defaults
// of the message's fields are here.
//
// Two steps, because the tokenizer runs between them, on another thread:
//   CheckGenerateRequest   checks and sets all fields that do not depend on the prompt's tokens
//   SetPrompt              sets the prompt; checks and sets the fields that depend on the prompt
//
// Thread safety: pure functions, safe from any thread.
// Errors:        kInvalidArgument, with a reason that names the broken rule (README.md in this
//                folder lists the reasons); kNotFound MODEL; kFailedPrecondition NO_TOKENIZER;
//                kPermissionDenied TENANT_OF_KEY; the errors of resume_check.h. No error message
//                repeats user text.
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
// Upper bound on the log-probabilities of the prompt in one request: one for each prompt token,
// plus one for each likeliest token that the client asks for at that prompt token. If the client
// reads slowly, all of them wait in memory, at most 2 MiB.
inline constexpr int64_t kMaxPromptLogprobs = 1 << 18;

struct GenerateSpec {
  // The request for the core, still without id, arrival and deadline. SetPrompt sets the prompt and
  // max_tokens.
  Request request;
  OutputOptions output;
  // The prompt as text. If nullopt, the prompt is token_ids.
  std::optional<std::string> text;
  std::vector<TokenId> token_ids;
  bool add_special_tokens = true;
  bool parse_special_tokens = false;
  std::optional<int32_t> max_tokens;  // the client's limit; nullopt: as many as fit the context
  bool is_length_promised = false;    // an earlier server accepted max_tokens for this request
  std::optional<int64_t> timeout_ms;

  // Returns true if the client resumes a request whose sequences have all ended.
  bool has_all_ended() const;
};

struct RequestRules {
  const ServedModel* model = nullptr;
  int32_t max_model_len = 0;            // bounds prompt and output together
  uint64_t fresh_seed = 0;              // seed of a request that sets none
  bool has_priorities = false;          // the scheduling policy uses priorities
  bool requires_cache_salt = false;     // a request without cache_salt must bypass the cache
  std::string tenant;                   // tenant of the API key; empty: no API keys are in use
  std::string determinism_fingerprint;  // see DeterminismFingerprint
};

absl::StatusOr<GenerateSpec> CheckGenerateRequest(const v1::GenerateRequest& message,
                                                  const RequestRules& rules);

// Sets the prompt and replays resumed output. The replay calls stop_check now and then. If
// stop_check fails, the replay ends, and SetPrompt returns the error of stop_check.
absl::Status SetPrompt(std::vector<TokenId> prompt,
                       const RequestRules& rules,
                       const StopCheck& stop_check,
                       GenerateSpec* spec);

// Returns "field: rule (got 3, limit 2)".
std::string LimitMessage(std::string_view field, std::string_view rule, int64_t got, int64_t limit);

// Returns OK if `id` is empty or valid as a request id.
absl::Status CheckRequestId(std::string_view id);

// Returns OK if `name` is empty or one of the served names of the model.
absl::Status CheckModelName(std::string_view name, const ServedModel& model);

// Returns OK if the salt is at most kMaxCacheSaltBytes long.
absl::Status CheckCacheSalt(std::string_view salt);

// Returns OK if there is a tokenizer, and text is UTF-8 of at most kMaxPromptBytes.
absl::Status CheckText(std::string_view text, const ServedModel& model);

// Returns OK if every id is a token of the model, and of the tokenizer if there is one.
absl::Status CheckTokenIds(std::string_view field,
                           const std::vector<TokenId>& ids,
                           const ServedModel& model);

}  // namespace quire

#endif  // QUIRE_SCHEDULER_RPC_GENERATE_REQUEST_H_
