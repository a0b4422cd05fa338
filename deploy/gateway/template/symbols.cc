#include "deploy/gateway/template/symbols.h"

#include <utility>

namespace quire {
namespace {

// Visits nodes in the order of jinja2's node fields, because only a read before the assignment
// counts.
class UndeclaredNames {
 public:
  explicit UndeclaredNames(std::set<std::string> names) : names_(std::move(names)) {}

  void VisitAll(const std::vector<NodePtr>& nodes) {
    for (const NodePtr& node : nodes) {
      if (node != nullptr) {
        Visit(*node);
      }
    }
  }
  const std::set<std::string>& found() const { return found_; }

 private:
  void Visit(const Node& node) {
    if (is_done_) {
      return;
    }
    switch (node.kind) {
      case NodeKind::kName:
        if (names_.contains(node.text)) {
          found_.insert(node.text);
          is_done_ = found_ == names_;
        }
        return;
      case NodeKind::kTarget:
      case NodeKind::kParameter:
        names_.erase(node.text);
        return;
      case NodeKind::kNamespaceRef:
        return;
      case NodeKind::kFor:
        Visit(*node.parts[0]);
        Visit(*node.parts[1]);
        VisitAll(node.body);
        VisitAll(node.otherwise);
        if (node.parts[2] != nullptr) {
          Visit(*node.parts[2]);
        }
        return;
      case NodeKind::kFilterBlock:
        VisitAll(node.body);
        VisitAll(node.parts);
        return;
      case NodeKind::kWith:
        VisitAll(node.parameters);
        VisitAll(node.parts);
        VisitAll(node.body);
        return;
      default:
        ForEachOperand(node, [this](const Node& child) { Visit(child); });
        VisitAll(node.parameters);
        VisitAll(node.defaults);
        VisitAll(node.body);
        VisitAll(node.branches);
        VisitAll(node.otherwise);
    }
  }

  std::set<std::string> names_, found_;
  bool is_done_ = false;
};

}  // namespace

std::set<std::string> FindUndeclared(const std::vector<NodePtr>& nodes,
                                     std::set<std::string> names) {
  UndeclaredNames visitor(std::move(names));
  visitor.VisitAll(nodes);
  return visitor.found();
}

std::optional<int> Symbols::Find(const std::string& name) const {
  for (const Symbols* frame = this; frame != nullptr; frame = frame->parent_) {
    if (frame->IsKnown(name)) {
      return frame->level_;
    }
  }
  return std::nullopt;
}

bool Symbols::IsKnown(const std::string& name) const {
  return known_.contains(name) || (base_ != nullptr && base_->IsKnown(name));
}

bool Symbols::IsStored(const std::string& name) const {
  return stored_.contains(name) || (base_ != nullptr && base_->IsStored(name));
}

void Symbols::DeclareParameter(const std::string& name) {
  stored_.insert(name);
  known_.insert(name);
  first_values_[name] = {Load::Kind::kParameter, 0};
}

void Symbols::LoadName(const std::string& name) {
  if (!Find(name).has_value()) {
    known_.insert(name);
    first_values_[name] = {Load::Kind::kResolve, 0};
  }
}

void Symbols::StoreName(const std::string& name) {
  stored_.insert(name);
  if (IsKnown(name)) {
    return;
  }
  const std::optional<int> outer = Find(name);
  known_.insert(name);
  first_values_[name] = {outer.has_value() ? Load::Kind::kAlias : Load::Kind::kUndefined,
                         outer.value_or(0)};
}

void Symbols::VisitAll(const std::vector<NodePtr>& nodes) {
  for (const NodePtr& node : nodes) {
    if (node != nullptr) {
      Visit(*node);
    }
  }
}

void Symbols::Visit(const Node& node, bool is_parameter) {
  switch (node.kind) {
    case NodeKind::kName:
      LoadName(node.text);
      return;
    case NodeKind::kTarget:
      is_parameter ? DeclareParameter(node.text) : StoreName(node.text);
      return;
    case NodeKind::kParameter:
      DeclareParameter(node.text);
      return;
    case NodeKind::kIf:
      VisitIf(node);
      return;
    case NodeKind::kFor:
      Visit(*node.parts[1]);
      return;
    case NodeKind::kSet:
      Visit(*node.parts[1]);
      Visit(*node.parts[0]);
      return;
    case NodeKind::kSetBlock:
      Visit(*node.parts[0]);
      return;
    case NodeKind::kMacro:
      StoreName(node.text);
      return;
    default:  // the operands of call blocks, filter blocks and `with`: call, filter, values
      ForEachOperand(node, [&](const Node& child) { Visit(child, is_parameter); });
  }
}

void Symbols::VisitIf(const Node& node) {
  Visit(*node.parts[0]);
  std::vector<Symbols> branches(3, Symbols(BranchOf{this}));
  branches[0].VisitAll(node.body);
  for (const NodePtr& branch : node.branches) {
    branches[1].VisitIf(*branch);
  }
  branches[2].VisitAll(node.otherwise);
  MergeBranches(branches);
}

void Symbols::MergeBranches(const std::vector<Symbols>& branches) {
  std::set<std::string> new_names;
  for (const Symbols& branch : branches) {
    for (const std::string& name : branch.stored_) {
      if (!IsStored(name)) {
        new_names.insert(name);
      }
    }
  }
  for (const Symbols& branch : branches) {
    known_.insert(branch.known_.begin(), branch.known_.end());
    for (const auto& [name, value] : branch.first_values_) {
      first_values_[name] = value;
    }
    stored_.insert(branch.stored_.begin(), branch.stored_.end());
  }
  // A name that only some branches assign needs a first value: if another branch runs, the name
  // keeps its outer value.
  for (const std::string& name : new_names) {
    const std::optional<int> outer = parent_ == nullptr ? std::nullopt : parent_->Find(name);
    first_values_[name] = {outer.has_value() ? Load::Kind::kAlias : Load::Kind::kResolve,
                           outer.value_or(0)};
  }
}

}  // namespace quire
