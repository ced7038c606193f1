// Python's operators on values: comparison, arithmetic, attribute and item access, slicing,
// iteration. All fail by throwing Error, and account for their work in the Runtime.
#ifndef TERRACE_TEXT_JINJA_OPS_H_
#define TERRACE_TEXT_JINJA_OPS_H_

#include <algorithm>
#include <cstddef>
#include <memory>
#include <string_view>
#include <vector>

#include "text/jinja/ast.h"
#include "text/jinja/runtime.h"
#include "text/jinja/value.h"

namespace terrace::jinja {

bool Equal(Runtime& rt, const Value& a, const Value& b);
// a < b; fails on kinds without an order.
bool Less(Runtime& rt, const Value& a, const Value& b);
bool Compare(Runtime& rt, Op op, const Value& a, const Value& b);
bool Contains(Runtime& rt, const Value& container, const Value& item);

Value BinaryOp(Runtime& rt, Op op, const Value& a, const Value& b);
Value Negate(const Value& v);
Value Positive(const Value& v);

// `object.name`: a method or attribute, else the item of that name, else undefined.
// `missing` is an Undefined with the name in it.
Value GetAttr(Runtime& rt, const Value& object, std::string_view name, const Undefined& missing);
// `object[key]`: the item, else (for a string key) the attribute, else undefined.
Value GetItem(Runtime& rt, const Value& object, const Value& key);
// `object[lower:upper:step]`; null means left out.
Value GetSlice(Runtime& rt, const Value& object, const Value* lower, const Value* upper,
               const Value* step);

// The items that iterating over `v` gives; fails if it is not iterable. A generator is used up.
std::shared_ptr<const List> IterItems(Runtime& rt, const Value& v);
// len(v); fails if it has none.
int64_t Length(const Value& v);
bool IsIterable(const Value& v);

Str ConcatStr(Runtime& rt, const Str& a, const Str& b);
Str Repeat(Runtime& rt, const Str& text, int64_t times);
// With & < > ' " as HTML entities, marked as safe; markup is returned as it is.
Str EscapeHtml(Runtime& rt, const Str& text);
// The int that `v` is or could be (bool, int), or null.
const int64_t* AsInt(const Value& v, int64_t* scratch);
// As a double, for any number; false for anything else.
bool AsDouble(const Value& v, double* out);

// The order that sorts `count` items stably, where less(a, b) compares the items at two indices: a
// merge sort, which stays in bounds even where NaNs make `less` no order at all.
template <typename F>
std::vector<size_t> StableOrder(size_t count, F&& less) {
  std::vector<size_t> order(count), merged(count);
  for (size_t i = 0; i < count; ++i) order[i] = i;
  const auto at = [&](size_t i) { return order.begin() + static_cast<std::ptrdiff_t>(i); };
  for (size_t width = 1; width < count; width *= 2) {
    auto out = merged.begin();
    for (size_t begin = 0; begin < count; begin += 2 * width) {
      const size_t middle = std::min(begin + width, count);
      const size_t end = std::min(begin + 2 * width, count);
      out = std::merge(at(begin), at(middle), at(middle), at(end), out, less);
    }
    order.swap(merged);
  }
  return order;
}

}  // namespace terrace::jinja

#endif  // TERRACE_TEXT_JINJA_OPS_H_
