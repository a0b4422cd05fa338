#include "deploy/gateway/template/scopes.h"

#include <map>
#include <string>
#include <string_view>
#include <utility>

#include "deploy/gateway/template/cat.h"
#include "deploy/gateway/template/lexer.h"
#include "deploy/gateway/template/symbols.h"

namespace quire {
namespace {

// The slots of the variables of one Python function. The key is the level of a variable's frame,
// and the variable's name.
struct FunctionSlots {
  const FunctionSlots* parent = nullptr;
  std::map<std::pair<int, std::string>, int> slots = {};

  int SlotOf(int level, const std::string& name) {
    return slots.try_emplace({level, name}, static_cast<int>(slots.size())).first->second;
  }
};

struct Frame {
  Frame(Frame* outer, FunctionSlots& its_function)
      : parent(outer),
        function(its_function),
        symbols(outer == nullptr ? nullptr : &outer->symbols) {}

  Frame* parent;
  FunctionSlots& function;
  Symbols symbols;
  std::string prefix = {};  // put before names, to keep a loop test's variables from the loop's
};

class Resolver {
 public:
  absl::Status Run(Node& root) {
    FunctionSlots function;
    Frame frame(nullptr, function);
    if (!FindUndeclared(root.body, {"self"}).empty()) {
      Fail(root, "'self' is not supported");
    }
    frame.symbols.VisitAll(root.body);
    root.loads = LoadsOf(frame);
    StatementsOf(root.body, frame, false);
    root.num_slots = static_cast<int>(function.slots.size());
    return status_;
  }

 private:
  void Fail(const Node& node, std::string_view message) {
    if (status_.ok()) {
      status_ = TemplateSyntaxError(node.line, message);
    }
  }

  // Returns the place, as seen from `frame`, of a variable of the enclosing frame at `level`.
  static Place PlaceAt(const Frame& frame, int level, const std::string& name) {
    const Frame* owner = &frame;
    while (owner->symbols.level() != level) {
      owner = owner->parent;
    }
    Place place;
    for (const FunctionSlots* f = &frame.function; f != &owner->function; f = f->parent) {
      ++place.hops;
    }
    place.slot = owner->function.SlotOf(level, owner->prefix + name);
    return place;
  }

  Place PlaceOf(const Node& node, const Frame& frame, const std::string& name) {
    const std::optional<int> level = frame.symbols.Find(name);
    if (!level.has_value()) {
      Fail(node, Cat("the name '", name, "' cannot be used here"));
      return {};
    }
    return PlaceAt(frame, *level, name);
  }

  static FrameLoads LoadsOf(const Frame& frame) {
    FrameLoads loads;
    for (const auto& [name, value] : frame.symbols.first_values()) {
      Load load = {value.kind, PlaceAt(frame, frame.symbols.level(), name).slot, name, {}};
      if (value.kind == Load::Kind::kAlias) {
        load.from = PlaceAt(frame, value.alias_level, name);
      }
      loads.push_back(std::move(load));
    }
    return loads;
  }

  void StatementsOf(const std::vector<NodePtr>& nodes, Frame& frame, bool is_soft) {
    for (const NodePtr& node : nodes) {
      Statement(*node, frame, is_soft);
    }
  }

  // `is_soft`: true if an `if` encloses the statement directly. An unknown filter of the statement
  // then fails only when the filter runs.
  void Statement(Node& node, Frame& frame, bool is_soft) {
    switch (node.kind) {
      case NodeKind::kIf:
        Expression(*node.parts[0], frame, true);
        StatementsOf(node.body, frame, true);
        StatementsOf(node.branches, frame, true);
        StatementsOf(node.otherwise, frame, true);
        return;
      case NodeKind::kFor:
        For(node, frame, is_soft);
        return;
      case NodeKind::kMacro:
        node.place = PlaceOf(node, frame, node.text);
        Macro(node, frame);
        return;
      case NodeKind::kCallBlock:
        Macro(node, frame);
        if (node.parts[0] != nullptr) {
          Expression(*node.parts[0], frame, is_soft);
        }
        return;
      case NodeKind::kSetBlock:
        SetBlock(node, frame);
        return;
      case NodeKind::kFilterBlock: {
        Frame inner(&frame, frame.function);
        inner.symbols.VisitAll(node.body);
        inner.symbols.VisitAll(node.parts);
        node.loads = LoadsOf(inner);
        StatementsOf(node.body, inner, false);
        Expression(*node.parts[0], inner, false);
        return;
      }
      case NodeKind::kWith:
        With(node, frame, is_soft);
        return;
      default:
        ForEachOperand(node, [&](Node& child) { Expression(child, frame, is_soft); });
    }
  }

  template <class Visit>
  static void ForEachOperand(Node& node, const Visit& visit) {
    quire::ForEachOperand(node, [&](const Node& child) { visit(const_cast<Node&>(child)); });
  }

  void Expression(Node& node, Frame& frame, bool is_soft) {
    switch (node.kind) {
      case NodeKind::kName:
      case NodeKind::kTarget:
      case NodeKind::kParameter:
        node.place = PlaceOf(node, frame, node.text);
        return;
      case NodeKind::kFilter:
      case NodeKind::kTest:
        node.builtin = node.kind == NodeKind::kFilter ? FindFilter(node.text) : FindTest(node.text);
        if (node.builtin == nullptr && !is_soft) {
          Fail(node, Cat("unknown filter or test '", node.text, "'"));
        }
        break;
      case NodeKind::kCondition:
        is_soft = true;
        break;
      default:
        break;
    }
    ForEachOperand(node, [&](Node& child) { Expression(child, frame, is_soft); });
  }

