#include "text/jinja/interpreter_objects.h"

#include <string>
#include <vector>

#include "text/jinja/ops.h"

namespace terrace::jinja {
namespace {

// loop.cycle or loop.changed, not yet called.
class LoopMethod final : public Object {
 public:
  LoopMethod(std::shared_ptr<Loop> loop, bool is_cycle)
      : loop_(std::move(loop)), is_cycle_(is_cycle) {}
  std::string_view TypeName() const override { return "method"; }
  bool Callable() const override { return true; }
  Value Call(Runtime& rt, CallArgs& args) override {
    return is_cycle_ ? loop_->Cycle(args) : loop_->Changed(rt, args);
  }

 private:
  const std::shared_ptr<Loop> loop_;
  const bool is_cycle_;
};

}  // namespace

const Value* Macro::FindAttr(Runtime&, std::string_view name, Value* scratch) {
  if (name == "name") {
    *scratch = Value::Trusted(def_.name);
  } else if (name == "arguments") {
    std::vector<Value> names;
    for (const std::string& parameter : def_.parameter_names) {
      names.push_back(Value::Trusted(parameter));
    }
    *scratch = MakeList(std::move(names), ListKind::kTuple);
  } else {
    return nullptr;
  }
  return scratch;
}

Value Loop::Call(Runtime&, CallArgs& args) {
  if (!stmt_.recursive) {
    FailType("The loop must have the 'recursive' marker to be called recursively.");
  }
  const auto bound = Bind("loop", args, {"iterable"});
  if (bound[0] == nullptr) FailType("loop: an argument is missing");
  return interpreter_->CallLoop(stmt_, scope_, *bound[0], level_ + 1);
}

const Value* Loop::FindAttr(Runtime&, std::string_view name, Value* scratch) {
  const size_t length = items_->items.size();
  if (name == "index0") {
    *scratch = Value::Int(index_);
  } else if (name == "index") {
    *scratch = Value::Int(index_ + 1);
  } else if (name == "first") {
    *scratch = index_ == 0;
  } else if (name == "last") {
    *scratch = index_ + 1 == length;
  } else if (name == "length") {
    *scratch = Value::Int(length);
  } else if (name == "revindex") {
    *scratch = Value::Int(length - index_);
  } else if (name == "revindex0") {
    *scratch = Value::Int(length - index_ - 1);
  } else if (name == "depth") {
    *scratch = level_ + 1;
  } else if (name == "depth0") {
    *scratch = level_;
  } else if (name == "previtem") {
    *scratch = index_ > 0 ? items_->items[index_ - 1] : Value::Message("there is no previous item");
  } else if (name == "nextitem") {
    *scratch =
        index_ + 1 < length ? items_->items[index_ + 1] : Value::Message("there is no next item");
  } else if (name == "cycle" || name == "changed") {
    *scratch = ObjectPtr(std::make_shared<LoopMethod>(shared_from_this(), name == "cycle"));
  } else {
    return nullptr;
  }
  return scratch;
}

Value Loop::Cycle(const CallArgs& args) const {
  if (args.positional.empty()) FailType("no items for cycling given");
  return args.positional[index_ % args.positional.size()];
}

Value Loop::Changed(Runtime& rt, const CallArgs& args) {
  ListPtr now = MakeList(args.positional, ListKind::kTuple);
  const bool same = last_changed_ != nullptr && Equal(rt, last_changed_, now);
  last_changed_ = std::move(now);
  return !same;
}

}  // namespace terrace::jinja
