// What a port of ours asks of who dials it, and what we show when we dial: TLS by the files of a
// TlsFiles, or nothing, in plain text.
//
// A server reads its files when somebody connects, so that new ones hold for the next connection
// and break none that is there. A channel has those of its dial.
//
// Thread safety: free functions, safe from any thread.
#ifndef QUIRE_COMMON_WIRE_CREDENTIALS_H_
#define QUIRE_COMMON_WIRE_CREDENTIALS_H_

#include <memory>

#include <grpcpp/security/credentials.h>
#include <grpcpp/security/server_credentials.h>

#include "common/wire/tls_files.h"

namespace quire {

// Null: plain text. With authorities, whoever connects must have a certificate of one of them.
// REQUIRES: a certificate. They must outlive the server.
std::shared_ptr<grpc::ServerCredentials> MakeServerCredentials(std::shared_ptr<TlsFiles> files);

// Null: plain text. The server's certificate must be of one of the authorities, and for the host
// that is dialled; on a Unix socket for "localhost".
std::shared_ptr<grpc::ChannelCredentials> MakeChannelCredentials(TlsFiles* files);

}  // namespace quire

#endif  // QUIRE_COMMON_WIRE_CREDENTIALS_H_
