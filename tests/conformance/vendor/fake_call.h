// For the stand-ins themselves: one call of a vendor's library, counted, perhaps made to fail, and
// checked. Included by the one source file of each library.
#ifndef TERRACE_TESTS_CONFORMANCE_FAKE_CALL_H_
#define TERRACE_TESTS_CONFORMANCE_FAKE_CALL_H_

#include <string>

#include "vendor_fake.h"

namespace terrace::device {

inline VendorFake& Fake() {
  static VendorFake fake;
  return fake;
}

// Which device the thread said it means; -1: none.
inline int& Entered() {
  thread_local int device = -1;
  return device;
}

inline constexpr bool kAnywhere = false;

class Call {
 public:
  // `bad`: what the library answers to a call that is not allowed.
  Call(const char* name, int bad, bool needs_device = true)
      : lock_(Fake().mutex), name_(name), bad_(bad) {
    Fake().called.insert(name);
    if (++Fake().calls == Fake().fail_at) {
      Fake().failed = true;
      Fake().failed_call = name;
      result_ = Fake().fail_with;
    } else if (needs_device && Entered() != 0) {
      Refuse("the thread has not said which device it means");
    }
  }
  void Need(bool holds, const char* what) {
    if (ok() && !holds) Refuse(what);
  }
  bool ok() const { return result_ == 0; }
  int result() const { return result_; }
  void Answer(int code) {
    if (ok()) result_ = code;
  }

  void NeedStream(void* stream) { Need(Fake().streams.contains(stream), "no such stream"); }
  void NeedEvent(void* event) { Need(Fake().events.contains(event), "no such event"); }
  void NeedObject(const void* object) {
    Need(Fake().objects.contains(const_cast<void*>(object)), "no such object");
  }

  void* NewHandle() {
    handles().push_back(std::make_unique<char>());
    return handles().back().get();
  }
  void NewStream(void** stream) {
    if (ok()) Fake().streams.insert(*stream = NewHandle());
  }
  void NewEvent(void** event) {
    if (ok()) Fake().events[*event = NewHandle()] = false;
  }
  void NewObject(void** object) {
    if (ok()) Fake().objects.insert(*object = NewHandle());
  }

  void Allocate(void** data, size_t bytes, int out_of_memory) {
    Need(bytes > 0, "no bytes");
    if (!ok()) return;
    if (Fake().Used() + bytes > Fake().memory_bytes) return Answer(out_of_memory);
    std::vector<std::byte> memory(bytes);
    *data = memory.data();
    Fake().allocations.emplace(reinterpret_cast<uintptr_t>(*data), std::move(memory));
  }
  void Copy(FakeDirection direction, void* to, const void* from, size_t bytes) {
    const bool device_to = direction != FakeDirection::kToHost;
    const bool device_from = direction != FakeDirection::kToDevice;
    Need(Fake().Holds(to, bytes) == device_to, "the target is on the wrong side");
    Need(Fake().Holds(from, bytes) == device_from, "the source is on the wrong side");
    if (!ok()) return;
    std::memcpy(to, from, bytes);
    ++Fake().copies;
    Fake().copied[static_cast<int>(direction)] += bytes;
  }
  void Record(void* event, void* stream) {
    NeedEvent(event);
    NeedStream(stream);
    if (ok()) Fake().events[event] = true;
  }
  void NeedRecorded(void* event) {
    NeedEvent(event);
    Need(ok() && Fake().events[event], "the event was never recorded");
  }

 private:
  void Refuse(const std::string& what) {
    Fake().violations.push_back(std::string(name_) + ": " + what);
    result_ = bad_;
  }
  static std::vector<std::unique_ptr<char>>& handles() {
    static std::vector<std::unique_ptr<char>> kept;  // never the same twice
    return kept;
  }

  std::lock_guard<std::recursive_mutex> lock_;
  const char* const name_;
  const int bad_;
  int result_ = 0;
};

// A call that gives something back: counted as a violation if wrong, but never made to fail, as
// nobody could do anything about it.
class Release {
 public:
  explicit Release(const char* name) : lock_(Fake().mutex), name_(name) {
    Fake().called.insert(name);
  }
  int Done(bool right) {
    if (!right) Fake().violations.push_back(std::string(name_) + ": no such thing");
    return right ? 0 : 1;
  }

 private:
  std::lock_guard<std::recursive_mutex> lock_;
  const char* const name_;
};

}  // namespace terrace::device

#endif  // TERRACE_TESTS_CONFORMANCE_FAKE_CALL_H_
