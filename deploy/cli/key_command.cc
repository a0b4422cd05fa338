#include "deploy/cli/key_command.h"

#include <algorithm>
#include <cstdio>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

#include "common/base/exit_codes.h"
#include "common/base/printable.h"
#include "common/base/status_macros.h"
#include "common/base/string_view.h"
#include "common/wire/api_key.h"
#include "common/wire/id_text.h"
#include "deploy/cli/flag_table.h"

namespace quire {
namespace {

constexpr char kKeyUsage[] =
    R"(usage: quire key --tenant NAME
       quire key --tenant NAME --hash < KEYFILE

Makes an API key of 256 random bits. Prints the key on standard output. Prints its line for the
server's --api-keys-file or --admin-api-keys-file on standard error. The line holds the tenant's
name and a hash of the key, not the key:

    (umask 077; quire key --tenant alice > alice.key 2>> api-keys)

Clients take the key's file: `quire generate --api-key-file alice.key`. Keep the file, because the
key cannot be computed from its line.

    --tenant NAME                    the key's owner: letters, digits, '.', '_' and '-'
    --hash                           read a key from standard input, and print its line on standard
                                     output. Use random keys only: a hash reveals a guessable key
)";

// Upper bound on the standard input of --hash: ample for a key with white space around it.
constexpr size_t kMaxKeyFileBytes = 4096;

struct KeyOptions {
  std::string tenant;
  bool is_hash = false;
};

absl::StatusOr<KeyOptions> ParseKeyArguments(const std::vector<std::string>& args) {
  KeyOptions options;
  FlagTable flags;
  flags.Text("tenant", [&](const std::string& v) { options.tenant = v; });
  flags.Switch("hash", [&] { options.is_hash = true; });
  QUIRE_RETURN_IF_ERROR(flags.Parse(args));
  if (options.tenant.empty() || options.tenant.size() > kMaxTenantBytes ||
      !IsIdText(options.tenant)) {
    return absl::InvalidArgumentError(absl::StrCat(
        "--tenant must have 1 to ", kMaxTenantBytes, " letters, digits, '.', '_' and '-'"));
  }
  return options;
}

absl::StatusOr<std::string> KeyOnStandardInput() {
  std::string text(kMaxKeyFileBytes, '\0');
  text.resize(std::fread(text.data(), 1, text.size(), stdin));
  return ParseApiKey(text);
}

absl::Status CheckWritten() {
  return std::fflush(stdout) == 0 ? absl::OkStatus()
                                  : absl::DataLossError("standard output cannot be written");
}

absl::Status PrintKey(const KeyOptions& options) {
  if (options.is_hash) {
    QUIRE_ASSIGN_OR_RETURN(const std::string key, KeyOnStandardInput());
    std::printf("%s\n", ApiKeyLine(key, options.tenant).c_str());
  } else {
    const std::string key = MakeApiKey();
    std::printf("%s\n", key.c_str());
    // If the key could not be written, do not print the line for the server's file: the line would
    // admit a key that nobody has.
    QUIRE_RETURN_IF_ERROR(CheckWritten());
    std::fprintf(stderr, "%s\n", ApiKeyLine(key, options.tenant).c_str());
  }
  return CheckWritten();
}

}  // namespace

int RunKey(const std::vector<std::string>& args) {
  if (std::find(args.begin(), args.end(), "--help") != args.end()) {
    std::fputs(kKeyUsage, stdout);
    return 0;
  }
  const absl::StatusOr<KeyOptions> options = ParseKeyArguments(args);
  const absl::Status status = options.ok() ? PrintKey(*options) : options.status();
  if (!status.ok()) {
    std::fprintf(stderr, "quire: key: %s\n", OneLine(ToStd(status.message())).c_str());
    return options.ok() ? 1 : kExitUsage;
  }
  return 0;
}

}  // namespace quire
