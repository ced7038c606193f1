// Opens stand-ins for vendors' libraries (vendor/), which the build makes beside the tests.
#ifndef TERRACE_TESTS_CONFORMANCE_VENDOR_LIBRARY_H_
#define TERRACE_TESTS_CONFORMANCE_VENDOR_LIBRARY_H_

#include <dlfcn.h>
#include <gtest/gtest.h>

#include <string>

#include "vendor/vendor_fake.h"

namespace terrace::device {

// `vendor`: "ascend", "cambricon", "hip" or "musa".
inline std::string FakeLibrary(const std::string& vendor) {
  return std::string(TERRACE_FAKE_LIBRARIES) + "/libterrace_fake_" + vendor + ".so";
}

// The state of the stand-in, which is the library's own; never null.
inline VendorFake* FakeOf(const std::string& vendor) {
  void* library = ::dlopen(FakeLibrary(vendor).c_str(), RTLD_NOW | RTLD_LOCAL);
  EXPECT_NE(library, nullptr) << ::dlerror();
  if (library == nullptr) std::abort();
  return reinterpret_cast<FakeAccess>(::dlsym(library, "terrace_fake_state"))();
}

}  // namespace terrace::device

#endif  // TERRACE_TESTS_CONFORMANCE_VENDOR_LIBRARY_H_
