// What stand-ins for vendors' libraries share: host memory as the device's, live handles, the
// number of calls, one of which can be made to fail, and what was done wrong. Each stand-in is a
// shared library of its own with one VendorFake, which tests reach by its exported terrace_fake().
#ifndef TERRACE_TESTS_CONFORMANCE_VENDOR_FAKE_H_
#define TERRACE_TESTS_CONFORMANCE_VENDOR_FAKE_H_

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <iterator>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <vector>

namespace terrace::device {

enum class FakeDirection { kToDevice, kToHost, kOnDevice };

// A kernel's launch, with a word for each parameter.
struct FakeLaunch {
  std::string name;
  std::vector<unsigned> shape;  // groups, then items
  std::vector<uint64_t> values;
};

struct VendorFake {
  // What a test sets.
  uint64_t memory_bytes = uint64_t{1} << 30;
  int fail_at = 0;  // the number of the call that fails; 0: none
  int fail_with = 0;
  bool has_pages = true;  // the driver maps pages, if it is of a kind that does
  // How many parameters a kernel has; null: `parameters` of each.
  std::function<size_t(const std::string& kernel)> parameters_of;
  // Called before an operator runs, with nothing locked; null: nothing.
  std::function<void(const char* name)> before_operator;
  std::function<void(const FakeLaunch&)> run;  // what a launch does when it runs; null: nothing

  std::recursive_mutex mutex;
  int calls = 0;
  bool failed = false;
  std::string failed_call;
  std::vector<std::string> violations;
  std::map<uintptr_t, std::vector<std::byte>> allocations;
  std::set<void*> streams;
  std::map<void*, bool> events;  // whether recorded
  std::set<void*> objects;       // descriptors, tensors, executors, modules, graphs
  std::map<void*, std::string> functions;
  std::map<void*, std::vector<FakeLaunch>> capturing;  // by stream
  std::map<void*, std::vector<FakeLaunch>> graphs;     // made, and ready to be launched
  std::vector<FakeLaunch> executed;                    // where `parameters_of` is set
  uint64_t launch_calls = 0;                           // that gave work to a stream
  struct MappedPage {
    uint64_t handle = 0;
    bool allowed = false;
  };
  std::map<uint64_t, uint64_t> reserved;  // addresses
  std::map<uint64_t, uint64_t> pages;     // handle to bytes
  std::map<uint64_t, MappedPage> mapped;  // by address
  std::map<void*, size_t> pinned;         // host memory
  uint64_t last_page = 0;
  size_t parameters = 0;  // that each launch is to remember
  std::vector<uint64_t> launched_parameters;
  int contexts = 0;
  bool initialised = false;
  uint64_t copies = 0;
  uint64_t copied[3] = {};  // bytes by direction
  std::vector<std::string> launched;
  std::set<std::string> called;
  std::vector<std::string> order;  // of the calls since Arm, by number

  // Things that were made and not given back.
  size_t Alive() const {
    return allocations.size() + streams.size() + events.size() + objects.size() + reserved.size() +
           pages.size() + mapped.size() + pinned.size() + capturing.size() +
           static_cast<size_t>(contexts);
  }
  void Arm(int call, int code) {
    calls = 0;
    failed = false;
    failed_call.clear();
    order.clear();
    fail_at = call;
    fail_with = code;
  }
  uint64_t Used() const {
    uint64_t bytes = 0;
    for (const auto& [address, memory] : allocations) bytes += memory.size();
    for (const auto& [handle, size] : pages) bytes += size;
    return bytes;
  }
  bool Holds(const void* data, size_t bytes) const {
    const auto address = reinterpret_cast<uintptr_t>(data);
    if (InPages(address, bytes)) return true;
    auto after = allocations.upper_bound(address);
    if (after == allocations.begin()) return false;
    const auto& [begin, memory] = *std::prev(after);
    return address - begin <= memory.size() && bytes <= memory.size() - (address - begin);
  }
  // Whether pages are mapped and allowed all over [address, address + bytes).
  bool InPages(uint64_t address, uint64_t bytes) const {
    auto page = mapped.upper_bound(address);
    if (page == mapped.begin()) return false;
    page = std::prev(page);
    constexpr uint64_t kPage = uint64_t{2} << 20;
    uint64_t end = page->first;
    for (; page != mapped.end() && page->first == end && page->second.allowed; ++page) {
      end += kPage;
      if (address + bytes <= end) return address < end;
    }
    return false;
  }
};

using FakeAccess = VendorFake* (*)();

}  // namespace terrace::device

#endif  // TERRACE_TESTS_CONFORMANCE_VENDOR_FAKE_H_
