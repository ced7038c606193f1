// What one rendering may use up, the clock it sees, and how its errors travel. Inside this folder
// errors are thrown as `Error`; Template turns them into Status at the folder's border.
#ifndef TERRACE_TEXT_JINJA_RUNTIME_H_
#define TERRACE_TEXT_JINJA_RUNTIME_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <initializer_list>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "text/jinja/value.h"

namespace terrace::jinja {

// Bounds on one rendering. Exceeding one gives ResourceExhausted.
struct Limits {
  size_t max_steps = 5'000'000;  // Expressions, statements, items and comparisons.
  size_t max_output_bytes = size_t{64} << 20;
  size_t max_string_bytes = size_t{32} << 20;  // Any one string.
  size_t max_total_bytes = size_t{512} << 20;  // All strings and lists ever made, together.
  size_t max_depth = 1200;                     // Nested evaluations: about 0.5 KiB of stack each.
};

struct Error {
  absl::StatusCode code;
  std::string message;
  int line = 0;           // Of the template, from 1; 0 if not known.
  bool verbatim = false;  // The message is the template's own (raise_exception).
};

[[noreturn]] void Fail(absl::StatusCode code, std::string message);
// What the template does is not possible with this input (Python's TypeError and the like).
[[noreturn]] void FailType(std::string message);
// A use of an undefined value.
[[noreturn]] void FailUndefined(const Undefined& value);

class Runtime {
 public:
  Runtime(const Limits& limits, const std::function<int64_t()>& now) : limits_(limits), now_(now) {}
  virtual ~Runtime();
  Runtime(const Runtime&) = delete;
  Runtime& operator=(const Runtime&) = delete;

  const Limits& limits() const { return limits_; }
  // Seconds since the Unix epoch, for strftime_now. Fails if no clock was given.
  int64_t Now() const;

  // Counts a level of nested evaluation while it lives; fails beyond limits().max_depth.
  class DepthGuard {
   public:
    explicit DepthGuard(Runtime* rt) : rt_(rt) {
      if (++rt_->depth_ > rt_->limits_.max_depth) rt_->FailDepth();
    }
    ~DepthGuard() { --rt_->depth_; }
    DepthGuard(const DepthGuard&) = delete;
    DepthGuard& operator=(const DepthGuard&) = delete;

   private:
    Runtime* const rt_;
  };

  // Accounts for `n` units of work.
  void Step(size_t n = 1) {
    steps_ += n;
    if (steps_ > limits_.max_steps) FailSteps();
  }
  // Fails if a string may not have `bytes`; accounts for nothing.
  void CheckString(size_t bytes) const;
  // Accounts for a new string of `bytes`; call before it is made where its size is in doubt.
  void NewString(size_t bytes);
  // Accounts for `count` list or dict items.
  void NewItems(size_t count);

  // Registers an object that may end up in a cycle of references; it is emptied at the end.
  void AddCycle(ObjectPtr object) { cycles_.push_back(std::move(object)); }

  int line = 0;  // Of what is being evaluated.

 private:
  [[noreturn]] void FailSteps() const;
  [[noreturn]] void FailDepth();
  void NewBytes(size_t bytes);

  const Limits limits_;
  const std::function<int64_t()>& now_;
  size_t steps_ = 0;
  size_t depth_ = 0;
  size_t total_bytes_ = 0;
  std::vector<ObjectPtr> cycles_;
};

// The arguments of a built-in in the order of `names`; absent ones are null. Fails on too many, on
// unknown names and on doubles. The pointers live as long as `args`.
std::vector<const Value*> Bind(std::string_view function, const CallArgs& args,
                               std::initializer_list<std::string_view> names);
// The argument as an int, bool or string, or `fallback` if it is absent; fails on other types.
int64_t IntArg(const Value* arg, int64_t fallback);
bool BoolArg(const Value* arg, bool fallback);
const Str& StrArg(const Value* arg, std::string_view what);

}  // namespace terrace::jinja

#endif  // TERRACE_TEXT_JINJA_RUNTIME_H_
