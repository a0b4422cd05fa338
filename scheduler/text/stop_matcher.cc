#include "scheduler/text/stop_matcher.h"

#include <bitset>
#include <utility>

#include "absl/strings/str_cat.h"

#include "common/base/error.h"
#include "scheduler/text/utf8.h"

namespace quire {

// An automaton of Aho and Corasick. Its states are the prefixes of the stop strings; state 0 is the
// empty prefix. There are at most kMaxStopStrings * kMaxStopStringBytes + 1 states. A state takes
// only 3 bytes, to save memory: every waiting request with stop strings has an automaton. The
// states that a string adds form a branch: consecutive states, each the child of the state before.
// So Child first tries the next state, and otherwise searches only the first states of branches.
class StopAutomaton {
 public:
  // A stop string, with the state in which it ends.
  struct End {
    int32_t state;
    int32_t index;
    size_t num_bytes;
  };

  explicit StopAutomaton(const std::vector<std::string>& stop_strings) {
    size_t max_states = 1;
    for (const std::string& text : stop_strings) {
      max_states += text.size();
    }
    bytes_.reserve(max_states);
    links_.reserve(max_states);
    AddState(0);
    for (const std::string& text : stop_strings) {
      first_bytes_.set(static_cast<unsigned char>(text[0]));
      AddString(text);
    }
    LinkFallbacks();
  }

  bool empty() const { return links_.size() == 1; }

  // Returns the state after `byte`. Amortized O(1): a step to a fallback makes the state less deep,
  // and each byte makes it deeper by at most 1.
  int32_t Next(int32_t state, char byte) const {
    while (state != 0) {
      int32_t child = Child(state, byte);
      if (child != kNone) {
        return child;
      }
      state = At(state).fallback;
    }
    return first_bytes_[static_cast<unsigned char>(byte)] ? Child(0, byte) : 0;
  }

  // Returns the length of the state's prefix, which is the number of bytes to hold back.
  size_t Depth(int32_t state) const {
    auto branch = branches_.rbegin();
    while (branch != branches_.rend() && branch->first > state) {
      ++branch;
    }
    return branch == branches_.rend() ? 0 : static_cast<size_t>(branch->DepthOf(state));
  }

  // True if a stop string ends in the state.
  bool IsMatch(int32_t state) const { return At(state).is_match; }
  // Returns the longest stop string that ends in the state; of equal strings, the first. REQUIRES:
  // IsMatch(state).
  const End& Match(int32_t state) const {
    while (true) {
      for (const End& end : ends_) {
        if (end.state == state) {
          return end;
        }
      }
      state = At(state).fallback;
    }
  }

 private:
  static constexpr int32_t kNone = -1;
  static constexpr uint16_t kFallbackMask = 0x1FFF;
  static_assert(kMaxStopStrings * kMaxStopStringBytes <= kFallbackMask);

  struct Link {
    // A state stands for a prefix. `fallback` is the state of the prefix's longest proper suffix
    // that has a state, too.
    uint16_t fallback : 13 = 0;
    bool is_match : 1 = false;
    bool has_next : 1 = false;      // state + 1 is a child, in the same branch
    bool has_branches : 1 = false;  // first states of other branches are children
  };
  static_assert(sizeof(Link) == 2);

  struct Branch {
    int32_t DepthOf(int32_t state) const { return parent_depth + 1 + state - first; }

    int32_t parent;
    int32_t parent_depth;
    int32_t first;
    int32_t end;  // one past the branch's last state
  };

  const Link& At(int32_t state) const { return links_[static_cast<size_t>(state)]; }
  Link& At(int32_t state) { return links_[static_cast<size_t>(state)]; }
  // Returns the byte that leads from the state's parent to the state.
  char ByteOf(int32_t state) const { return bytes_[static_cast<size_t>(state)]; }

  int32_t Child(int32_t state, char byte) const {
    const Link link = At(state);
    if (link.has_next && ByteOf(state + 1) == byte) {
      return state + 1;
    }
    if (link.has_branches) {
      for (const Branch& branch : branches_) {  // at most one branch per stop string
        if (branch.parent == state && ByteOf(branch.first) == byte) {
          return branch.first;
        }
      }
    }
    return kNone;
  }

  void AddState(char byte) {
    bytes_.push_back(byte);
    links_.emplace_back();
  }

  void AddString(const std::string& text) {
    int32_t state = 0;
    size_t depth = 0;
    while (depth < text.size() && Child(state, text[depth]) != kNone) {
      state = Child(state, text[depth]);
      ++depth;
    }
    if (depth < text.size()) {
      state = AddBranch(state, std::string_view(text).substr(depth), static_cast<int32_t>(depth));
    }
    At(state).is_match = true;
    ends_.push_back(
        {.state = state, .index = static_cast<int32_t>(ends_.size()), .num_bytes = text.size()});
  }

