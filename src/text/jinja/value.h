// The values of the template language, with Python's semantics: undefined, None, bool, int, float,
// str, list (and its relatives), dict in insertion order, and objects (macros, functions,
// namespaces, loops). Lists and dicts are immutable once built, as in Jinja's immutable sandbox;
// only namespaces change. Copies share. Values of strings, lists and dicts may be read by many
// threads at once; objects belong to one rendering and never outlive it.
#ifndef TERRACE_TEXT_JINJA_VALUE_H_
#define TERRACE_TEXT_JINJA_VALUE_H_

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <variant>
#include <vector>

#include "text/jinja/str.h"

namespace terrace::jinja {

class Value;
class Runtime;
struct CallArgs;

// Lists and dicts nest at most this deep, so that recursion over a value is bounded.
inline constexpr int kMaxValueDepth = 200;

// A name or attribute that does not exist: prints nothing, is false, and fails when used further.
struct Undefined {
  std::shared_ptr<const std::string> name;
  // The kind of object that lacks the attribute ("dict object"); empty for a plain name. Static.
  std::string_view owner;
  // `name` is a whole message, not a name.
  bool is_message = false;

  std::string Describe() const;
};

struct None {};

enum class ListKind : uint8_t { kList, kTuple, kGenerator, kRange, kView };

struct List;
class Dict;

// Something with behaviour. Lives within one rendering.
class Object {
 public:
  virtual ~Object() = default;
  virtual std::string_view TypeName() const = 0;
  // The attribute, or null if there is none.
  virtual const Value* FindAttr(Runtime& rt, std::string_view name, Value* scratch);
  virtual bool Callable() const { return false; }
  virtual Value Call(Runtime& rt, CallArgs& args);
  // Lets go of what may refer back to this object, at the end of the rendering.
  virtual void DropReferences() {}
};

using ListPtr = std::shared_ptr<List>;
using DictPtr = std::shared_ptr<Dict>;
using ObjectPtr = std::shared_ptr<Object>;

class Value {
 public:
  Value() : data_(None{}) {}
  Value(Undefined v) : data_(std::move(v)) {}  // NOLINT: implicit by design, all of these
  Value(None v) : data_(v) {}                  // NOLINT
  Value(bool v) : data_(v) {}                  // NOLINT
  Value(int64_t v) : data_(v) {}               // NOLINT
  Value(double v) : data_(v) {}                // NOLINT
  Value(Str v) : data_(std::move(v)) {}        // NOLINT
  Value(ListPtr v) : data_(std::move(v)) {}    // NOLINT
  Value(DictPtr v) : data_(std::move(v)) {}    // NOLINT
  Value(ObjectPtr v) : data_(std::move(v)) {}  // NOLINT
  Value(const void*) = delete;                 // No pointer becomes a bool.

  // Text written by us or by the template.
  static Value Trusted(std::string_view text) { return Str(std::string(text), true); }
  static Value Untrusted(std::string_view text) { return Str(std::string(text), false); }
  static Value Int(size_t v) { return static_cast<int64_t>(v); }
  static Value Message(std::string message);  // Undefined, with the error its use gives.

  template <typename T>
  const T* As() const {
    return std::get_if<T>(&data_);
  }
  bool is_undefined() const { return As<Undefined>() != nullptr; }
  bool is_none() const { return As<None>() != nullptr; }
  bool is_bool() const { return As<bool>() != nullptr; }
  bool is_int() const { return As<int64_t>() != nullptr; }
  bool is_double() const { return As<double>() != nullptr; }
  bool is_number() const { return is_bool() || is_int() || is_double(); }
  bool is_string() const { return As<Str>() != nullptr; }
  const Str* str() const { return As<Str>(); }
  const List* list() const { return As<ListPtr>() ? As<ListPtr>()->get() : nullptr; }
  const Dict* dict() const { return As<DictPtr>() ? As<DictPtr>()->get() : nullptr; }
  Object* object() const { return As<ObjectPtr>() ? As<ObjectPtr>()->get() : nullptr; }

  // Python's type name ("str", "dict", "NoneType").
  std::string_view TypeName() const;
  bool Truthy() const;
  int depth() const;

 private:
  std::variant<None, Undefined, bool, int64_t, double, Str, ListPtr, DictPtr, ObjectPtr> data_;
};

struct List {
  explicit List(ListKind list_kind = ListKind::kList) : kind(list_kind) {}
  ListKind kind;
  mutable bool consumed = false;  // A generator yields its items once.
  int depth = 1;
  std::vector<Value> items;
};

class Dict {
 public:
  using Entry = std::pair<Value, Value>;

  const std::vector<Entry>& entries() const { return entries_; }
  size_t size() const { return entries_.size(); }
  int depth() const { return depth_; }
  const Value* Find(std::string_view key) const;
  // `key` is a scalar; others are never found.
  const Value* Find(const Value& key) const;
  // Adds or replaces (keeping the place). Fails (throws Error) on a key that is not a scalar and
  // on nesting deeper than kMaxValueDepth.
  void Set(Value key, Value value);
  void Clear();

 private:
  std::vector<Entry> entries_;
  // Index of string keys, kept once there are more than a few; the views live in `entries_`.
  std::unordered_map<std::string_view, size_t> index_;
  int depth_ = 1;
};

// A list of `kind` that holds `items`. Fails (throws Error) on nesting deeper than kMaxValueDepth.
ListPtr MakeList(std::vector<Value> items, ListKind kind = ListKind::kList);

struct CallArgs {
  std::vector<Value> positional;
  std::vector<std::pair<std::string, Value>> named;
  bool trusted_names = true;  // No name comes from input data (**data).
};

}  // namespace terrace::jinja

#endif  // TERRACE_TEXT_JINJA_VALUE_H_
