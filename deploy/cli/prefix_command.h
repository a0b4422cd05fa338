// `quire prefix pin|list|unpin --admin ADDR`: pins, lists or unpins beginnings of prompts that a
// server keeps in its KV cache.
//
// Thread safety: call from main.
#ifndef QUIRE_DEPLOY_CLI_PREFIX_COMMAND_H_
#define QUIRE_DEPLOY_CLI_PREFIX_COMMAND_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

#include "proto/v1/admin.pb.h"

#include "deploy/cli/server_access.h"

namespace quire {

struct PrefixOptions {
  enum class Action : uint8_t { kPin, kList, kUnpin };

  Action action = Action::kList;
  std::string admin;
  ServerAccess access;
  v1::PinPrefixRequest pin;
  std::optional<uint64_t> unpin_id;
};

// Errors: kInvalidArgument for an unknown or missing action or flag.
absl::StatusOr<PrefixOptions> ParsePrefixArguments(const std::vector<std::string>& args);

// Returns the exit code of the program.
int RunPrefix(const std::vector<std::string>& args);

}  // namespace quire

#endif  // QUIRE_DEPLOY_CLI_PREFIX_COMMAND_H_
