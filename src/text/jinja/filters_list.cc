// Filters on sequences and mappings, and the table of all filters.
#include <algorithm>
#include <functional>
#include <string>
#include <utility>

#include <fmt/format.h>

#include "text/jinja/filters.h"
#include "text/jinja/format.h"
#include "text/jinja/ops.h"
#include "text/jinja/runtime.h"
#include "text/jinja/strings.h"

namespace terrace::jinja {
namespace {

using Args = const CallArgs&;
using Items = std::vector<Value>;

// "a.b.0" as the keys of successive look-ups.
Items AttributePath(const Value& attribute) {
  const Str* text = attribute.str();
  if (text == nullptr) return {attribute};
  Items path;
  std::string_view rest = text->view();
  while (true) {
    const size_t dot = rest.find('.');
    const std::string_view part = rest.substr(0, dot);
    int64_t index = 0;
    const bool digits = !part.empty() && part.find_first_not_of("0123456789") == std::string::npos;
    if (digits && ParseInt(part, 10, &index)) {
      path.emplace_back(index);
    } else {
      path.push_back(Value::Trusted(part));
    }
    if (dot == std::string_view::npos) return path;
    rest.remove_prefix(dot + 1);
  }
}

Value Follow(Runtime& rt, Value item, const Items& path, const Value* fallback = nullptr) {
  for (const Value& key : path) {
    item = GetItem(rt, item, key);
    if (fallback != nullptr && item.is_undefined()) item = *fallback;
  }
  return item;
}

Value IgnoreCase(Runtime& rt, const Value& v, bool case_sensitive) {
  return !case_sensitive && v.is_string() ? Value(Lower(rt, *v.str())) : v;
}

bool IsGiven(const Value* v) { return v != nullptr && !v->is_none(); }

// Sorts `items` by `keys` (of the same length), stably.
Items SortBy(Runtime& rt, const Items& items, const Items& keys, bool reverse) {
  rt.NewItems(items.size() * 2);
  const std::vector<size_t> order = StableOrder(items.size(), [&](size_t a, size_t b) {
    return reverse ? Less(rt, keys[b], keys[a]) : Less(rt, keys[a], keys[b]);
  });
  Items sorted;
  sorted.reserve(items.size());
  for (size_t i : order) sorted.push_back(items[i]);
  return sorted;
}

Value DefaultFilter(Runtime&, const Value& v, Args args) {
  const auto bound = Bind("default", args, {"default_value", "boolean"});
  const bool replace = v.is_undefined() || (BoolArg(bound[1], false) && !v.Truthy());
  if (!replace) return v;
  return bound[0] != nullptr ? *bound[0] : Value(Str());
}

Value LengthFilter(Runtime& rt, const Value& v, Args) {
  if (v.str() != nullptr) rt.Step(v.str()->size() / 64);
  return Length(v);
}

Value ListFilter(Runtime& rt, const Value& v, Args) {
  const auto items = IterItems(rt, v);
  rt.NewItems(items->items.size());
  return MakeList(items->items);
}

Value ItemsFilter(Runtime& rt, const Value& v, Args) {
  if (v.is_undefined()) return MakeList({}, ListKind::kGenerator);
  if (v.dict() == nullptr) FailType("Can only get item pairs from a mapping.");
  const Value view = CallMethod(rt, v, "items", {});
  return MakeList(view.list()->items, ListKind::kGenerator);
}

Value JoinFilter(Runtime& rt, const Value& v, Args args) {
  const auto bound = Bind("join", args, {"d", "attribute"});
  const auto list = IterItems(rt, v);
  const Str separator = bound[0] != nullptr ? ToStr(rt, *bound[0]) : Str();
  if (!IsGiven(bound[1])) return Join(rt, separator, list->items, false);
  const Items path = AttributePath(*bound[1]);
  Items parts;
  for (const Value& item : list->items) parts.push_back(Follow(rt, item, path));
  return Join(rt, separator, parts, false);
}

Value FirstFilter(Runtime& rt, const Value& v, Args) {
  const auto list = IterItems(rt, v);
  if (list->items.empty()) return Value::Message("No first item, sequence was empty.");
  return list->items.front();
}

Value LastFilter(Runtime& rt, const Value& v, Args) {
  const List* raw = v.list();
  if (raw != nullptr && raw->kind == ListKind::kGenerator) {
    FailType("'generator' object is not reversible");
  }
  const auto list = IterItems(rt, v);
  if (list->items.empty()) return Value::Message("No last item, sequence was empty.");
  return list->items.back();
}

Value ReverseFilter(Runtime& rt, const Value& v, Args) {
  if (v.is_string()) {
    const Value step(int64_t{-1});
    return GetSlice(rt, v, nullptr, nullptr, &step);
  }
  Items items = IterItems(rt, v)->items;
  rt.NewItems(items.size());
  std::reverse(items.begin(), items.end());
  return MakeList(std::move(items), ListKind::kGenerator);
}

Value SortFilter(Runtime& rt, const Value& v, Args args) {
  const auto bound = Bind("sort", args, {"reverse", "case_sensitive", "attribute"});
  const auto list = IterItems(rt, v);
  std::vector<Items> paths;
  if (IsGiven(bound[2])) {
    const Str* text = bound[2]->str();
    if (text == nullptr) {
      paths.push_back({*bound[2]});
    } else {
      CallArgs comma;
      comma.positional.push_back(Value::Trusted(","));
      const Value names = CallMethod(rt, *text, "split", comma);
      for (const Value& name : names.list()->items) paths.push_back(AttributePath(name));
    }
  }
  Items keys;
  const bool case_sensitive = BoolArg(bound[1], false);
  for (const Value& item : list->items) {
    rt.Step();
    if (paths.empty()) {
      keys.push_back(IgnoreCase(rt, item, case_sensitive));
      continue;
    }
    Items key;
    for (const Items& path : paths) {
      key.push_back(IgnoreCase(rt, Follow(rt, item, path), case_sensitive));
    }
    keys.push_back(MakeList(std::move(key)));
  }
  return MakeList(SortBy(rt, list->items, keys, BoolArg(bound[0], false)));
}

Value DictSortFilter(Runtime& rt, const Value& v, Args args) {
  const auto bound = Bind("dictsort", args, {"case_sensitive", "by", "reverse"});
  if (const Undefined* u = v.As<Undefined>()) FailUndefined(*u);
  if (v.dict() == nullptr) {
    FailType(fmt::format("'{}' object has no attribute 'items'", v.TypeName()));
  }
  const std::string_view by = bound[1] != nullptr ? StrArg(bound[1], "dictsort").view() : "key";
  if (by != "key" && by != "value") FailType("You can only sort by either \"key\" or \"value\"");
  const Value pairs = CallMethod(rt, v, "items", {});
  Items keys;
  for (const auto& [key, value] : v.dict()->entries()) {
    keys.push_back(IgnoreCase(rt, by == "key" ? key : value, BoolArg(bound[0], false)));
  }
  return MakeList(SortBy(rt, pairs.list()->items, keys, BoolArg(bound[2], false)));
}

Value UniqueFilter(Runtime& rt, const Value& v, Args args) {
  const auto bound = Bind("unique", args, {"case_sensitive", "attribute"});
  const Items path = IsGiven(bound[1]) ? AttributePath(*bound[1]) : Items();
  Items seen, kept;
  const auto list = IterItems(rt, v);
  for (const Value& item : list->items) {
    const Value key = IgnoreCase(rt, Follow(rt, item, path), BoolArg(bound[0], false));
    const bool known = std::any_of(seen.begin(), seen.end(),
                                   [&](const Value& other) { return Equal(rt, other, key); });
    if (known) continue;
    rt.NewItems(2);
    seen.push_back(key);
    kept.push_back(item);
  }
  return MakeList(std::move(kept), ListKind::kGenerator);
}

// The rest of the arguments, from positional `from` on.
CallArgs RestOf(Runtime& rt, Args args, size_t from) {
  rt.NewItems(args.positional.size() + args.named.size());
  CallArgs rest = args;
  rest.positional.erase(rest.positional.begin(),
                        rest.positional.begin() + static_cast<std::ptrdiff_t>(from));
  return rest;
}

Value MapFilter(Runtime& rt, const Value& v, Args args) {
  const Runtime::DepthGuard guard(&rt);  // map may be given to map.
  Items out;
  if (!v.Truthy()) return MakeList({}, ListKind::kGenerator);
  const auto list = IterItems(rt, v);
  rt.NewItems(list->items.size());
  if (args.positional.empty()) {
    const auto bound = Bind("map", args, {"attribute", "default"});
    if (bound[0] == nullptr) FailType("map requires a filter argument");
    const Items path = AttributePath(*bound[0]);
    const Value* fallback = IsGiven(bound[1]) ? bound[1] : nullptr;
    for (const Value& item : list->items) {
      rt.Step();
      out.push_back(Follow(rt, item, path, fallback));
    }
  } else {
    const Str& name = StrArg(&args.positional[0], "map");
    const Filter filter = FindFilter(name.view());
    if (filter == nullptr) FailType(fmt::format("No filter named '{}'.", name.view()));
    const CallArgs rest = RestOf(rt, args, 1);
    for (const Value& item : list->items) {
      rt.Step();
      out.push_back(filter(rt, item, rest));
    }
  }
  return MakeList(std::move(out), ListKind::kGenerator);
}

Value SelectItems(Runtime& rt, const Value& v, Args args, bool keep, bool by_attribute) {
  Items path;
  size_t next = 0;
  if (by_attribute) {
    if (args.positional.empty()) FailType("Missing parameter for attribute name");
    path = AttributePath(args.positional[0]);
    next = 1;
  }
  Test test = nullptr;
  CallArgs rest;
  if (next < args.positional.size()) {
    const Str& name = StrArg(&args.positional[next], "select");
    test = FindTest(name.view());
    if (test == nullptr) FailType(fmt::format("No test named '{}'.", name.view()));
    rest = RestOf(rt, args, next + 1);
  }
  Items out;
  if (!v.Truthy()) return MakeList({}, ListKind::kGenerator);
  const auto list = IterItems(rt, v);
  for (const Value& item : list->items) {
    rt.Step();
    const Value subject = Follow(rt, item, path);
    const bool passes = test != nullptr ? test(rt, subject, rest) : subject.Truthy();
    if (passes == keep) out.push_back(item);
  }
  rt.NewItems(out.size());
  return MakeList(std::move(out), ListKind::kGenerator);
}

Value SumFilter(Runtime& rt, const Value& v, Args args) {
  const auto bound = Bind("sum", args, {"attribute", "start"});
  const Items path = IsGiven(bound[0]) ? AttributePath(*bound[0]) : Items();
  Value sum = bound[1] != nullptr ? *bound[1] : Value(int64_t{0});
  const auto list = IterItems(rt, v);
  for (const Value& item : list->items) {
    sum = BinaryOp(rt, Op::kAdd, sum, Follow(rt, item, path));
  }
  return sum;
}

Value Extreme(Runtime& rt, const Value& v, Args args, bool largest) {
  const auto bound = Bind("min", args, {"case_sensitive", "attribute"});
  const Items path = IsGiven(bound[1]) ? AttributePath(*bound[1]) : Items();
  const auto list = IterItems(rt, v);
  if (list->items.empty()) return Value::Message("No aggregated item, sequence was empty.");
  const Value* best = nullptr;
  Value best_key;
  for (const Value& item : list->items) {
    Value key = IgnoreCase(rt, Follow(rt, item, path), BoolArg(bound[0], false));
    if (best != nullptr && !(largest ? Less(rt, best_key, key) : Less(rt, key, best_key))) continue;
    best = &item;
    best_key = std::move(key);
  }
  return *best;
}

Value BatchFilter(Runtime& rt, const Value& v, Args args) {
  const auto bound = Bind("batch", args, {"linecount", "fill_with"});
  const int64_t size = IntArg(bound[0], 0);
  Items out, row;
  const auto list = IterItems(rt, v);
  for (const Value& item : list->items) {
    if (static_cast<int64_t>(row.size()) == size) out.push_back(MakeList(std::exchange(row, {})));
    row.push_back(item);
    rt.NewItems(2);
  }
  if (!row.empty()) {
    if (IsGiven(bound[1]) && static_cast<int64_t>(row.size()) < size) {
      rt.NewItems(static_cast<size_t>(size));
      row.resize(static_cast<size_t>(size), *bound[1]);
    }
    out.push_back(MakeList(std::move(row)));
  }
  return MakeList(std::move(out), ListKind::kGenerator);
}

Value SliceFilter(Runtime& rt, const Value& v, Args args) {
  const auto bound = Bind("slice", args, {"slices", "fill_with"});
  const int64_t count = IntArg(bound[0], 0);
  if (count <= 0) FailType("slice: the number of slices must be above zero");
  rt.NewItems(static_cast<size_t>(count) * 4);
  rt.Step(static_cast<size_t>(count));
  const auto list = IterItems(rt, v);
  const size_t slices = static_cast<size_t>(count);
  const size_t each = list->items.size() / slices;
  const size_t longer = list->items.size() % slices;
  Items out;
  auto next = list->items.begin();
  for (size_t i = 0; i < slices; ++i) {
    const auto end = next + static_cast<std::ptrdiff_t>(each + (i < longer ? 1 : 0));
    Items part(next, end);
    if (IsGiven(bound[1]) && i >= longer) part.push_back(*bound[1]);
    out.push_back(MakeList(std::move(part)));
    next = end;
  }
  return MakeList(std::move(out), ListKind::kGenerator);
}

Value GroupByFilter(Runtime& rt, const Value& v, Args args) {
  const auto bound = Bind("groupby", args, {"attribute", "default", "case_sensitive"});
  if (bound[0] == nullptr) FailType("groupby: an attribute is missing");
  const Items path = AttributePath(*bound[0]);
  const Value* fallback = IsGiven(bound[1]) ? bound[1] : nullptr;
  const bool case_sensitive = BoolArg(bound[2], false);
  const auto list = IterItems(rt, v);
  const auto key_of = [&](const Value& item) {
    return IgnoreCase(rt, Follow(rt, item, path, fallback), case_sensitive);
  };
  Items keys;
  for (const Value& item : list->items) keys.push_back(key_of(item));
  const Items sorted = SortBy(rt, list->items, keys, false);
  Items out;
  for (size_t i = 0; i < sorted.size();) {
    const Value key = key_of(sorted[i]);
    Items group;
    const Value shown = Follow(rt, sorted[i], path, fallback);
    while (i < sorted.size() && Equal(rt, key_of(sorted[i]), key)) group.push_back(sorted[i++]);
    rt.NewItems(4 + group.size());
    out.push_back(MakeList({shown, MakeList(std::move(group))}, ListKind::kTuple));
  }
  return MakeList(std::move(out));
}

Value AttrFilter(Runtime& rt, const Value& v, Args args) {
  const auto bound = Bind("attr", args, {"name"});
  const Str& name = StrArg(bound[0], "attr");
  const Undefined missing{std::make_shared<const std::string>(name.view()), {}};
  const Value found = GetAttr(rt, v, name.view(), missing);
  // Unlike `.`, never an item of a mapping.
  const bool item = v.dict() != nullptr && !HasMethod(v, name.view()) && !found.is_undefined();
  return item ? Value(Undefined{missing.name, "dict object"}) : found;
}

template <bool kKeep, bool kByAttribute>
Value Select(Runtime& rt, const Value& v, Args args) {
  return SelectItems(rt, v, args, kKeep, kByAttribute);
}

constexpr NamedFilter kFilters[] = {
    {"attr", AttrFilter},
    {"batch", BatchFilter},
    {"count", LengthFilter},
    {"d", DefaultFilter},
    {"default", DefaultFilter},
    {"dictsort", DictSortFilter},
    {"first", FirstFilter},
    {"groupby", GroupByFilter},
    {"items", ItemsFilter},
    {"join", JoinFilter},
    {"last", LastFilter},
    {"length", LengthFilter},
    {"list", ListFilter},
    {"map", MapFilter},
    {"max", [](Runtime& rt, const Value& v, Args args) { return Extreme(rt, v, args, true); }},
    {"min", [](Runtime& rt, const Value& v, Args args) { return Extreme(rt, v, args, false); }},
    {"reject", Select<false, false>},
    {"rejectattr", Select<false, true>},
    {"reverse", ReverseFilter},
    {"select", Select<true, false>},
    {"selectattr", Select<true, true>},
    {"slice", SliceFilter},
    {"sort", SortFilter},
    {"sum", SumFilter},
    {"unique", UniqueFilter},
};

}  // namespace

std::span<const NamedFilter> ListFilters() { return kFilters; }

Filter FindFilter(std::string_view name) {
  for (const std::span<const NamedFilter> group : {ListFilters(), TextFilters()}) {
    for (const NamedFilter& filter : group) {
      if (filter.first == name) return filter.second;
    }
  }
  return nullptr;
}

}  // namespace terrace::jinja
