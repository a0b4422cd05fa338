// TlsFiles are the certificate, the key and the certificate authorities of one port, or of the
// connections of one kind, in PEM files that may be replaced while the process runs (reloaded.h).
// Files that do not belong together are not used.
//
// Thread safety: any thread.
// Errors:        kInvalidArgument, reason TLS_FILE, message "TLS: file: rule". Of a file no content
//                is ever told.
#ifndef QUIRE_COMMON_WIRE_TLS_FILES_H_
#define QUIRE_COMMON_WIRE_TLS_FILES_H_

#include <memory>
#include <string>

#include "absl/status/statusor.h"

#include "common/wire/reloaded.h"

namespace quire {

// Of files, or what is in them.
struct TlsTexts {
  std::string certificate;  // with those that lead to an authority behind it; empty: none
  std::string key;          // of the certificate, not encrypted
  std::string authorities;  // who may have signed the certificate of the other end; empty: nobody
                            // is asked for one

  bool is_empty() const { return certificate.empty() && key.empty() && authorities.empty(); }

  friend bool operator==(const TlsTexts&, const TlsTexts&) = default;
};

// What is in the files now. An empty path is an empty text; a certificate and its key go together.
absl::StatusOr<TlsTexts> ReadTlsFiles(const TlsTexts& paths);

class TlsFiles {
 public:
  // What Get returns is at most so old.
  static constexpr int64_t kMaxAgeNs = Reloaded<TlsTexts>::kMaxAgeNs;

  // Errors: what ReadTlsFiles says.
  static absl::StatusOr<std::shared_ptr<TlsFiles>> Open(const TlsTexts& paths);

  // The newest ones that belong together.
  TlsTexts Get() { return *texts_.Get(); }

  // Whether the other end is asked for a certificate. Paths do not change.
  bool has_authorities() const { return !paths_.authorities.empty(); }

 private:
  TlsFiles(TlsTexts paths, TlsTexts texts);

  const TlsTexts paths_;
  Reloaded<TlsTexts> texts_;
};

}  // namespace quire

#endif  // QUIRE_COMMON_WIRE_TLS_FILES_H_
