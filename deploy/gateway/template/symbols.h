// Symbols holds the names that a frame reads and assigns, found before the template runs, as in
// jinja2's idtracking.py. For each name, it tells which frame's variable the name means. For each
// variable of its own frame, it tells the first value, which depends on whether the frame reads or
// assigns the variable first.
//
// Thread safety: not thread-safe; belongs to one parse.
#ifndef QUIRE_DEPLOY_GATEWAY_TEMPLATE_SYMBOLS_H_
#define QUIRE_DEPLOY_GATEWAY_TEMPLATE_SYMBOLS_H_

#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "deploy/gateway/template/ast.h"

namespace quire {

class Symbols {
 public:
  struct FirstValue {
    Load::Kind kind;
    int alias_level;  // kAlias: the level of the frame with the outer variable
  };

  // Each frame's level is one more than its parent's; the template's is 0.
  explicit Symbols(const Symbols* parent)
      : parent_(parent), level_(parent == nullptr ? 0 : parent->level_ + 1) {}

  int level() const { return level_; }
  // Returns the level of the frame whose variable the name means, or nullopt if no frame has the
  // name.
  std::optional<int> Find(const std::string& name) const;
  const std::map<std::string, FirstValue>& first_values() const { return first_values_; }

  void DeclareParameter(const std::string& name);

  // Visit and VisitAll record the variables that statements of this frame load and store.
  void Visit(const Node& node, bool is_parameter = false);
  void VisitAll(const std::vector<NodePtr>& nodes);

 private:
  // Selects the constructor for one branch of an if. A branch's Symbols hold only the names that
  // are new in the branch, so nothing is copied.
  struct BranchOf {
    const Symbols* base;
  };
  explicit Symbols(BranchOf branch)
      : parent_(branch.base->parent_), base_(branch.base), level_(branch.base->level_) {}

  bool IsKnown(const std::string& name) const;
  bool IsStored(const std::string& name) const;
  void LoadName(const std::string& name);
  void StoreName(const std::string& name);
  void VisitIf(const Node& node);
  void MergeBranches(const std::vector<Symbols>& branches);

  const Symbols* parent_;
  const Symbols* base_ = nullptr;  // of a branch: the frame before the if, or the enclosing branch
  int level_;
  std::set<std::string> known_;  // variables of this frame
  std::map<std::string, FirstValue> first_values_;
  std::set<std::string> stored_;
};

// Returns the elements of `names` that the nodes read before assigning them, like jinja2's
// find_undeclared.
std::set<std::string> FindUndeclared(const std::vector<NodePtr>& nodes,
                                     std::set<std::string> names);

// Calls visit(child) for the operands and arguments of an expression.
template <class Visit>
void ForEachOperand(const Node& node, const Visit& visit) {
  for (const auto* list : {&node.parts, &node.arguments}) {
    for (const NodePtr& child : *list) {
      if (child != nullptr) {
        visit(*child);
      }
    }
  }
  for (const auto& [name, child] : node.named) {
    visit(*child);
  }
  if (node.more_arguments != nullptr) {
    visit(*node.more_arguments);
  }
  if (node.more_named != nullptr) {
    visit(*node.more_named);
  }
}

}  // namespace quire

#endif  // QUIRE_DEPLOY_GATEWAY_TEMPLATE_SYMBOLS_H_
