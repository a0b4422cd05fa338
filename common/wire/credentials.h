// Credentials of our ports and of our channels: TLS with the files of a TlsFiles, or plain text. A
// port can also check each call before the call begins.
//
// A server reads its TlsFiles at each new connection, so that replaced files apply to the next
// connection and do not break open connections. A channel keeps the files that it was dialed with.
//
// Thread safety: free functions, safe from any thread.
#ifndef QUIRE_COMMON_WIRE_CREDENTIALS_H_
#define QUIRE_COMMON_WIRE_CREDENTIALS_H_

#include <functional>
#include <memory>
#include <string_view>

#include "absl/status/status.h"
#include <grpcpp/security/credentials.h>
#include <grpcpp/security/server_credentials.h>

#include "common/wire/tls_files.h"

namespace quire {

// Returns OK if a call is permitted. Called by any thread, when the call's metadata has arrived and
// before its message is read. Called for every path, even for the library's own services and for
// unknown methods. path: "/package.Service/Method". authorization: the value of the metadata
// `authorization`; empty if the call has none, or several. The client gets only the status's code
// and message.
using CallCheck =
    std::function<absl::Status(std::string_view path, std::string_view authorization)>;

// files: null for plain text. If the files have authorities, clients need a certificate signed by
// one of the authorities. check: null for no check. The credentials must outlive the server.
// REQUIRES: the files, if given, have a certificate.
std::shared_ptr<grpc::ServerCredentials> MakeServerCredentials(std::shared_ptr<TlsFiles> files,
                                                               CallCheck check = nullptr);

// files: null for plain text. The server's certificate must be signed by one of the authorities,
// and must name the host that is dialed ("localhost" for a Unix socket).
std::shared_ptr<grpc::ChannelCredentials> MakeChannelCredentials(TlsFiles* files);

}  // namespace quire

#endif  // QUIRE_COMMON_WIRE_CREDENTIALS_H_
