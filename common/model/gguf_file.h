// GgufFile is an open GGUF model: one file, or all parts of a split model. Open checks the headers
// completely: every tensor lies inside its part, is aligned, and overlaps no other tensor. Tensor
// data is read on demand with pread, not mapped. If the file shrinks or the disk fails, Read
// returns an error; with a mapping, the process would end by SIGBUS.
//
// A split model has the parts NAME-00001-of-0000N.gguf to NAME-0000N-of-0000N.gguf. The first part
// has the metadata. Every part has the keys split.no, split.count and split.tensors.count, and the
// keys of all parts must agree.
//
// Thread safety: const methods from any thread.
// Units:         offsets and sizes in bytes.
// Errors:        kInvalidArgument, reason MODEL_FILE, message "load: <file>: <rule>" or
//                "load: <file>: <tensor or key>: <rule>"; kNotFound if the file or a part is
//                missing.
// Cost:          Open reads only the headers, at most kMaxGgufHeaderBytes. Its memory grows with
//                the bytes that were read, never with a count that the header claims.
// Source:        docs/gguf.md of the ggml project, versions 2 and 3, little endian.
#ifndef QUIRE_COMMON_MODEL_GGUF_FILE_H_
#define QUIRE_COMMON_MODEL_GGUF_FILE_H_

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

#include "common/model/gguf_header.h"
#include "common/model/gguf_metadata.h"
#include "common/model/regular_file.h"

namespace quire {

// Upper bound on the bytes of the headers of all parts together. Most bytes of a header belong to
// the tokenizer: about 10 MB for 262,144 tokens.
inline constexpr int64_t kMaxGgufHeaderBytes = int64_t{256} << 20;
// Upper bound on the parts of a model, because each part keeps a file open. Published models have
// some dozens.
inline constexpr int64_t kMaxGgufParts = 500;

class GgufFile {
 public:
  // `path`: the file, or the first part of a split model; symbolic links in it are followed. The
  // other parts are opened from the folder of `path`, through ResolveModelFile.
  static absl::StatusOr<GgufFile> Open(const std::string& path);

  // The last component of the path.
  const std::string& name() const { return parts_.front().name(); }
  int32_t num_parts() const { return static_cast<int32_t>(parts_.size()); }
  // The file of a part. REQUIRES: 0 <= index < num_parts().
  const RegularFile& part(int32_t index) const { return parts_[static_cast<size_t>(index)]; }
  // Returns the size of all parts together.
  int64_t file_bytes() const;

  const GgufMetadata& metadata() const { return metadata_; }
  // Sorted by part and offset.
  const std::vector<GgufTensor>& tensors() const { return tensors_; }
  // Returns nullptr if there is no such tensor. Cost: a binary search.
  const GgufTensor* Find(std::string_view name) const;

  // Fills `out` with the tensor's bytes, starting at byte `begin` of the tensor. REQUIRES: `tensor`
  // is one of tensors(), and has all these bytes.
  absl::Status Read(const GgufTensor& tensor, int64_t begin, std::span<std::byte> out) const;
  // Tells the kernel that the tensor's pages need not stay in its page cache.
  void DropCached(const GgufTensor& tensor) const;

 private:
  GgufFile() = default;

  // Adds a part and its tensors. Takes the metadata from the first part only.
  absl::Status AddPart(RegularFile file);
  // Opens the parts after the first, if there are any.
  absl::Status OpenOtherParts(const std::string& path);
  // Checks the keys split.* of the part that is added next, with index parts_.size().
  absl::Status CheckKeys(const GgufMetadata& metadata) const;
  // Fills by_name_. Errors: two tensors have the same name.
  absl::Status IndexNames();

  std::vector<RegularFile> parts_;
  int64_t header_bytes_ = 0;  // of all parts
  GgufMetadata metadata_;     // of the first part
  std::vector<GgufTensor> tensors_;
  std::vector<int32_t> by_name_;  // indices of tensors_, ascending by name
};

}  // namespace quire

#endif  // QUIRE_COMMON_MODEL_GGUF_FILE_H_
