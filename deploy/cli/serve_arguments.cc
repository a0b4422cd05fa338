#include "deploy/cli/serve_arguments.h"

#include <algorithm>
#include <array>
#include <span>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"

#include "common/base/status_macros.h"
#include "common/base/string_view.h"
#include "common/flags/flag_check.h"
#include "common/model/rank_share.h"

namespace quire {
namespace {

constexpr int32_t kMaxPort = 65535;

// Flags that go to the workers alone. IsForAll lists the flags that go to all programs. A flag in
// no list goes to the scheduler alone.
constexpr std::array<std::string_view, 17> kWorkerFlags = {"threads",
                                                           "kv-cache-memory-bytes",
                                                           "num-gpu-blocks-override",
                                                           "swap-space",
                                                           "kv-backend",
                                                           "device",
                                                           "device-index",
                                                           "dtype",
                                                           "enforce-eager",
                                                           "batch-invariant",
                                                           "quantization",
                                                           "activation-type",
                                                           "gemm-cache",
                                                           "gpu-memory-utilization",
                                                           "cpu-isa",
                                                           "load-format",
                                                           "fail-points"};

// Flags that go to the gateway alone.
constexpr std::array<std::string_view, 4> kGatewayFlags = {
    "chat-template", "allow-special-tokens-in-messages", "allowed-origins", "max-connections"};

// Flags that go to the scheduler and the gateway.
constexpr std::array<std::string_view, 5> kFrontFlags = {
    "ssl-certfile", "ssl-keyfile", "ssl-ca-certs", "api-keys-file", "shutdown-timeout"};

// Flags that `quire serve` sets itself, so users must not give them.
constexpr std::array<std::string_view, 10> kOwnFlags = {"workers",
                                                        "standby",
                                                        "nostandby",
                                                        "listen",
                                                        "rank",
                                                        "ranks-on-host",
                                                        "local-address",
                                                        "scheduler",
                                                        "scheduler-http",
                                                        "scheduler-api-key-file"};
constexpr std::string_view kOwnPrefixes[] = {"worker-ssl-", "scheduler-ssl-"};

bool IsOneOf(std::span<const std::string_view> names, std::string_view name) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

bool IsOwn(std::string_view name) {
  return IsOneOf(kOwnFlags, name) || std::ranges::any_of(kOwnPrefixes, [name](auto prefix) {
           return name.starts_with(prefix);
         });
}

// Returns "kv-cache-memory-bytes" for "--kv_cache_memory_bytes=9".
std::string FlagName(std::string_view arg) {
  arg.remove_prefix(std::min(arg.find_first_not_of('-'), arg.size()));
  std::string name(arg.substr(0, arg.find('=')));
  std::replace(name.begin(), name.end(), '_', '-');
  return name;
}

// Returns true if `name` is in `names`, or turns off a switch in `names`: "no-enforce-eager",
// "noenforce-eager".
bool IsFlagOf(std::span<const std::string_view> names, std::string_view name) {
  if (IsOneOf(names, name)) {
    return true;
  }
  absl::string_view positive = ToAbsl(name);
  if (!absl::ConsumePrefix(&positive, "no")) {
    return false;
  }
  absl::ConsumePrefix(&positive, "-");
  return IsOneOf(names, ToStd(positive));
}

absl::StatusOr<std::string_view> TakeField(std::string_view* text, std::string_view name) {
  absl::string_view rest = ToAbsl(*text);
  absl::ConsumePrefix(&rest, " ");
  if (!absl::ConsumePrefix(&rest, absl::StrCat(ToAbsl(name), "="))) {
    return absl::InvalidArgumentError(absl::StrCat("the line has no field ", ToAbsl(name), "="));
  }
  const std::string_view value = ToStd(rest.substr(0, rest.find(' ')));
  text->remove_prefix(text->size() - rest.size() + value.size());
  return value;
}

// Returns true for a flag that `quire serve` passes to a program under another name.
bool IsRenamed(std::string_view name) {
  return name == "http-host" || name == "http-port" || name == "worker-http-host";
}

bool IsForAll(std::string_view name) {
  return name == "model" || name == "log-format" || name == "allow-insecure-bind" ||
         name == "noallow-insecure-bind" || name == "no-allow-insecure-bind";
}

// Returns false for a flag without a value, such as a switch.
bool HasValue(const std::vector<std::string>& words) {
  return words.size() > 1 || words.front().find('=') != std::string::npos;
}

// Returns "2" for --flag=2 or --flag 2. Returns the flag itself if it has no value.
std::string ValueOf(const std::vector<std::string>& words) {
  const size_t equals = words.front().find('=');
  return equals != std::string::npos ? words.front().substr(equals + 1) : words.back();
}

// Returns the value of --tensor-parallel-size. Checks only the range: the scheduler and the workers
// check whether the model can be split over this number of workers.
absl::StatusOr<int32_t> SizeOf(const std::vector<std::string>& words) {
  int32_t size = 0;
  if (!absl::SimpleAtoi(ValueOf(words), &size) || size < 1 || size > kMaxRanks) {
    return absl::InvalidArgumentError(
        absl::StrCat("serve: --tensor-parallel-size: must be a number from 1 to ", kMaxRanks));
  }
  return size;
}

absl::StatusOr<int32_t> WorkerHttpPortOf(const std::vector<std::string>& words) {
  int32_t port = 0;
  if (!absl::SimpleAtoi(ValueOf(words), &port) || port < 0 || port > kMaxPort) {
    return absl::InvalidArgumentError(
        absl::StrCat("serve: --worker-http-port: must be a number from 0 to ", kMaxPort));
  }
  return port;
}

// Checks --preemption-mode, a flag of the scheduler, against --swap-space, a flag of the worker.
// Neither program sees both flags, so `quire serve` checks them. If a flag is given twice, its last
// value counts.
class SwapFlags {
 public:
  void See(std::string_view name, const std::vector<std::string>& words) {
    if (name == "preemption-mode") {
      is_swapping_ = ValueOf(words) == "swap";
    } else if (name == "swap-space") {
      has_space_ = ValueOf(words) != "0";
    }
  }
  absl::Status Check() const {
    return is_swapping_ && !has_space_
               ? absl::InvalidArgumentError(
                     "serve: --preemption-mode: swap needs --swap-space (got 0)")
               : absl::OkStatus();
  }

