#include "deploy/cli/prefix_command.h"

#include <algorithm>
#include <cstdio>
#include <string>

#include "grpcpp/grpcpp.h"

#include "proto/v1/admin.grpc.pb.h"

#include "common/base/status_macros.h"
#include "common/flags/command_line.h"
#include "common/wire/grpc_status.h"
#include "deploy/cli/describe_error.h"
#include "deploy/cli/flag_table.h"

namespace quire {
namespace {

constexpr char kPrefixUsage[] =
    R"(usage: quire prefix pin --admin ADDR (--prompt TEXT | --prompt-token-ids 1,2,3) [flags]
       quire prefix list --admin ADDR
       quire prefix unpin --admin ADDR --id ID

Pins prompt prefixes: a server that runs with --admin-address ADDR keeps their KV blocks.

    --admin HOST:PORT | unix:PATH
    --prompt TEXT                    pin this text
    --prompt-token-ids 1,2,3         pin these tokens
    --cache-salt TEXT                only requests with this cache salt use the prefix
    --no-special-tokens              do not add special tokens, such as BOS
    --parse-special-tokens           read the text of a special token as that token
    --id ID                          the id that pin and list print
)";

const char* NameOf(v1::PrefixState state) {
  switch (state) {
    case v1::PREFIX_STATE_WAITING:
      return "waiting";
    case v1::PREFIX_STATE_COMPUTING:
      return "computing";
    case v1::PREFIX_STATE_PINNED:
      return "pinned";
    default:
      return "unknown";
  }
}

void Print(const v1::PinnedPrefix& prefix) {
  std::printf("id=%llu state=%s tokens=%d blocks=%d\n",
              static_cast<unsigned long long>(prefix.prefix_id()),
              NameOf(prefix.state()),
              prefix.num_tokens(),
              prefix.num_blocks());
}

absl::Status Call(v1::AdminService::Stub& stub,
                  const std::string& api_key,
                  const PrefixOptions& options) {
  grpc::ClientContext context;
  AddApiKey(api_key, context);
  switch (options.action) {
    case PrefixOptions::Action::kPin: {
      v1::PinPrefixResponse response;
      QUIRE_RETURN_IF_ERROR(FromGrpcStatus(stub.PinPrefix(&context, options.pin, &response)));
      Print(response.prefix());
      return absl::OkStatus();
    }
    case PrefixOptions::Action::kList: {
      v1::ListPrefixesResponse response;
      QUIRE_RETURN_IF_ERROR(
          FromGrpcStatus(stub.ListPrefixes(&context, v1::ListPrefixesRequest(), &response)));
      for (const v1::PinnedPrefix& prefix : response.prefixes()) {
        Print(prefix);
      }
      return absl::OkStatus();
    }
    case PrefixOptions::Action::kUnpin: {
      v1::UnpinPrefixRequest request;
      request.set_prefix_id(*options.unpin_id);
      v1::UnpinPrefixResponse response;
      return FromGrpcStatus(stub.UnpinPrefix(&context, request, &response));
    }
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<PrefixOptions> ParsePrefixArguments(const std::vector<std::string>& args) {
  PrefixOptions options;
  const std::string action = args.empty() ? "" : args.front();
  if (action == "pin") {
    options.action = PrefixOptions::Action::kPin;
  } else if (action == "unpin") {
    options.action = PrefixOptions::Action::kUnpin;
  } else if (action != "list") {
    return absl::InvalidArgumentError("the first argument must be pin, list or unpin");
  }
  v1::PinPrefixRequest& pin = options.pin;
  FlagTable flags;
  AddServerAccessFlags(options.access, flags);
  flags.Text("admin", [&](const std::string& v) { options.admin = v; });
  if (options.action == PrefixOptions::Action::kPin) {
    flags.Text("prompt", [&](const std::string& v) { pin.set_text(v); });
    flags.Int32List("prompt-token-ids", [&](int32_t id) { pin.mutable_token_ids()->add_ids(id); });
    flags.Text("cache-salt", [&](const std::string& v) { pin.set_cache_salt(v); });
    flags.Switch("no-special-tokens", [&] { pin.set_add_special_tokens(false); });
    flags.Switch("parse-special-tokens", [&] { pin.set_parse_special_tokens(true); });
  }
  if (options.action == PrefixOptions::Action::kUnpin) {
    flags.Uint64("id", [&](uint64_t id) { options.unpin_id = id; });
  }
  QUIRE_RETURN_IF_ERROR(flags.Parse({args.begin() + 1, args.end()}));
  if (options.admin.empty()) {
    return absl::InvalidArgumentError("--admin HOST:PORT or unix:PATH is required");
  }
  if (options.action == PrefixOptions::Action::kPin && !pin.has_text() && !pin.has_token_ids()) {
    return absl::InvalidArgumentError("pin requires --prompt or --prompt-token-ids");
  }
  if (options.action == PrefixOptions::Action::kUnpin && !options.unpin_id.has_value()) {
    return absl::InvalidArgumentError("unpin requires --id");
  }
  return options;
}

int RunPrefix(const std::vector<std::string>& args) {
  if (std::find(args.begin(), args.end(), "--help") != args.end()) {
    std::fputs(kPrefixUsage, stdout);
    std::fputs(kServerAccessUsage, stdout);
    return 0;
  }
  absl::StatusOr<PrefixOptions> options = ParsePrefixArguments(args);
  const auto server = options.ok() ? DialAdmin(options->admin, options->access)
                                   : absl::StatusOr<AdminServer>(options.status());
  if (!server.ok()) {
    std::fprintf(stderr, "quire: prefix: %s\n", DescribeError(server.status()).c_str());
    return kExitUsage;
  }
  auto stub = v1::AdminService::NewStub(server->channel);
  const absl::Status status = Call(*stub, server->api_key, *options);
  if (!status.ok()) {
    std::fprintf(stderr, "quire: prefix: %s\n", DescribeError(status).c_str());
    return 1;
  }
  return 0;
}

}  // namespace quire
