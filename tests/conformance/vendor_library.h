// Opens stand-ins for vendors' libraries (vendor/), which the build makes beside the tests.
#ifndef TERRACE_TESTS_CONFORMANCE_VENDOR_LIBRARY_H_
#define TERRACE_TESTS_CONFORMANCE_VENDOR_LIBRARY_H_

#include <dlfcn.h>
#include <gtest/gtest.h>

#include <cstdio>
#include <set>
#include <string>

#include "vendor/vendor_fake.h"

namespace terrace::device {

// `vendor`: "ascend", "cambricon", "cuda", "hip", "musa" or "sensors".
inline std::string FakeLibrary(const std::string& vendor) {
  return std::string(TERRACE_FAKE_LIBRARIES) + "/libterrace_fake_" + vendor + ".so";
}

// The functions of the stand-in's, but for the one that gives its state.
inline std::set<std::string> FunctionsOf(const std::string& vendor) {
  std::set<std::string> names;
  FILE* listing = ::popen(("nm -D --defined-only " + FakeLibrary(vendor)).c_str(), "r");
  char line[256], name[200];
  while (listing != nullptr && std::fgets(line, sizeof(line), listing) != nullptr) {
    // Mangled names are those of templates that the compiler shares.
    if (std::sscanf(line, "%*s T %199s", name) == 1 && name[0] != '_') names.insert(name);
  }
  if (listing != nullptr) ::pclose(listing);
  names.erase("terrace_fake_state");
  return names;
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
