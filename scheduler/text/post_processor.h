// PostProcessor puts special tokens around the tokens of a text: the `post_processor` of
// tokenizer.json. Supported: TemplateProcessing, RobertaProcessing, ByteLevel, and a Sequence of
// these. ByteLevel does nothing here, because it changes only character offsets.
//
// Thread safety: immutable after Parse; safe from any thread.
// Errors:        kInvalidArgument, reason TOKENIZER.
#ifndef QUIRE_SCHEDULER_TEXT_POST_PROCESSOR_H_
#define QUIRE_SCHEDULER_TEXT_POST_PROCESSOR_H_

#include <cstddef>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

#include "common/base/ids.h"
#include "scheduler/text/json_node.h"
#include "scheduler/text/vocabulary.h"

namespace quire {

// Upper bound on the tokens put around a text, on both sides together. Without this bound, a small
// tokenizer.json could add a huge number of tokens to every text.
inline constexpr size_t kMaxSpecialIds = 1024;

class PostProcessor {
 public:
  // node: the value of the key "post_processor"; null means none. Cost: O(size of the file),
  // however many ids the templates stand for.
  static absl::StatusOr<PostProcessor> Parse(const JsonNode& node, const Vocabulary& vocabulary);

  const std::vector<TokenId>& prefix() const { return prefix_; }
  const std::vector<TokenId>& suffix() const { return suffix_; }

 private:
  absl::Status AddTemplate(const JsonNode& node, const Vocabulary& vocabulary);
  absl::Status AddRoberta(const JsonNode& node, const Vocabulary& vocabulary);
  // Returns an error if num_ids more ids would exceed kMaxSpecialIds.
  absl::Status CheckRoom(const JsonNode& node, size_t num_ids) const;

  std::vector<TokenId> prefix_;
  std::vector<TokenId> suffix_;
};

}  // namespace quire

#endif  // QUIRE_SCHEDULER_TEXT_POST_PROCESSOR_H_