  void For(Node& node, Frame& frame, bool is_soft) {
    Frame body(&frame, frame.function);
    node.has_loop = !FindUndeclared(node.body, {"loop"}).empty();
    if (node.has_loop) {
      body.symbols.DeclareParameter("loop");
    }
    body.symbols.Visit(*node.parts[0], /*is_parameter=*/true);
    body.symbols.VisitAll(node.body);
    node.loads = LoadsOf(body);
    if (node.has_loop) {
      node.loop = PlaceOf(node, body, "loop");
    }
    Expression(*node.parts[0], body, false);
    Expression(*node.parts[1], frame, is_soft);
    if (node.parts[2] != nullptr) {
      Frame test(&frame, frame.function);
      test.prefix = Cat("test ", num_tests_++, " ");
      test.symbols.Visit(*node.parts[0], /*is_parameter=*/true);
      test.symbols.Visit(*node.parts[2]);
      node.test_loads = LoadsOf(test);
      node.test_target = CopyOfTarget(*node.parts[0]);
      Expression(*node.test_target, test, false);
      Expression(*node.parts[2], test, false);
    }
    StatementsOf(node.body, body, false);
    Frame otherwise(&frame, frame.function);
    otherwise.symbols.VisitAll(node.otherwise);
    node.otherwise_loads = LoadsOf(otherwise);
    StatementsOf(node.otherwise, otherwise, false);
  }

  static NodePtr CopyOfTarget(const Node& target) {
    auto copy = std::make_unique<Node>();
    copy->kind = target.kind;
    copy->line = target.line;
    copy->text = target.text;
    for (const NodePtr& part : target.parts) {
      copy->parts.push_back(CopyOfTarget(*part));
    }
    return copy;
  }

  // Resolves a macro, or the body of a call block.
  void Macro(Node& node, Frame& outer) {
    FunctionSlots function{&outer.function};
    Frame frame(&outer, function);
    const auto visit = [&] {
      frame.symbols.VisitAll(node.parameters);
      frame.symbols.VisitAll(node.defaults);
      frame.symbols.VisitAll(node.body);
    };
    visit();
    const auto has_parameter = [&node](std::string_view name) {
      return IndexOfParameter(node, name) < node.parameters.size();
    };
    const auto undeclared = FindUndeclared(node.body, {"caller", "kwargs", "varargs"});
    node.has_caller = undeclared.contains("caller");
    node.has_kwargs = undeclared.contains("kwargs") && !has_parameter("kwargs");
    node.has_varargs = undeclared.contains("varargs") && !has_parameter("varargs");
    const size_t num_plain = node.parameters.size() - node.defaults.size();
    if (node.has_caller && IndexOfParameter(node, "caller") < num_plain) {
      Fail(node, "the parameter caller needs a default");
    }
    const bool is_caller_implicit = node.has_caller && !has_parameter("caller");
    for (const auto& [is_special, name] : {std::pair(is_caller_implicit, "caller"),
                                           std::pair(node.has_kwargs, "kwargs"),
                                           std::pair(node.has_varargs, "varargs")}) {
      if (is_special) {
        frame.symbols.DeclareParameter(name);
      }
    }
    visit();
    node.loads = LoadsOf(frame);
    if (node.has_caller) {
      node.caller = PlaceOf(node, frame, "caller");
    }
    if (node.has_kwargs) {
      node.kwargs = PlaceOf(node, frame, "kwargs");
    }
    if (node.has_varargs) {
      node.varargs = PlaceOf(node, frame, "varargs");
    }
    for (const auto* nodes : {&node.parameters, &node.defaults}) {
      for (const NodePtr& each : *nodes) {
        Expression(*each, frame, false);
      }
    }
    StatementsOf(node.body, frame, false);
    node.num_slots = static_cast<int>(function.slots.size());
  }

  static size_t IndexOfParameter(const Node& node, std::string_view name) {
    size_t i = 0;
    while (i < node.parameters.size() && node.parameters[i]->text != name) {
      ++i;
    }
    return i;
  }

  void SetBlock(Node& node, Frame& frame) {
    Frame inner(&frame, frame.function);
    inner.symbols.VisitAll(node.body);
    node.loads = LoadsOf(inner);
    StatementsOf(node.body, inner, false);
    Expression(*node.parts[0], frame, false);
    if (node.parts[1] != nullptr) {
      Expression(*node.parts[1], inner, false);
    }
  }

  void With(Node& node, Frame& frame, bool is_soft) {
    Frame inner(&frame, frame.function);
    inner.symbols.VisitAll(node.parameters);
    inner.symbols.VisitAll(node.body);
    node.loads = LoadsOf(inner);
    for (const NodePtr& target : node.parameters) {
      Expression(*target, inner, false);
    }
    for (const NodePtr& value : node.parts) {
      Expression(*value, frame, is_soft);
    }
    StatementsOf(node.body, inner, false);
  }

  absl::Status status_;
  int num_tests_ = 0;
};

}  // namespace

absl::Status ResolveScopes(Node& root) { return Resolver().Run(root); }

}  // namespace quire
