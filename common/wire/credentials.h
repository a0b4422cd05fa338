// What a port of ours asks of who dials it, and what we show when we dial: TLS by the files of a
// TlsFiles, or nothing, in plain text. A port may also look at each call before it is one.
//
// A server reads its files when somebody connects, so that new ones hold for the next connection
// and break none that is there. A channel has those of its dial.
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

// Whether a call may be: asked by any thread as soon as its metadata is there, before its message
// is read, for methods of every service, also of those that the library brings and of none.
// path: "/package.Service/Method". authorization: the one value of that name, empty when there is
// none, or several. The client is told code and message, and nothing else of the status.
using CallCheck =
    std::function<absl::Status(std::string_view path, std::string_view authorization)>;

// files: null for plain text. With authorities, whoever connects must have a certificate of one of
// them. REQUIRES: a certificate. check: null for none. The result must outlive the server.
std::shared_ptr<grpc::ServerCredentials> MakeServerCredentials(std::shared_ptr<TlsFiles> files,
                                                               CallCheck check = nullptr);

// Null: plain text. The server's certificate must be of one of the authorities, and for the host
// that is dialled; on a Unix socket for "localhost".
std::shared_ptr<grpc::ChannelCredentials> MakeChannelCredentials(TlsFiles* files);

}  // namespace quire

#endif  // QUIRE_COMMON_WIRE_CREDENTIALS_H_
