#include "common/wire/address.h"

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"

#include "common/base/error.h"
#include "common/base/status_macros.h"
#include "common/base/string_view.h"

namespace quire {
namespace {

constexpr std::string_view kUnixPrefix = "unix:";
constexpr int32_t kMaxPort = 65535;

absl::Status AddressError(std::string_view rule) {
  return InvalidArgument("ADDRESS", absl::StrCat("address: ", ToAbsl(rule)));
}

absl::StatusOr<Address> ParseUnix(std::string_view path) {
  if (path.starts_with("//")) {  // unix:///path is another spelling of unix:/path
    path.remove_prefix(2);
  }
  if (path.empty() || path.size() > kMaxUnixPathBytes) {
    return AddressError(absl::StrCat(
        "a socket path has 1 to ", kMaxUnixPathBytes, " bytes (got ", path.size(), ")"));
  }
  return Address{.unix_path = std::string(path), .host = "", .port = 0};
}

absl::StatusOr<int32_t> ParsePort(std::string_view text) {
  int32_t port = 0;
  bool digits = !text.empty() && text.find_first_not_of("0123456789") == std::string_view::npos;
  if (!digits || !absl::SimpleAtoi(ToAbsl(text), &port) || port > kMaxPort) {
    return AddressError("the port must be a number from 0 to 65535");
  }
  return port;
}

}  // namespace

bool Address::is_local() const {
  if (is_unix() || host == "localhost" || host == "::1") {
    return true;
  }
  // A loopback address has only digits and dots; a name like 127.example.com may resolve to any
  // machine.
  return absl::StartsWith(host, "127.") &&
         host.find_first_not_of("0123456789.") == std::string::npos;
}

std::string Address::ToString() const {
  if (is_unix()) {
    return absl::StrCat(ToAbsl(kUnixPrefix), unix_path);
  }
  bool is_ipv6 = absl::StrContains(host, ":");
  return is_ipv6 ? absl::StrCat("[", host, "]:", port) : absl::StrCat(host, ":", port);
}

absl::StatusOr<Address> ParseAddress(std::string_view text) {
  if (text.starts_with(kUnixPrefix)) {
    return ParseUnix(text.substr(kUnixPrefix.size()));
  }
  size_t colon = text.rfind(':');
  if (colon == std::string_view::npos) {
    return AddressError("must be unix:/path or host:port");
  }
  std::string_view host = text.substr(0, colon);
  if (host.size() >= 2 && host.front() == '[' && host.back() == ']') {
    host = host.substr(1, host.size() - 2);
  } else if (host.find(':') != std::string_view::npos) {
    return AddressError("an IPv6 address is written in brackets, [::1]:port");
  }
  if (host.empty()) {
    return AddressError("must be unix:/path or host:port");
  }
  QUIRE_ASSIGN_OR_RETURN(int32_t port, ParsePort(text.substr(colon + 1)));
  return Address{.unix_path = "", .host = std::string(host), .port = port};
}

}  // namespace quire
