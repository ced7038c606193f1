// The global functions: range, namespace, dict, raise_exception, strftime_now.
#include <algorithm>
#include <iterator>
#include <memory>
#include <utility>

#include <fmt/format.h>

#include "text/jinja/builtins.h"
#include "text/jinja/format.h"
#include "text/jinja/objects.h"
#include "text/jinja/ops.h"
#include "text/jinja/runtime.h"

namespace terrace::jinja {
namespace {

constexpr int64_t kMaxRange = 100'000;  // As in Jinja's sandbox.

Value MakeRange(Runtime& rt, const CallArgs& args) {
  const size_t count = args.positional.size();
  if (count == 0 || count > 3 || !args.named.empty()) FailType("range takes 1 to 3 integers");
  const int64_t first = IntArg(&args.positional[0], 0);
  const int64_t start = count == 1 ? 0 : first;
  const int64_t stop = count == 1 ? first : IntArg(&args.positional[1], 0);
  const int64_t step = count < 3 ? 1 : IntArg(&args.positional[2], 1);
  if (step == 0) FailType("range() arg 3 must not be zero");
  std::vector<Value> items;
  int64_t i = start;
  while (step > 0 ? i < stop : i > stop) {
    if (static_cast<int64_t>(items.size()) >= kMaxRange) {
      Fail(absl::StatusCode::kResourceExhausted,
           fmt::format("range is longer than {} items", kMaxRange));
    }
    items.emplace_back(i);
    if (__builtin_add_overflow(i, step, &i)) break;
  }
  rt.NewItems(items.size());
  return MakeList(std::move(items), ListKind::kRange);
}

void AddAll(Runtime& rt, const Value& from, Dict* to) {
  if (const Dict* dict = from.dict()) {
    rt.NewItems(dict->size());
    for (const auto& [key, value] : dict->entries()) to->Set(key, value);
    return;
  }
  const auto list = IterItems(rt, from);
  for (const Value& pair : list->items) {
    const auto parts = IterItems(rt, pair);
    if (parts->items.size() != 2) FailType("dict: each item must be a pair");
    rt.NewItems(2);
    to->Set(parts->items[0], parts->items[1]);
  }
}

void Fill(Runtime& rt, const CallArgs& args, Dict* to) {
  if (args.positional.size() > 1) FailType("dict expected at most 1 argument");
  if (!args.positional.empty()) AddAll(rt, args.positional[0], to);
  rt.NewItems(args.named.size());
  for (const auto& [name, value] : args.named) to->Set(Str(name, args.trusted_names), value);
}

Value MakeDict(Runtime& rt, const CallArgs& args) {
  auto dict = std::make_shared<Dict>();
  Fill(rt, args, dict.get());
  return dict;
}

Value MakeNamespace(Runtime& rt, const CallArgs& args) {
  auto space = std::make_shared<Namespace>();
  rt.NewItems(8);  // It lives until the end of the rendering.
  Fill(rt, args, &space->values);
  rt.AddCycle(space);
  return ObjectPtr(std::move(space));
}

Value RaiseException(Runtime& rt, const CallArgs& args) {
  const auto bound = Bind("raise_exception", args, {"message"});
  const Str message = bound[0] != nullptr ? ToStr(rt, *bound[0]) : Str();
  throw Error{absl::StatusCode::kInvalidArgument, std::string(message.view()), rt.line, true};
}

Value StrftimeNow(Runtime& rt, const CallArgs& args) {
  const auto bound = Bind("strftime_now", args, {"format"});
  const Str& format = StrArg(bound[0], "strftime_now");
  rt.NewString(format.size() * 8);
  return Str(FormatTime(format.view(), rt.Now()), !format.any_untrusted());
}

constexpr std::pair<std::string_view, Function> kFunctions[] = {
    {"dict", MakeDict},   {"namespace", MakeNamespace},  {"raise_exception", RaiseException},
    {"range", MakeRange}, {"strftime_now", StrftimeNow},
};

}  // namespace

Function FindFunction(std::string_view name) {
  for (const auto& [known, function] : kFunctions) {
    if (known == name) return function;
  }
  return nullptr;
}

}  // namespace terrace::jinja
