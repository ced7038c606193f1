#include "text/jinja/runtime.h"

#include <utility>

#include <fmt/format.h>

namespace terrace::jinja {

void Fail(absl::StatusCode code, std::string message) { throw Error{code, std::move(message)}; }

void FailType(std::string message) {
  Fail(absl::StatusCode::kFailedPrecondition, std::move(message));
}

void FailUndefined(const Undefined& value) { FailType(value.Describe()); }

Runtime::~Runtime() {
  // All of them stay referenced by `cycles_` until each is empty, so no destruction recurses.
  for (const ObjectPtr& object : cycles_) object->DropReferences();
}

int64_t Runtime::Now() const {
  if (!now_) FailType("strftime_now: no clock was given to this rendering");
  return now_();
}

void Runtime::FailSteps() const {
  Fail(absl::StatusCode::kResourceExhausted,
       fmt::format("the template takes more than {} steps", limits_.max_steps));
}

void Runtime::FailDepth() {
  --depth_;  // The guard whose construction this ends has no destructor to run.
  Fail(absl::StatusCode::kResourceExhausted,
       fmt::format("the template's calls nest more than {} levels deep", limits_.max_depth));
}

void Runtime::NewBytes(size_t bytes) {
  if (bytes > limits_.max_total_bytes || total_bytes_ > limits_.max_total_bytes - bytes) {
    Fail(absl::StatusCode::kResourceExhausted,
         fmt::format("the template makes more than {} bytes of values", limits_.max_total_bytes));
  }
  total_bytes_ += bytes;
}

void Runtime::CheckString(size_t bytes) const {
  if (bytes > limits_.max_string_bytes) {
    Fail(absl::StatusCode::kResourceExhausted,
         fmt::format("a string of {} bytes exceeds the template limit of {}", bytes,
                     limits_.max_string_bytes));
  }
}

void Runtime::NewString(size_t bytes) {
  CheckString(bytes);
  NewBytes(bytes + sizeof(Str));
}

void Runtime::NewItems(size_t count) {
  if (count > limits_.max_total_bytes / sizeof(Value)) {
    Fail(absl::StatusCode::kResourceExhausted, "the template makes a list that is too long");
  }
  NewBytes(count * sizeof(Value) + sizeof(List));
  Step(count / 4);
}

std::vector<const Value*> Bind(std::string_view function, const CallArgs& args,
                               std::initializer_list<std::string_view> names) {
  if (args.positional.size() > names.size()) {
    FailType(fmt::format("{}() takes at most {} arguments ({} given)", function, names.size(),
                         args.positional.size()));
  }
  std::vector<const Value*> bound(names.size(), nullptr);
  for (size_t i = 0; i < args.positional.size(); ++i) bound[i] = &args.positional[i];
  for (const auto& [name, value] : args.named) {
    size_t i = 0;
    while (i < names.size() && names.begin()[i] != name) ++i;
    if (i == names.size()) {
      FailType(fmt::format("{}() got an unexpected keyword argument '{}'", function, name));
    }
    if (bound[i] != nullptr) {
      FailType(fmt::format("{}() got multiple values for argument '{}'", function, name));
    }
    bound[i] = &value;
  }
  return bound;
}

int64_t IntArg(const Value* arg, int64_t fallback) {
  if (arg == nullptr) return fallback;
  if (const int64_t* v = arg->As<int64_t>()) return *v;
  if (const bool* v = arg->As<bool>()) return *v ? 1 : 0;
  if (const Undefined* u = arg->As<Undefined>()) FailUndefined(*u);
  FailType(fmt::format("'{}' object cannot be interpreted as an integer", arg->TypeName()));
}

bool BoolArg(const Value* arg, bool fallback) { return arg == nullptr ? fallback : arg->Truthy(); }

const Str& StrArg(const Value* arg, std::string_view what) {
  if (arg == nullptr) FailType(fmt::format("{}: an argument is missing", what));
  if (const Str* s = arg->str()) return *s;
  if (const Undefined* u = arg->As<Undefined>()) FailUndefined(*u);
  FailType(fmt::format("{}: a string is needed, not '{}'", what, arg->TypeName()));
}

}  // namespace terrace::jinja
