// GatewayConfig holds the settings of quire_gateway, which are read from its flags.
//
// Thread safety: a value type. Call GatewayConfigFromFlags from main.
#ifndef QUIRE_DEPLOY_GATEWAY_GATEWAY_CONFIG_H_
#define QUIRE_DEPLOY_GATEWAY_GATEWAY_CONFIG_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"

#include "common/wire/address.h"
#include "common/wire/api_keys.h"
#include "common/wire/tls_files.h"

namespace quire {

struct GatewayConfig {
  std::string model_path;
  std::string chat_template_file;      // empty: the model's own template
  bool allows_special_tokens = false;  // true: names of special tokens in messages become tokens

  std::vector<Address> schedulers;          // one address for each replica, at least one
  std::shared_ptr<TlsFiles> scheduler_tls;  // null: plain text
  std::string scheduler_api_key;            // key for the gateway's own calls; empty: none
  bool forwards_api_keys = false;           // true: pass clients' keys on to schedulers
  std::optional<Address> scheduler_http;    // has /metrics and /top; nullopt: not served

  Address listen;                     // of OpenAI's API; port 0: any free port
  std::optional<Address> pages;       // metrics and health of the gateway itself; nullopt: none
  std::shared_ptr<TlsFiles> tls;      // for `listen`; null: plain text
  std::shared_ptr<ApiKeys> api_keys;  // keys of clients; null: any caller is admitted
  std::shared_ptr<ApiKeys> admin_api_keys;  // keys of operators; null: none
  std::vector<std::string> allowed_origins;
  int32_t max_connections = 4096;
  absl::Duration shutdown_timeout;
};

// positional: arguments that are no flags. At most one: the model, in place of --model.
// Errors: kInvalidArgument FLAG, TLS_FILE or API_KEYS_FILE.
absl::StatusOr<GatewayConfig> GatewayConfigFromFlags(const std::vector<std::string>& positional);

}  // namespace quire

#endif  // QUIRE_DEPLOY_GATEWAY_GATEWAY_CONFIG_H_
