// BpeModel merges the characters or bytes of a piece of text into tokens. It repeatedly merges the
// adjacent pair with the lowest rank. If several pairs have this rank, it merges the leftmost.
//
// Thread safety: immutable after Create; safe from any thread. Each thread needs its own Scratch.
// Errors:        kInvalidArgument, reason TOKENIZER.
// Cost:          a piece that is itself a token takes one look-up. Any other piece of n characters
//                or bytes takes O(n^2) if n <= 48, because a search of all pairs is faster there.
//                A longer piece takes O(n log n), with a priority queue over a linked list. Each
//                byte, and each pair that leaves the queue, spends one step of the TextBudget.
// Source:        Sennrich, Haddow and Birch 2016, algorithm 1.
#ifndef QUIRE_SCHEDULER_TEXT_BPE_MODEL_H_
#define QUIRE_SCHEDULER_TEXT_BPE_MODEL_H_

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"

#include "common/base/ids.h"
#include "scheduler/text/json_node.h"
#include "scheduler/text/text_budget.h"
#include "scheduler/text/vocabulary.h"

namespace quire {

class BpeModel {
 public:
  // Working memory of Encode; reuse it for many pieces.
  struct Scratch {
    std::vector<TokenId> symbols;
    std::vector<uint32_t> ranks;
    std::vector<int32_t> previous;
    std::vector<int32_t> next;
    std::vector<uint64_t> queue;
  };

  // node: the value of the key "model". byte_level: true if pieces are read as bytes. The
  // vocabulary then writes each byte as a character of GPT-2's alphabet. REQUIRES: `vocabulary`
  // outlives the model.
  static absl::StatusOr<std::unique_ptr<const BpeModel>> Create(const JsonNode& node,
                                                                const Vocabulary& vocabulary,
                                                                bool byte_level);

  // Appends the tokens of piece. REQUIRES: piece is valid UTF-8, and not empty. Errors: the errors
  // of the budget.
  absl::Status Encode(std::string_view piece,
                      TextBudget* budget,
                      Scratch* scratch,
                      std::vector<TokenId>* ids) const;

 private:
  struct Merge {
    uint32_t rank;
    TokenId merged;
  };

  BpeModel() = default;

  absl::Status ReadOptions(const JsonNode& node, const Vocabulary& vocabulary);
  absl::Status ReadMerges(const JsonNode& node, const Vocabulary& vocabulary);
  absl::Status AddMerge(const JsonNode& node,
                        std::string_view left,
                        std::string_view right,
                        const Vocabulary& vocabulary);
  absl::Status IndexSymbols(const JsonNode& node, const Vocabulary& vocabulary);
  absl::Status IndexWholePieces(const Vocabulary& vocabulary);
  void FindSafeCut(const Vocabulary& vocabulary);

  const Merge* FindMerge(TokenId left, TokenId right) const;
  absl::Status EncodeWord(std::string_view word,
                          TextBudget* budget,
                          Scratch* scratch,
                          std::vector<TokenId>* ids) const;
  // Fills scratch->symbols with the tokens of the word's single characters, or of its bytes.
  void ReadSymbols(std::string_view word, Scratch* scratch) const;
  void ReadByteSymbols(std::string_view word, std::vector<TokenId>* symbols) const;
  void ReadCharacterSymbols(std::string_view word, std::vector<TokenId>* symbols) const;
  bool AppendFallbackBytes(std::string_view character, std::vector<TokenId>* symbols) const;
  void MergeShort(Scratch* scratch) const;
  absl::Status MergeLong(TextBudget* budget, Scratch* scratch) const;

  bool byte_level_ = false;
  bool fuse_unk_ = false;
  bool byte_fallback_ = false;
  bool ignore_merges_ = false;
  bool cut_before_metaspace_ = false;
  std::optional<TokenId> unk_;

  std::array<TokenId, 256> byte_tokens_;  // token of each byte; -1: none
  absl::flat_hash_map<char32_t, TokenId> character_tokens_;
  absl::flat_hash_map<uint64_t, Merge> merges_;  // key: left id << 32 | right id
  std::vector<TokenId> merged_by_rank_;

  // Pieces that become exactly one token. The keys are views into piece_bytes_ if byte_level_, else
  // into the vocabulary.
  absl::flat_hash_map<std::string_view, TokenId> whole_pieces_;
  std::string piece_bytes_;
};

}  // namespace quire

#endif  // QUIRE_SCHEDULER_TEXT_BPE_MODEL_H_