  // Adds states for `text`, the part of a stop string that has no states yet, as a branch. Returns
  // the branch's last state.
  int32_t AddBranch(int32_t parent, std::string_view text, int32_t parent_depth) {
    const auto first = static_cast<int32_t>(links_.size());
    const int32_t end = first + static_cast<int32_t>(text.size());
    branches_.push_back(
        {.parent = parent, .parent_depth = parent_depth, .first = first, .end = end});
    At(parent).has_branches = true;
    for (char byte : text) {
      AddState(byte);
      links_.back().has_next = true;
    }
    links_.back().has_next = false;
    return end - 1;
  }

  // Links the states in the order of their depths. A fallback is shallower than its state, so the
  // fallback is linked before the state.
  void LinkFallbacks() {
    for (int32_t depth = 1; depth <= static_cast<int32_t>(kMaxStopStringBytes); ++depth) {
      for (const Branch& branch : branches_) {
        const int32_t state = branch.first + depth - branch.DepthOf(branch.first);
        if (state >= branch.first && state < branch.end) {
          LinkFallback(state, state == branch.first ? branch.parent : state - 1);
        }
      }
    }
  }

  void LinkFallback(int32_t state, int32_t parent) {
    const int32_t fallback = parent == 0 ? 0 : Next(At(parent).fallback, ByteOf(state));
    At(state).fallback = static_cast<uint16_t>(fallback) & kFallbackMask;
    At(state).is_match = At(state).is_match || At(fallback).is_match;
  }

  // First bytes of the stop strings. In state 0, Next returns at once for any other byte of the
  // text.
  std::bitset<256> first_bytes_;
  std::string bytes_;             // for each state: the byte that leads to it
  std::vector<Link> links_;       // indexed by state
  std::vector<Branch> branches_;  // ascending by `first`
  std::vector<End> ends_;
};

StopMatcher::StopMatcher(std::shared_ptr<const StopAutomaton> automaton,
                         bool include_stop_in_output)
    : automaton_(std::move(automaton)), include_stop_in_output_(include_stop_in_output) {}

absl::StatusOr<StopMatcher> StopMatcher::Create(const std::vector<std::string>& stop_strings,
                                                bool include_stop_in_output) {
  if (stop_strings.size() > kMaxStopStrings) {
    return InvalidArgument(
        "STOP_LIMIT",
        absl::StrCat(
            "stop: too many strings (got ", stop_strings.size(), ", limit ", kMaxStopStrings, ")"));
  }
  for (size_t i = 0; i < stop_strings.size(); ++i) {
    const std::string& text = stop_strings[i];
    if (text.empty() || text.size() > kMaxStopStringBytes) {
      return InvalidArgument("STOP_LIMIT",
                             absl::StrCat("stop[",
                                          i,
                                          "]: must have 1 to ",
                                          kMaxStopStringBytes,
                                          " bytes (got ",
                                          text.size(),
                                          ")"));
    }
    if (!IsValidUtf8(text)) {
      return InvalidArgument("STOP_LIMIT", absl::StrCat("stop[", i, "]: must be valid UTF-8"));
    }
  }
  return StopMatcher(std::make_shared<const StopAutomaton>(stop_strings), include_stop_in_output);
}

StopMatcher::Output StopMatcher::Push(std::string_view text, bool may_match) {
  if (matched()) {
    return {.text = {}, .matched = true};
  }
  if (automaton_->empty()) {
    return {.text = std::string(text), .matched = false};
  }
  for (size_t i = 0; i < text.size(); ++i) {
    state_ = automaton_->Next(state_, text[i]);
    if (may_match && automaton_->IsMatch(state_)) {
      const StopAutomaton::End& match = automaton_->Match(state_);
      matched_index_ = match.index;
      std::string sent = std::exchange(held_, {});
      sent.append(text.substr(0, i + 1));
      if (!include_stop_in_output_) {
        sent.resize(sent.size() - match.num_bytes);
      }
      return {.text = std::move(sent), .matched = true};
    }
  }
  held_.append(text);
  size_t num_final = held_.size() - automaton_->Depth(state_);
  std::string sent = held_.substr(0, num_final);
  held_.erase(0, num_final);
  return {.text = std::move(sent), .matched = false};
}

std::string StopMatcher::Flush() {
  state_ = 0;
  return std::exchange(held_, {});
}

}  // namespace quire