 private:
  bool is_swapping_ = false;
  bool has_space_ = true;
};

// Refuses a host that other machines could reach without encryption, and a host in brackets. The
// programs check this too, but their errors name their own flags instead of the flags of `quire
// serve`.
class ReachFlags {
 public:
  void See(std::string_view name, const std::vector<std::string>& words) {
    has_tls_ |= name == "ssl-certfile";
    // --allow-insecure-bind=false counts as allowed here. The programs then refuse the address.
    is_allowed_ |= name == "allow-insecure-bind";
    for (auto& [host_name, host] : hosts_) {
      if (host_name == name && HasValue(words)) {
        host = ValueOf(words);
      }
    }
  }
  absl::Status Check() const {
    for (const auto& [name, host] : hosts_) {
      if (host.starts_with('[')) {
        return absl::InvalidArgumentError(
            absl::StrCat("serve: --",
                         ToAbsl(name),
                         ": an IPv6 address is written without brackets (got ",
                         host,
                         ")"));
      }
      const bool is_workers = name == kWorkerHttpHost;  // a worker's HTTP port has no TLS
      if (host.empty() || Address{.host = host}.is_local() || is_allowed_ ||
          (has_tls_ && !is_workers)) {
        continue;
      }
      return absl::InvalidArgumentError(
          absl::StrCat("serve: --",
                       ToAbsl(name),
                       ": other machines can reach this address without encryption; give ",
                       is_workers ? "" : "--ssl-certfile and --ssl-keyfile, or ",
                       "--allow-insecure-bind if the network is isolated (got ",
                       host,
                       ")"));
    }
    return absl::OkStatus();
  }

