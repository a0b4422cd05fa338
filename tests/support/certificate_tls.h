// TLS by a certificate that anybody can make: what a stranger speaks who has no secret.
//
// Thread safety: any thread, one at a time for each connection. From then on the thread gets no
//                SIGPIPE.
#ifndef QUIRE_TESTS_SUPPORT_CERTIFICATE_TLS_H_
#define QUIRE_TESTS_SUPPORT_CERTIFICATE_TLS_H_

namespace quire {

// Dials, and believes every certificate. Whether the handshake came to its end, on a socket that
// waits.
bool ConnectsByCertificate(int socket);
// The end that is dialled, with a fresh certificate of its own.
bool AcceptsByCertificate(int socket);

}  // namespace quire

#endif  // QUIRE_TESTS_SUPPORT_CERTIFICATE_TLS_H_
