// GgufFile is an open GGUF model: one file, or all parts of a split one, whose headers were checked
// completely. Every tensor lies inside its part, is aligned, and overlaps no other tensor. Tensor
// data is read on demand with pread, not mapped. If the file shrinks or the disk fails, Read
// returns an error; a mapping would end the process with SIGBUS.
//
// Split models have parts NAME-00001-of-0000N.gguf to NAME-0000N-of-0000N.gguf. The first one has
// the metadata; all have the keys split.no, split.count and split.tensors.count, which must agree.
//
// Thread safety: const methods from any thread.
// Units:         offsets and sizes in bytes.
// Errors:        kInvalidArgument, reason MODEL_FILE, message "load: <file>: <rule>" or
//                "load: <file>: <tensor or key>: <rule>"; kNotFound if the file or a part is
//                missing.
// Cost:          Open reads only the headers, at most kMaxGgufHeaderBytes, and allocates in
//                proportion to the bytes that it read, never to a number in the header.
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

// Upper bound on the headers of all parts together. The largest part of a header is the tokenizer:
// about 10 MB for 262,144 tokens.
inline constexpr int64_t kMaxGgufHeaderBytes = int64_t{256} << 20;
// Upper bound on the parts, each of which holds an open file. Published models have some dozens.
inline constexpr int64_t kMaxGgufParts = 500;

class GgufFile {
 public:
  // `path`: the file, or the first part of a split model. Symbolic links of this path are followed;
  // the other parts are found beside it, by the rules of ResolveModelFile.
  static absl::StatusOr<GgufFile> Open(const std::string& path);

  // The last component of the path.
  const std::string& name() const { return parts_.front().name(); }
  int32_t num_parts() const { return static_cast<int32_t>(parts_.size()); }
  // The file of a part. REQUIRES: 0 <= index < num_parts().
  const RegularFile& part(int32_t index) const { return parts_[static_cast<size_t>(index)]; }
  // Size of all parts together.
  int64_t file_bytes() const;

  const GgufMetadata& metadata() const { return metadata_; }
  // Sorted by part and offset.
  const std::vector<GgufTensor>& tensors() const { return tensors_; }
  // Returns nullptr if there is no such tensor. Cost: a binary search.
  const GgufTensor* Find(std::string_view name) const;

  // Fills `out` with the tensor's bytes from `begin`. REQUIRES: they lie inside the tensor, which
  // is one of tensors().
  absl::Status Read(const GgufTensor& tensor, int64_t begin, std::span<std::byte> out) const;
  // Tells the kernel that the tensor's pages need not stay in its page cache.
  void DropCached(const GgufTensor& tensor) const;

 private:
  GgufFile() = default;

  // Adds the file, its tensors and, from the first part, its metadata.
  absl::Status AddPart(RegularFile file);
  // Opens the parts after the first, if there are any.
  absl::Status OpenOtherParts(const std::string& path);
  // Checks the keys of a part after the first, whose index is parts_.size().
  absl::Status CheckKeys(const GgufMetadata& metadata) const;
  // Sorts the names. Errors: a name is there twice.
  absl::Status IndexNames();

  std::vector<RegularFile> parts_;
  int64_t header_bytes_ = 0;  // of all parts
  GgufMetadata metadata_;     // of the first part
  std::vector<GgufTensor> tensors_;
  std::vector<int32_t> by_name_;  // indices of tensors_, ascending by name
};

}  // namespace quire

#endif  // QUIRE_COMMON_MODEL_GGUF_FILE_H_