 private:
  static constexpr std::string_view kWorkerHttpHost = "worker-http-host";

  std::array<std::pair<std::string_view, std::string>, 3> hosts_ = {
      {{"host", ""}, {"http-host", ""}, {kWorkerHttpHost, ""}}};
  bool has_tls_ = false;
  bool is_allowed_ = false;
};

void Append(const std::vector<std::string>& words, std::vector<std::string>& to) {
  to.insert(to.end(), words.begin(), words.end());
}

// Distributes the flags of `quire serve` among the programs that take them.
class Division {
 public:
  // words: the flag, and its value if the value is a separate word.
  absl::Status Take(const std::string& name, const std::vector<std::string>& words) {
    if (IsRenamed(name) && !HasValue(words)) {
      return absl::InvalidArgumentError(absl::StrCat("serve: --", name, ": needs a value"));
    }
    swap_flags_.See(name, words);
    reach_flags_.See(name, words);
    if (name == "tensor-parallel-size") {
      QUIRE_ASSIGN_OR_RETURN(split_.tensor_parallel_size, SizeOf(words));
    } else if (name == "worker-http-port") {
      QUIRE_ASSIGN_OR_RETURN(split_.worker_http_port, WorkerHttpPortOf(words));
    } else if (name == "worker-http-host") {
      split_.worker.push_back(absl::StrCat("--http-host=", ValueOf(words)));
    } else if (name == "http-host" || name == "http-port") {
      split_.gateway.push_back(
          absl::StrCat("--", name.substr(sizeof("http")), "=", ValueOf(words)));
    } else if (name == "admin-api-keys-file") {
      admin_keys_ = words;
    } else {
      has_model_ |= name == "model";
      has_admin_address_ |= name == "admin-address";
      if (name == "log-format") {
        split_.log_format = ValueOf(words);
      }
      GiveToPrograms(name, words);
    }
    return absl::OkStatus();
  }

  absl::StatusOr<ServeArguments> Finish() {
    Append(admin_keys_, split_.gateway);
    if (has_admin_address_) {
      Append(admin_keys_, split_.scheduler);
    }
    if (!has_model_) {
      return absl::InvalidArgumentError(
          "serve: --model is required (a path right after a flag is read as that flag's "
          "value)");
    }
    QUIRE_RETURN_IF_ERROR(swap_flags_.Check());
    QUIRE_RETURN_IF_ERROR(reach_flags_.Check());
    if (split_.worker_http_port.value_or(0) + split_.tensor_parallel_size - 1 > kMaxPort) {
      return absl::InvalidArgumentError(absl::StrCat(
          "serve: --worker-http-port: the port of the last rank would be above ", kMaxPort));
    }
    return std::move(split_);
  }

  bool has_model() const { return has_model_; }

 private:
  void GiveToPrograms(const std::string& name, const std::vector<std::string>& words) {
    const bool is_for_worker = IsFlagOf(kWorkerFlags, name);
    const bool is_for_gateway = IsFlagOf(kGatewayFlags, name);
    if (IsForAll(name) || is_for_worker) {
      Append(words, split_.worker);
    }
    if (IsForAll(name) || is_for_gateway || IsOneOf(kFrontFlags, name)) {
      Append(words, split_.gateway);
    }
    if (!is_for_worker && !is_for_gateway) {
      Append(words, split_.scheduler);
    }
  }

