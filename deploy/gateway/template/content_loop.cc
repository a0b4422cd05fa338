#include "deploy/gateway/template/content_loop.h"

#include <algorithm>
#include <map>
#include <set>
#include <string_view>
#include <vector>

namespace quire {
namespace {

using Names = std::set<std::string_view>;

// The statements `set` and `for` whose target is one name.
struct Statements {
  std::vector<const Node*> sets, loops;
};

void Collect(const std::vector<NodePtr>& nodes, Statements& statements) {
  for (const NodePtr& node : nodes) {
    const bool is_set = node->kind == NodeKind::kSet;
    if ((is_set || node->kind == NodeKind::kFor) && node->parts[0]->kind == NodeKind::kTarget) {
      (is_set ? statements.sets : statements.loops).push_back(node.get());
    }
    Collect(node->body, statements);
    Collect(node->branches, statements);
    Collect(node->otherwise, statements);
  }
}

// Returns the node of `x` for `x`, `x[1:]`, `x | filter` and `x is test`.
const Node& Subject(const Node& node) {
  const bool is_around = node.kind == NodeKind::kSlice || node.kind == NodeKind::kFilter ||
                         node.kind == NodeKind::kTest;
  return is_around ? Subject(*node.parts[0]) : node;
}

bool IsOneOf(const Names& names, const Node& node) {
  return node.kind == NodeKind::kName && names.contains(node.text);
}

// True for x.content and x['content'], where x is one of `names`.
bool IsContentOf(const Names& names, const Node& node) {
  const bool is_content = node.kind == NodeKind::kAttribute
                              ? node.text == "content"
                              : node.kind == NodeKind::kItem &&
                                    node.parts[1]->kind == NodeKind::kString &&
                                    node.parts[1]->text == "content";
  return is_content && IsOneOf(names, *node.parts[0]);
}

// Returns the names that hold messages: "messages", and each name that is set to such a name.
Names NamesOfMessages(const std::vector<const Node*>& sets) {
  std::multimap<std::string_view, std::string_view> set_to;  // from value to target
  for (const Node* set : sets) {
    const Node& value = Subject(*set->parts[1]);
    if (value.kind == NodeKind::kName) {
      set_to.emplace(value.text, set->parts[0]->text);
    }
  }
  Names names = {"messages"};
  for (std::vector<std::string_view> found = {"messages"}; !found.empty();) {
    const auto [begin, end] = set_to.equal_range(found.back());
    found.pop_back();
    for (auto each = begin; each != end; ++each) {
      if (names.insert(each->second).second) {
        found.push_back(each->second);
      }
    }
  }
  return names;
}

}  // namespace

bool LoopsOverContent(const Node& root) {
  Statements statements;
  Collect(root.body, statements);
  const Names lists = NamesOfMessages(statements.sets);
  Names messages;
  for (const Node* loop : statements.loops) {
    if (IsOneOf(lists, Subject(*loop->parts[1]))) {
      messages.insert(loop->parts[0]->text);
    }
  }
  return std::any_of(statements.loops.begin(), statements.loops.end(), [&](const Node* loop) {
    return IsContentOf(messages, Subject(*loop->parts[1]));
  });
}

}  // namespace quire
