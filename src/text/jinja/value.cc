#include "text/jinja/value.h"

#include <algorithm>

#include <fmt/format.h>

#include "text/jinja/runtime.h"

namespace terrace::jinja {
namespace {

constexpr size_t kIndexFrom = 8;  // Below this a linear search is faster than hashing.

bool ScalarKeyEqual(const Value& a, const Value& b) {
  if (const Str* s = a.str()) return b.str() != nullptr && s->view() == b.str()->view();
  if (a.is_none()) return b.is_none();
  if (!a.is_number() || !b.is_number()) return false;
  const auto as_double = [](const Value& v) {
    if (const bool* x = v.As<bool>()) return *x ? 1.0 : 0.0;
    if (const int64_t* x = v.As<int64_t>()) return static_cast<double>(*x);
    return *v.As<double>();
  };
  if (!a.is_double() && !b.is_double()) {
    const auto as_int = [](const Value& v) {
      const bool* flag = v.As<bool>();
      return flag != nullptr ? int64_t{*flag} : *v.As<int64_t>();
    };
    return as_int(a) == as_int(b);
  }
  return as_double(a) == as_double(b);
}

void CheckDepth(int depth) {
  if (depth > kMaxValueDepth) {
    Fail(absl::StatusCode::kResourceExhausted,
         fmt::format("a value is nested more than {} levels deep", kMaxValueDepth));
  }
}

}  // namespace

std::string Undefined::Describe() const {
  if (is_message) return *name;
  if (owner.empty()) return fmt::format("'{}' is undefined", *name);
  return fmt::format("'{}' has no attribute '{}'", owner, *name);
}

const Value* Dict::Find(std::string_view key) const {
  if (!index_.empty()) {
    const auto found = index_.find(key);
    return found == index_.end() ? nullptr : &entries_[found->second].second;
  }
  for (const Entry& entry : entries_) {
    const Str* text = entry.first.str();
    if (text != nullptr && text->view() == key) return &entry.second;
  }
  return nullptr;
}

const Value* Dict::Find(const Value& key) const {
  if (const Str* text = key.str()) return Find(text->view());
  for (const Entry& entry : entries_) {
    if (ScalarKeyEqual(entry.first, key)) return &entry.second;
  }
  return nullptr;
}

void Dict::Set(Value key, Value value) {
  if (key.str() == nullptr && !key.is_number() && !key.is_none()) {
    Fail(absl::StatusCode::kFailedPrecondition,
         fmt::format("unhashable type: '{}'", key.TypeName()));
  }
  CheckDepth(value.depth() + 1);
  depth_ = std::max(depth_, value.depth() + 1);
  if (const Value* present = Find(key)) {
    *const_cast<Value*>(present) = std::move(value);
    return;
  }
  entries_.emplace_back(std::move(key), std::move(value));
  const auto add = [this](size_t i) {
    if (const Str* text = entries_[i].first.str()) index_.emplace(text->view(), i);
  };
  if (entries_.size() == kIndexFrom) {
    for (size_t i = 0; i < entries_.size(); ++i) add(i);
  } else if (entries_.size() > kIndexFrom) {
    add(entries_.size() - 1);
  }
}

void Dict::Clear() {
  index_.clear();
  entries_.clear();
}

const Value* Object::FindAttr(Runtime&, std::string_view, Value*) { return nullptr; }

Value Object::Call(Runtime&, CallArgs&) {
  Fail(absl::StatusCode::kFailedPrecondition,
       fmt::format("'{}' object is not callable", TypeName()));
}

Value Value::Message(std::string message) {
  return Undefined{std::make_shared<const std::string>(std::move(message)), {}, true};
}

std::string_view Value::TypeName() const {
  if (is_none()) return "NoneType";
  if (is_undefined()) return "Undefined";
  if (is_bool()) return "bool";
  if (is_int()) return "int";
  if (is_double()) return "float";
  if (const Str* s = str()) return s->markup() ? "Markup" : "str";
  if (dict() != nullptr) return "dict";
  if (const List* l = list()) {
    switch (l->kind) {
      case ListKind::kList:
        return "list";
      case ListKind::kTuple:
        return "tuple";
      case ListKind::kGenerator:
        return "generator";
      case ListKind::kRange:
        return "range";
      case ListKind::kView:
        return "dict view";
    }
  }
  return object()->TypeName();
}

bool Value::Truthy() const {
  if (is_none() || is_undefined()) return false;
  if (const bool* v = As<bool>()) return *v;
  if (const int64_t* v = As<int64_t>()) return *v != 0;
  if (const double* v = As<double>()) return *v != 0;
  if (const Str* s = str()) return !s->empty();
  if (const Dict* d = dict()) return d->size() != 0;
  if (const List* l = list()) return l->kind == ListKind::kGenerator || !l->items.empty();
  return true;
}

int Value::depth() const {
  if (const List* l = list()) return l->depth;
  if (const Dict* d = dict()) return d->depth();
  return 0;
}

ListPtr MakeList(std::vector<Value> items, ListKind kind) {
  auto list = std::make_shared<List>(kind);
  for (const Value& item : items) list->depth = std::max(list->depth, item.depth() + 1);
  CheckDepth(list->depth);
  list->items = std::move(items);
  return list;
}

}  // namespace terrace::jinja
