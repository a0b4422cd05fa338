#include "scheduler/text/bpe_model.h"

#include <algorithm>
#include <functional>
#include <limits>
#include <utility>

#include "absl/memory/memory.h"
#include "absl/strings/str_cat.h"

#include "common/base/status_macros.h"
#include "common/base/string_view.h"
#include "scheduler/text/byte_alphabet.h"
#include "scheduler/text/byte_fallback.h"
#include "scheduler/text/utf8.h"

namespace quire {
namespace {

constexpr uint32_t kNoRank = std::numeric_limits<uint32_t>::max();

// Up to this many symbols, a search of all pairs for the lowest rank is faster than a priority
// queue.
constexpr size_t kShortWordSymbols = 48;

constexpr std::string_view kMetaspace = "\xE2\x96\x81";  // U+2581, SentencePiece's space

uint64_t PairKey(TokenId left, TokenId right) {
  return uint64_t{static_cast<uint32_t>(left)} << 32 | static_cast<uint32_t>(right);
}

// Returns an entry of the priority queue, which takes the smallest entry first: entries are ordered
// by rank, then by position.
uint64_t QueueEntry(uint32_t rank, size_t position) {
  return uint64_t{rank} << 32 | static_cast<uint32_t>(position);
}

}  // namespace

absl::StatusOr<std::unique_ptr<const BpeModel>> BpeModel::Create(const JsonNode& node,
                                                                 const Vocabulary& vocabulary,
                                                                 bool byte_level) {
  auto model = absl::WrapUnique(new BpeModel());
  model->byte_level_ = byte_level;
  QUIRE_RETURN_IF_ERROR(model->ReadOptions(node, vocabulary));
  QUIRE_RETURN_IF_ERROR(model->IndexSymbols(node, vocabulary));
  QUIRE_RETURN_IF_ERROR(model->ReadMerges(node, vocabulary));
  model->FindSafeCut(vocabulary);
  QUIRE_RETURN_IF_ERROR(model->IndexWholePieces(vocabulary));
  return std::unique_ptr<const BpeModel>(std::move(model));
}

absl::Status BpeModel::ReadOptions(const JsonNode& node, const Vocabulary& vocabulary) {
  QUIRE_RETURN_IF_ERROR(node.CheckKeys({"type",
                                        "dropout",
                                        "unk_token",
                                        "continuing_subword_prefix",
                                        "end_of_word_suffix",
                                        "fuse_unk",
                                        "byte_fallback",
                                        "ignore_merges",
                                        "vocab",
                                        "merges"}));
  // Old files leave the type out.
  if (node.Has("type")) {
    QUIRE_ASSIGN_OR_RETURN(std::string type, node.GetString("type"));
    if (type != "BPE") {
      return node.Error("type of model is not supported", type);
    }
  }
  if (node.Has("dropout") && node.json()["dropout"] != 0.0) {
    return node.Error("dropout must be null or 0");
  }
  for (const char* key : {"continuing_subword_prefix", "end_of_word_suffix"}) {
    // NOLINTNEXTLINE(readability-container-size-empty): empty() of json is not about strings
    if (node.Has(key) && node.json()[key] != "") {
      return node.Error(absl::StrCat(key, " must be null or empty"));
    }
  }
  if (node.Has("unk_token")) {
    QUIRE_ASSIGN_OR_RETURN(std::string unk, node.GetString("unk_token"));
    unk_ = vocabulary.FindInModel(unk);
    if (!unk_.has_value()) {
      return node.Error("unk_token is not in the vocabulary", unk);
    }
  }
  QUIRE_ASSIGN_OR_RETURN(fuse_unk_, node.GetBool("fuse_unk", false));
  QUIRE_ASSIGN_OR_RETURN(byte_fallback_, node.GetBool("byte_fallback", false));
  QUIRE_ASSIGN_OR_RETURN(ignore_merges_, node.GetBool("ignore_merges", false));
  if (byte_fallback_ && byte_level_) {
    return node.Error("byte_fallback is not supported with a ByteLevel pre_tokenizer");
  }
  return absl::OkStatus();
}

absl::Status BpeModel::IndexSymbols(const JsonNode& node, const Vocabulary& vocabulary) {
  byte_tokens_.fill(-1);
  for (uint32_t byte = 0; byte < 256; ++byte) {
    std::string text;
    if (byte_level_) {
      AppendUtf8(ByteToCharacter(static_cast<uint8_t>(byte)), &text);
    } else if (byte_fallback_) {
      text = ByteTokenText(static_cast<uint8_t>(byte));
    }
    byte_tokens_[byte] = vocabulary.FindInModel(text).value_or(-1);
  }
  if (byte_level_) {
    return absl::OkStatus();
  }
  for (TokenId id = 0; id < vocabulary.size(); ++id) {
    std::string_view text = vocabulary.Text(id);
    if (!vocabulary.IsInModel(id) || text.empty()) {
      continue;
    }
    if (byte_fallback_ && IsBrokenByteToken(text)) {
      return node.Error("byte tokens must be <0x00> to <0xFF>", text);
    }
    Utf8Step first = NextUtf8(text);
    if (first.length == text.size()) {
      character_tokens_.emplace(first.code_point, id);
    }
  }
  return absl::OkStatus();
}

absl::Status BpeModel::ReadMerges(const JsonNode& node, const Vocabulary& vocabulary) {
  QUIRE_ASSIGN_OR_RETURN(JsonNode merges, node.Get("merges"));
  if (!merges.json().is_array()) {
    return merges.Error("must be an array");
  }
  merges_.reserve(merges.json().size());
  merged_by_rank_.reserve(merges.json().size());
  for (const Json& merge : merges.json()) {
    if (merge.is_string()) {
      std::string_view pair = merge.get_ref<const std::string&>();
      size_t space = pair.find(' ');
      if (space == std::string_view::npos || pair.find(' ', space + 1) != std::string_view::npos) {
        return merges.Error("a merge must be two tokens separated by one space", pair);
      }
      QUIRE_RETURN_IF_ERROR(
          AddMerge(merges, pair.substr(0, space), pair.substr(space + 1), vocabulary));
    } else if (merge.is_array() && merge.size() == 2 && merge[0].is_string() &&
               merge[1].is_string()) {
      QUIRE_RETURN_IF_ERROR(AddMerge(merges,
                                     merge[0].get_ref<const std::string&>(),
                                     merge[1].get_ref<const std::string&>(),
                                     vocabulary));
    } else {
      return merges.Error(
          absl::StrCat("a merge must be a string or an array of two strings (number ",
                       merged_by_rank_.size(),
                       ")"));
    }
  }
  return absl::OkStatus();
}

absl::Status BpeModel::AddMerge(const JsonNode& node,
                                std::string_view left,
                                std::string_view right,
                                const Vocabulary& vocabulary) {
  std::string merged = absl::StrCat(ToAbsl(left), ToAbsl(right));
  std::optional<TokenId> left_id = vocabulary.FindInModel(left);
  std::optional<TokenId> right_id = vocabulary.FindInModel(right);
  std::optional<TokenId> merged_id = vocabulary.FindInModel(merged);
  if (left.empty() || right.empty() || !left_id.has_value() || !right_id.has_value() ||
      !merged_id.has_value()) {
    return node.Error("a merge names a token that is not in the vocabulary", merged);
  }
  uint32_t rank = static_cast<uint32_t>(merged_by_rank_.size());
  merges_.insert_or_assign(PairKey(*left_id, *right_id), Merge{rank, *merged_id});
  merged_by_rank_.push_back(*merged_id);
  return absl::OkStatus();
}

// Sets cut_before_metaspace_, which tells Encode to cut a piece in front of each run of U+2581.
// (With a SentencePiece vocabulary, a whole text is one piece.) If no merged token has a U+2581
// after a different character, no merge crosses a cut, so cuts do not change the tokens.
void BpeModel::FindSafeCut(const Vocabulary& vocabulary) {
  if (byte_level_ || !vocabulary.FindInModel(kMetaspace).has_value()) {
    return;
  }
  cut_before_metaspace_ =
      std::none_of(merged_by_rank_.begin(), merged_by_rank_.end(), [&vocabulary](TokenId id) {
        std::string_view text = vocabulary.Text(id);
        while (text.starts_with(kMetaspace)) {
          text.remove_prefix(kMetaspace.size());
        }
        return text.find(kMetaspace) != std::string_view::npos;
      });
}

absl::Status BpeModel::IndexWholePieces(const Vocabulary& vocabulary) {
  size_t total_bytes = 0;
  for (TokenId id = 0; id < vocabulary.size(); ++id) {
    total_bytes += vocabulary.Text(id).size();
  }
  // Reserves all bytes at once: piece_bytes_ must not move, because the keys of whole_pieces_ are
  // views into piece_bytes_.
  piece_bytes_.reserve(byte_level_ ? total_bytes : 0);
  whole_pieces_.reserve(static_cast<size_t>(vocabulary.size()));
  Scratch scratch;
  std::vector<TokenId> ids;
  for (TokenId id = 0; id < vocabulary.size(); ++id) {
    std::string_view piece = vocabulary.Text(id);
    if (!vocabulary.IsInModel(id) || piece.empty()) {
      continue;
    }
    if (byte_level_) {
      std::optional<std::string> bytes = AlphabetToBytes(piece);
      if (!bytes.has_value()) {
        continue;
      }
      size_t begin = piece_bytes_.size();
      piece_bytes_ += *bytes;
      piece = std::string_view(piece_bytes_).substr(begin);
    }
    ids.clear();
    if (!ignore_merges_) {
      TextBudget budget(piece.size());
      QUIRE_RETURN_IF_ERROR(EncodeWord(piece, &budget, &scratch, &ids));
    }
    if (ignore_merges_ || ids == std::vector<TokenId>{id}) {
      whole_pieces_.emplace(piece, id);
    }
  }
  return absl::OkStatus();
}

const BpeModel::Merge* BpeModel::FindMerge(TokenId left, TokenId right) const {
  auto it = merges_.find(PairKey(left, right));
  return it == merges_.end() ? nullptr : &it->second;
}

absl::Status BpeModel::Encode(std::string_view piece,
                              TextBudget* budget,
                              Scratch* scratch,
                              std::vector<TokenId>* ids) const {
  if (!budget->Spend(piece.size())) {
    return budget->status();
  }
  if (auto whole = whole_pieces_.find(piece); whole != whole_pieces_.end()) {
    ids->push_back(whole->second);
    return absl::OkStatus();
  }
  if (!cut_before_metaspace_) {
    return EncodeWord(piece, budget, scratch, ids);
  }
  size_t begin = 0;
  while (begin < piece.size()) {
    size_t body = begin;
    while (piece.substr(body).starts_with(kMetaspace)) {
      body += kMetaspace.size();
    }
    size_t end = std::min(piece.find(kMetaspace, body), piece.size());
    std::string_view word = piece.substr(begin, end - begin);
    auto whole = ignore_merges_ ? whole_pieces_.end() : whole_pieces_.find(word);
    if (whole != whole_pieces_.end()) {
      ids->push_back(whole->second);
    } else {
      QUIRE_RETURN_IF_ERROR(EncodeWord(word, budget, scratch, ids));
    }
    begin = end;
  }
  return absl::OkStatus();
}

absl::Status BpeModel::EncodeWord(std::string_view word,
                                  TextBudget* budget,
                                  Scratch* scratch,
                                  std::vector<TokenId>* ids) const {
  ReadSymbols(word, scratch);
  if (scratch->symbols.size() <= kShortWordSymbols) {
    MergeShort(scratch);
  } else {
    QUIRE_RETURN_IF_ERROR(MergeLong(budget, scratch));
  }
  ids->insert(ids->end(), scratch->symbols.begin(), scratch->symbols.end());
  return absl::OkStatus();
}

void BpeModel::ReadSymbols(std::string_view word, Scratch* scratch) const {
  scratch->symbols.clear();
  if (byte_level_) {
    ReadByteSymbols(word, &scratch->symbols);
  } else {
    ReadCharacterSymbols(word, &scratch->symbols);
  }
}

void BpeModel::ReadByteSymbols(std::string_view word, std::vector<TokenId>* symbols) const {
  bool after_unk = false;
  for (char c : word) {
    TokenId id = byte_tokens_[static_cast<uint8_t>(c)];
    if (id >= 0) {
      symbols->push_back(id);
    } else if (unk_.has_value() && !(after_unk && fuse_unk_)) {
      symbols->push_back(*unk_);
    }
    after_unk = id < 0;
  }
}

// The unk token of an unknown character is held back (pending_unk). It is appended in front of the
// next known character or at the end of the word; without fuse_unk, also at the next unknown
// character. Fallback bytes are appended at once, so they come in front of an unk token that is
// held back, as in Hugging Face's code.
void BpeModel::ReadCharacterSymbols(std::string_view word, std::vector<TokenId>* symbols) const {
  bool pending_unk = false;
  size_t position = 0;
  while (position < word.size()) {
    size_t start = position;
    auto known = character_tokens_.find(DecodeValidUtf8(word, &position));
    if (known != character_tokens_.end()) {
      if (pending_unk) {
        symbols->push_back(*unk_);
        pending_unk = false;
      }
      symbols->push_back(known->second);
      continue;
    }
    if (byte_fallback_ && AppendFallbackBytes(word.substr(start, position - start), symbols)) {
      continue;
    }
    if (unk_.has_value()) {
      if (pending_unk && !fuse_unk_) {
        symbols->push_back(*unk_);
      }
      pending_unk = true;
    }
  }
  if (pending_unk) {
    symbols->push_back(*unk_);
  }
}

bool BpeModel::AppendFallbackBytes(std::string_view character,
                                   std::vector<TokenId>* symbols) const {
  size_t size = symbols->size();
  for (char c : character) {
    TokenId id = byte_tokens_[static_cast<uint8_t>(c)];
    if (id < 0) {
      symbols->resize(size);
      return false;
    }
    symbols->push_back(id);
  }
  return true;
}

void BpeModel::MergeShort(Scratch* scratch) const {
  std::vector<TokenId>& symbols = scratch->symbols;
  std::vector<uint32_t>& ranks = scratch->ranks;  // ranks[i]: merge rank of symbols i and i + 1
  auto rank_of = [this, &symbols](size_t i) {
    const Merge* merge = FindMerge(symbols[i], symbols[i + 1]);
    return merge == nullptr ? kNoRank : merge->rank;
  };
  ranks.clear();
  for (size_t i = 0; i + 1 < symbols.size(); ++i) {
    ranks.push_back(rank_of(i));
  }
  while (!ranks.empty()) {
    auto best = std::min_element(ranks.begin(), ranks.end());
    if (*best == kNoRank) {
      break;
    }
    auto offset = best - ranks.begin();
    size_t i = static_cast<size_t>(offset);
    symbols[i] = merged_by_rank_[*best];
    symbols.erase(symbols.begin() + offset + 1);
    ranks.erase(best);
    if (i < ranks.size()) {
      ranks[i] = rank_of(i);
    }
    if (i > 0) {
      ranks[i - 1] = rank_of(i - 1);
    }
  }
}

absl::Status BpeModel::MergeLong(TextBudget* budget, Scratch* scratch) const {
  constexpr TokenId kGone = -1;
  std::vector<TokenId>& symbols = scratch->symbols;
  std::vector<int32_t>& previous = scratch->previous;
  std::vector<int32_t>& next = scratch->next;
  std::vector<uint64_t>& queue = scratch->queue;
  auto last_first = std::greater<uint64_t>();  // puts the smallest entry at the heap's top
  size_t count = symbols.size();
  previous.resize(count);
  next.resize(count);
  queue.clear();
  auto push_pair = [&](int32_t left, int32_t right) {
    const Merge* merge =
        FindMerge(symbols[static_cast<size_t>(left)], symbols[static_cast<size_t>(right)]);
    if (merge != nullptr) {
      queue.push_back(QueueEntry(merge->rank, static_cast<size_t>(left)));
      return true;
    }
    return false;
  };
  for (size_t i = 0; i < count; ++i) {
    previous[i] = static_cast<int32_t>(i) - 1;
    next[i] = i + 1 < count ? static_cast<int32_t>(i) + 1 : -1;
    if (i + 1 < count) {
      push_pair(static_cast<int32_t>(i), static_cast<int32_t>(i) + 1);
    }
  }
  std::make_heap(queue.begin(), queue.end(), last_first);
  while (!queue.empty()) {
    if (!budget->Spend(1)) {
      return budget->status();
    }
    std::pop_heap(queue.begin(), queue.end(), last_first);
    uint64_t entry = queue.back();
    queue.pop_back();
    size_t left = entry & 0xFFFFFFFFu;
    TokenId merged = merged_by_rank_[entry >> 32];
    if (symbols[left] == kGone || next[left] < 0) {
      continue;
    }
    size_t right = static_cast<size_t>(next[left]);
    // Skips the entry if its pair has changed since the entry was queued.
    const Merge* current = FindMerge(symbols[left], symbols[right]);
    if (current == nullptr || current->merged != merged) {
      continue;
    }
    symbols[left] = merged;
    symbols[right] = kGone;
    next[left] = next[right];
    if (next[left] >= 0) {
      previous[static_cast<size_t>(next[left])] = static_cast<int32_t>(left);
      if (push_pair(static_cast<int32_t>(left), next[left])) {
        std::push_heap(queue.begin(), queue.end(), last_first);
      }
    }
    if (previous[left] >= 0 && push_pair(previous[left], static_cast<int32_t>(left))) {
      std::push_heap(queue.begin(), queue.end(), last_first);
    }
  }
  std::erase(symbols, kGone);
  return absl::OkStatus();
}

}  // namespace quire
