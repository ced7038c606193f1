// For the stand-ins themselves: one call of a vendor's library, counted, perhaps made to fail, and
// checked. Included by the one source file of each library.
#ifndef TERRACE_TESTS_CONFORMANCE_FAKE_CALL_H_
#define TERRACE_TESTS_CONFORMANCE_FAKE_CALL_H_

#include <sys/mman.h>

#include <cstdio>
#include <string>
#include <vector>

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
    Fake().order.emplace_back(name);
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
  void NewFunction(void** function, void* module, const char* name) {
    NeedObject(module);
    if (ok()) Fake().functions[*function = NewHandle()] = name;
  }
  // Into the graph that is captured on `stream`, else at once.
  void Launched(void* function, void* stream, const std::vector<unsigned>& shape,
                void** parameters) {
    NeedStream(stream);
    Need(Fake().functions.contains(function), "no such function");
    if (!ok()) return;
    FakeLaunch launch{Fake().functions[function], shape, {}};
    const size_t count =
        Fake().parameters_of ? Fake().parameters_of(launch.name) : Fake().parameters;
    for (size_t i = 0; i < count; ++i) {
      launch.values.push_back(*static_cast<uint64_t*>(parameters[i]));
    }
    const auto capture = Fake().capturing.find(stream);
    if (capture != Fake().capturing.end()) {
      capture->second.push_back(std::move(launch));
      return;
    }
    ++Fake().launch_calls;
    Execute(launch);
  }
  static void Execute(const FakeLaunch& launch) {
    const std::vector<unsigned>& shape = launch.shape;
    char text[128];
    std::snprintf(text, sizeof(text), "%ux%ux%u groups of %ux%ux%u", shape[0], shape[1], shape[2],
                  shape[3], shape[4], shape[5]);
    Fake().launched.emplace_back(text);
    Fake().launched_parameters = launch.values;
    if (Fake().parameters_of) Fake().executed.push_back(launch);
    if (Fake().run) Fake().run(launch);
  }

  // Graphs of launches.
  void BeginCapture(void* stream, int mode) {
    NeedStream(stream);
    Need(mode == 2, "mode");
    Need(!Fake().capturing.contains(stream), "captured already");
    if (ok()) Fake().capturing[stream];
  }
  // Ends the capture, as the driver does, even where it fails.
  void EndCapture(void* stream, void** graph) {
    NeedStream(stream);
    const auto capture = Fake().capturing.find(stream);
    if (capture == Fake().capturing.end()) return Need(false, "nothing is captured");
    if (ok()) {
      NewObject(graph);
      Fake().graphs[*graph] = std::move(capture->second);
    }
    Fake().capturing.erase(capture);
  }
  void Instantiate(void** ready, void* graph, unsigned long long flags) {
    NeedObject(graph);
    Need(flags == 0, "flags");
    if (!ok()) return;
    NewObject(ready);
    Fake().graphs[*ready] = Fake().graphs[graph];
  }
  void LaunchGraph(void* ready, void* stream) {
    NeedObject(ready);
    NeedStream(stream);
    Need(!Fake().capturing.contains(stream), "a graph within a graph");
    if (!ok()) return;
    ++Fake().launch_calls;
    for (const FakeLaunch& launch : Fake().graphs[ready]) Execute(launch);
  }
  void NeedNoCapture(void* stream) {
    Need(!Fake().capturing.contains(stream), "the stream is being captured");
  }

  // Pages. `properties` are an allocation's: pinned (1) memory of device (1) 0.
  void NeedProperties(const void* properties) {
    int words[8];
    std::memcpy(words, properties, sizeof(words));
    Need(words[0] == 1 && words[1] == 0 && words[2] == 1 && words[3] == 0, "properties");
  }
  void PageBytes(size_t* bytes, const void* properties, int option) {
    NeedProperties(properties);
    Need(option == 0, "option");
    *bytes = kPage;
  }
  void Reserve(uint64_t* address, size_t bytes) {
    Need(bytes > 0 && bytes % kPage == 0, "no multiple of a page");
    if (!ok()) return;
    // Aligned as the driver aligns.
    void* data = ::mmap(nullptr, bytes + kPage, PROT_NONE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    const auto begin = reinterpret_cast<uintptr_t>(data);
    *address = (begin + kPage - 1) / kPage * kPage;
    if (*address > begin) ::munmap(data, *address - begin);
    ::munmap(reinterpret_cast<void*>(*address + bytes), begin + kPage - *address);
    Fake().reserved[*address] = bytes;
  }
  void CreatePage(uint64_t* handle, size_t bytes, const void* properties, int out_of_memory) {
    NeedProperties(properties);
    Need(bytes > 0 && bytes % kPage == 0, "no multiple of a page");
    if (!ok()) return;
    if (Fake().Used() + bytes > Fake().memory_bytes) return Answer(out_of_memory);
    *handle = ++Fake().last_page;
    Fake().pages[*handle] = bytes;
  }
  void MapPage(uint64_t address, size_t bytes, uint64_t handle) {
    const auto page = Fake().pages.find(handle);
    Need(page != Fake().pages.end() && page->second == bytes, "no such page");
    auto in = Fake().reserved.upper_bound(address);
    Need(in != Fake().reserved.begin(), "address not reserved");
    if (!ok()) return;
    in = std::prev(in);
    Need(address + bytes <= in->first + in->second, "address not reserved");
    Need(!Fake().mapped.contains(address), "mapped already");
    for (const auto& [at, other] : Fake().mapped) Need(other.handle != handle, "mapped elsewhere");
    if (ok()) Fake().mapped[address] = {handle, false};
  }
  void AllowAccess(uint64_t address, size_t bytes, const void* access) {
    int words[3];
    std::memcpy(words, access, sizeof(words));
    Need(words[0] == 1 && words[1] == 0 && words[2] == 3, "access");
    for (uint64_t at = address; at < address + bytes; at += kPage) {
      Need(Fake().mapped.contains(at), "nothing is mapped there");
    }
    if (!ok()) return;
    for (uint64_t at = address; at < address + bytes; at += kPage) Fake().mapped[at].allowed = true;
    ::mprotect(reinterpret_cast<void*>(address), bytes, PROT_READ | PROT_WRITE);
  }
  void Pin(void* data, size_t bytes) {
    Need(bytes > 0 && !Fake().pinned.contains(data), "pinned already");
    if (ok()) Fake().pinned[data] = bytes;
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
  static constexpr uint64_t kPage = uint64_t{2} << 20;
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

inline bool ForgetGraph(void* graph) {
  Fake().graphs.erase(graph);
  return Fake().objects.erase(graph) == 1;
}

}  // namespace terrace::device

#endif  // TERRACE_TESTS_CONFORMANCE_FAKE_CALL_H_
