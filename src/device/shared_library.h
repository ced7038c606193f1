// A maker's library, opened when it is wanted and kept open for good: drivers leave threads and
// exit handlers behind.
#ifndef TERRACE_DEVICE_SHARED_LIBRARY_H_
#define TERRACE_DEVICE_SHARED_LIBRARY_H_

#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace terrace::device {

class SharedLibrary {
 public:
  // The first of `names` that can be opened. NotFound, naming `what`, if none can.
  static absl::StatusOr<SharedLibrary> Open(const std::string& what,
                                            const std::vector<std::string>& names);
  // Null if the library has no such symbol.
  void* Find(const std::string& symbol) const;

 private:
  explicit SharedLibrary(void* handle) : handle_(handle) {}
  void* handle_;
};

}  // namespace terrace::device

#endif  // TERRACE_DEVICE_SHARED_LIBRARY_H_
