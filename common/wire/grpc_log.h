// What gRPC says of itself goes where our own log goes, which never waits. gRPC's own writing to
// standard error does: connections of strangers that make it complain would stop a server whose log
// nobody reads at the moment. Of handshakes that fail a line is written every ten seconds at most:
// whoever is refused may come again at once.
//
// Thread safety: call from main, before gRPC is used.
#ifndef QUIRE_COMMON_WIRE_GRPC_LOG_H_
#define QUIRE_COMMON_WIRE_GRPC_LOG_H_

namespace quire {

void SendGrpcLogToOurs();

}  // namespace quire

#endif  // QUIRE_COMMON_WIRE_GRPC_LOG_H_
