#include "scheduler/text/stop_matcher.h"

#include <deque>
#include <utility>

#include "absl/strings/str_cat.h"

#include "common/base/error.h"
#include "scheduler/text/utf8.h"

namespace quire {

// States are the prefixes of the stop strings; state 0 is the empty one. At most
// kMaxStopStrings * kMaxStopStringBytes + 1 of them, of 32 bytes each.
class StopAutomaton {
 public:
  explicit StopAutomaton(const std::vector<std::string>& stop_strings) : states_(1) {
    for (size_t i = 0; i < stop_strings.size(); ++i) {
      AddString(stop_strings[i], static_cast<int32_t>(i));
    }
    LinkFallbacks();
  }

  bool empty() const { return states_.size() == 1; }

  // Amortised O(1): every step to a fallback undoes an earlier step deeper.
  int32_t Next(int32_t state, char byte) const {
    while (true) {
      int32_t child = Child(state, byte);
      if (child != kNone) {
        return child;
      }
      if (state == 0) {
        return 0;
      }
      state = At(state).fallback;
    }
  }

  // The length of the prefix that the state stands for: what has to be held back.
  size_t Depth(int32_t state) const { return At(state).depth; }
  // The longest stop string that ends in the state, as an index, or -1.
  int32_t Match(int32_t state) const { return At(state).match; }
  size_t MatchBytes(int32_t state) const { return At(state).match_bytes; }

 private:
  static constexpr int32_t kNone = -1;

  struct State {
    int32_t first_child = kNone;
    int32_t next_sibling = kNone;
    int32_t fallback = 0;  // the longest proper suffix that is a state, too
    int32_t match = kNone;
    uint32_t match_bytes = 0;
    uint32_t depth = 0;
    char byte = 0;  // that leads here from the parent
  };

  const State& At(int32_t state) const { return states_[static_cast<size_t>(state)]; }
  State& At(int32_t state) { return states_[static_cast<size_t>(state)]; }

  // A state has at most kMaxStopStrings children.
  int32_t Child(int32_t state, char byte) const {
    int32_t child = At(state).first_child;
    while (child != kNone && At(child).byte != byte) {
      child = At(child).next_sibling;
    }
    return child;
  }

  int32_t AddChild(int32_t parent, char byte) {
    int32_t child = static_cast<int32_t>(states_.size());
    states_.push_back(
        {.next_sibling = At(parent).first_child, .depth = At(parent).depth + 1, .byte = byte});
    At(parent).first_child = child;
    return child;
  }

  void AddString(const std::string& text, int32_t index) {
    int32_t state = 0;
    for (char byte : text) {
      int32_t child = Child(state, byte);
      state = child == kNone ? AddChild(state, byte) : child;
    }
    if (At(state).match == kNone) {
      At(state).match = index;
      At(state).match_bytes = static_cast<uint32_t>(text.size());
    }
  }

  // Breadth first: a fallback is shallower than its state, so it is complete before.
  void LinkFallbacks() {
    std::deque<int32_t> order = {0};
    while (!order.empty()) {
      int32_t parent = order.front();
      order.pop_front();
      for (int32_t child = At(parent).first_child; child != kNone; child = At(child).next_sibling) {
        State& state = At(child);
        state.fallback = parent == 0 ? 0 : Next(At(parent).fallback, state.byte);
        if (state.match == kNone) {
          state.match = At(state.fallback).match;
          state.match_bytes = At(state.fallback).match_bytes;
        }
        order.push_back(child);
      }
    }
  }

  std::vector<State> states_;
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

StopMatcher::Output StopMatcher::Push(std::string_view text) {
  if (matched()) {
    return {.text = {}, .matched = true};
  }
  if (automaton_->empty()) {
    return {.text = std::string(text), .matched = false};
  }
  for (size_t i = 0; i < text.size(); ++i) {
    state_ = automaton_->Next(state_, text[i]);
    matched_index_ = automaton_->Match(state_);
    if (matched()) {
      std::string sent = std::exchange(held_, {});
      sent.append(text.substr(0, i + 1));
      if (!include_stop_in_output_) {
        sent.resize(sent.size() - automaton_->MatchBytes(state_));
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