  ServeArguments split_;
  SwapFlags swap_flags_;
  ReachFlags reach_flags_;
  bool has_model_ = false;
  bool has_admin_address_ = false;
  std::vector<std::string> admin_keys_;  // the words of --admin-api-keys-file
};

}  // namespace

absl::StatusOr<ServeArguments> SplitServeArguments(const std::vector<std::string>& args) {
  Division division;
  for (size_t i = 0; i < args.size(); ++i) {
    std::vector<std::string> words = {args[i]};
    const bool positional_model = !division.has_model() && !args[i].starts_with('-');
    if (positional_model) {
      words = {"--model", args[i]};
    } else if (words[0] == "-tp" || words[0].starts_with("-tp=")) {
      words[0].replace(0, 3, "--tensor-parallel-size");
    } else if (!args[i].starts_with("--") || args[i] == "--") {
      return absl::InvalidArgumentError(absl::StrCat("serve: not a flag: ", args[i]));
    }
    const std::string name = FlagName(words[0]);
    if (IsOwn(name)) {
      return absl::InvalidArgumentError(absl::StrCat(
          "serve: --", name, ": must not be given, because serve starts the programs itself"));
    }
    const bool value_follows = !positional_model && args[i].find('=') == std::string::npos &&
                               i + 1 < args.size() && !BeginsLikeFlag(args[i + 1]);
    if (value_follows) {
      words.push_back(args[++i]);
    }
    QUIRE_RETURN_IF_ERROR(division.Take(name, words));
  }
  return division.Finish();
}

std::optional<WorkerHttp> ParseWorkerHttp(std::string_view line) {
  constexpr absl::string_view kHttp = " http=";
  // Takes the last " http=", because the path of a Unix socket after "listen=" may contain one too.
  const size_t begin = ToAbsl(line).rfind(kHttp);
  if (!line.starts_with("quire_worker: listens listen=") || begin == std::string_view::npos) {
    return std::nullopt;
  }
  const absl::string_view text = ToAbsl(line).substr(begin + kHttp.size());
  const absl::StatusOr<Address> address = ParseAddress(ToStd(text));
  if (!address.ok() || address->is_unix()) {
    return std::nullopt;
  }
  return WorkerHttp{.address = std::string(text),
                    .flag = absl::StrCat("--http-port=", address->port)};
}

std::optional<GatewayAddresses> ParseGatewayAddresses(std::string_view line) {
  absl::string_view rest = ToAbsl(line);
  GatewayAddresses addresses;
  if (!absl::ConsumePrefix(&rest, "quire_gateway: ")) {
    return std::nullopt;
  }
  addresses.is_ready = absl::ConsumePrefix(&rest, "ready ");
  if (!addresses.is_ready && !absl::ConsumePrefix(&rest, "listens ")) {
    return std::nullopt;
  }
  std::string_view text = ToStd(rest);
  const absl::StatusOr<std::string_view> api = TakeField(&text, "api");
  const absl::StatusOr<Address> api_address = api.ok() ? ParseAddress(*api) : api.status();
  if (!api_address.ok()) {
    return std::nullopt;
  }
  addresses.api = *api;
  addresses.flags = {absl::StrCat("--port=", api_address->port)};
  if (text.empty()) {
    return addresses;
  }
  const absl::StatusOr<std::string_view> http = TakeField(&text, "http");
  const absl::StatusOr<Address> http_address = http.ok() ? ParseAddress(*http) : http.status();
  if (!http_address.ok()) {
    return std::nullopt;
  }
  addresses.http = *http_address;
  addresses.flags.push_back(absl::StrCat("--http-port=", http_address->port));
  return addresses;
}

absl::StatusOr<SchedulerAddresses> ParseSchedulerAddresses(std::string_view text) {
  SchedulerAddresses addresses;
  QUIRE_ASSIGN_OR_RETURN(const std::string_view grpc_text, TakeField(&text, "grpc"));
  QUIRE_ASSIGN_OR_RETURN(const std::string_view http_text, TakeField(&text, "http"));
  QUIRE_ASSIGN_OR_RETURN(addresses.grpc, ParseAddress(grpc_text));
  QUIRE_ASSIGN_OR_RETURN(addresses.http, ParseAddress(http_text));
  addresses.flags = {absl::StrCat("--port=", addresses.grpc.port),
                     absl::StrCat("--http-port=", addresses.http.port)};
  // Takes the whole rest of the line, because the path of a Unix socket may contain blanks.
  if (absl::string_view admin = ToAbsl(text); absl::ConsumePrefix(&admin, " admin=")) {
    addresses.flags.push_back(absl::StrCat("--admin-address=", admin));
  }
  return addresses;
}

}  // namespace quire
