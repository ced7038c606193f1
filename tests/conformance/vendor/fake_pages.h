// For stand-ins whose driver maps pages: addresses that can be read and written only while a page
// is mapped there and access is allowed, so that whoever strays ends with a fault.
#ifndef TERRACE_TESTS_CONFORMANCE_FAKE_PAGES_H_
#define TERRACE_TESTS_CONFORMANCE_FAKE_PAGES_H_

#include <sys/mman.h>

#include <cstdint>

#include "fake_call.h"

namespace terrace::device {

inline constexpr uint64_t kFakePageBytes = uint64_t{2} << 20;

inline bool FreeAddresses(uint64_t address, uint64_t bytes) {
  auto found = Fake().reserved.find(address);
  if (found == Fake().reserved.end() || found->second != bytes) return false;
  for (const auto& [at, page] : Fake().mapped) {
    if (at >= address && at < address + bytes) return false;
  }
  Fake().reserved.erase(found);
  return ::munmap(reinterpret_cast<void*>(address), bytes) == 0;
}

// A page that is mapped lives on until it is unmapped; the device is expected to unmap it first.
inline bool ReleasePage(uint64_t handle) {
  for (const auto& [at, page] : Fake().mapped) {
    if (page.handle == handle) return false;
  }
  return Fake().pages.erase(handle) == 1;
}

inline bool UnmapPages(uint64_t address, uint64_t bytes) {
  for (uint64_t at = address; at < address + bytes; at += kFakePageBytes) {
    if (Fake().mapped.erase(at) != 1) return false;
  }
  void* data = reinterpret_cast<void*>(address);
  return ::madvise(data, bytes, MADV_DONTNEED) == 0 && ::mprotect(data, bytes, PROT_NONE) == 0;
}

}  // namespace terrace::device

#endif  // TERRACE_TESTS_CONFORMANCE_FAKE_PAGES_H_
