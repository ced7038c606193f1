#include "device/shared_library.h"

#include <dlfcn.h>

#include <fmt/format.h>

namespace terrace::device {

absl::StatusOr<SharedLibrary> SharedLibrary::Open(const std::string& what,
                                                  const std::vector<std::string>& names) {
  std::string why;
  for (const std::string& name : names) {
    if (void* handle = ::dlopen(name.c_str(), RTLD_NOW | RTLD_LOCAL); handle != nullptr) {
      return SharedLibrary(handle);
    }
    const char* error = ::dlerror();
    if (why.empty() && error != nullptr) why = error;
  }
  return absl::NotFoundError(fmt::format("the library of {} could not be opened: {}", what,
                                         why.empty() ? "no name is known" : why));
}

void* SharedLibrary::Find(const std::string& symbol) const {
  return ::dlsym(handle_, symbol.c_str());
}

}  // namespace terrace::device
