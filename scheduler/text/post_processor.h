// PostProcessor puts special tokens around the tokens of a text: the `post_processor` of
// tokenizer.json. Known: TemplateProcessing, RobertaProcessing, ByteLevel (which only moves
// offsets, and so does nothing here), and Sequence of them.
//
// Thread safety: immutable after Parse; safe from any thread.
// Errors:        kInvalidArgument, reason TOKENIZER.
#ifndef QUIRE_SCHEDULER_TEXT_POST_PROCESSOR_H_
#define QUIRE_SCHEDULER_TEXT_POST_PROCESSOR_H_

#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

#include "common/base/ids.h"
#include "scheduler/text/json_node.h"
#include "scheduler/text/vocabulary.h"

namespace quire {

class PostProcessor {
 public:
  // node: the value of the key "post_processor"; null means none.
  static absl::StatusOr<PostProcessor> Parse(const JsonNode& node, const Vocabulary& vocabulary);

  const std::vector<TokenId>& prefix() const { return prefix_; }
  const std::vector<TokenId>& suffix() const { return suffix_; }

 private:
  absl::Status AddTemplate(const JsonNode& node, const Vocabulary& vocabulary);
  absl::Status AddRoberta(const JsonNode& node, const Vocabulary& vocabulary);
  void Wrap(const std::vector<TokenId>& before, const std::vector<TokenId>& after);

  std::vector<TokenId> prefix_;
  std::vector<TokenId> suffix_;
};

}  // namespace quire

#endif  // QUIRE_SCHEDULER_TEXT_POST_PROCESSOR_H_
