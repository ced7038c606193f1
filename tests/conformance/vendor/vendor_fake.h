// What stand-ins for vendors' libraries share: host memory as the device's, live handles, the
// number of calls, one of which can be made to fail, and what was done wrong. Each stand-in is a
// shared library of its own with one VendorFake, which tests reach by its exported terrace_fake().
#ifndef TERRACE_TESTS_CONFORMANCE_VENDOR_FAKE_H_
#define TERRACE_TESTS_CONFORMANCE_VENDOR_FAKE_H_

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <iterator>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <vector>

namespace terrace::device {

enum class FakeDirection { kToDevice, kToHost, kOnDevice };

struct VendorFake {
  // What a test sets.
  uint64_t memory_bytes = uint64_t{1} << 30;
  int fail_at = 0;  // the number of the call that fails; 0: none
  int fail_with = 0;

  std::recursive_mutex mutex;
  int calls = 0;
  bool failed = false;
  std::string failed_call;
  std::vector<std::string> violations;
  std::map<uintptr_t, std::vector<std::byte>> allocations;
  std::set<void*> streams;
  std::map<void*, bool> events;  // whether recorded
  std::set<void*> objects;       // descriptors, tensors, executors, modules
  int contexts = 0;
  bool initialised = false;
  uint64_t copies = 0;
  uint64_t copied[3] = {};  // bytes by direction
  std::vector<std::string> launched;
  std::set<std::string> called;

  // Things that were made and not given back.
  size_t Alive() const {
    return allocations.size() + streams.size() + events.size() + objects.size() +
           static_cast<size_t>(contexts);
  }
  void Arm(int call, int code) {
    calls = 0;
    failed = false;
    failed_call.clear();
    fail_at = call;
    fail_with = code;
  }
  uint64_t Used() const {
    uint64_t bytes = 0;
    for (const auto& [address, memory] : allocations) bytes += memory.size();
    return bytes;
  }
  bool Holds(const void* data, size_t bytes) const {
    const auto address = reinterpret_cast<uintptr_t>(data);
    auto after = allocations.upper_bound(address);
    if (after == allocations.begin()) return false;
    const auto& [begin, memory] = *std::prev(after);
    return address - begin <= memory.size() && bytes <= memory.size() - (address - begin);
  }
};

using FakeAccess = VendorFake* (*)();

}  // namespace terrace::device

#endif  // TERRACE_TESTS_CONFORMANCE_VENDOR_FAKE_H_
