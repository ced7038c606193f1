#include "os/process_memory.h"

#include <charconv>
#include <fstream>
#include <string>
#include <string_view>

#include "base/text.h"

namespace terrace::os {

absl::StatusOr<ProcessMemory> ReadProcessMemory() {
  std::ifstream file("/proc/self/status");
  if (!file) return absl::UnavailableError("cannot open /proc/self/status");
  ProcessMemory memory;
  bool found = false;
  for (std::string line; std::getline(file, line);) {
    const size_t colon = line.find(':');
    if (colon == std::string::npos) continue;
    std::string_view key = std::string_view(line).substr(0, colon);
    uint64_t* value = key == "VmRSS"     ? &memory.rss_bytes
                      : key == "VmHWM"   ? &memory.peak_rss_bytes
                      : key == "RssAnon" ? &memory.anonymous_bytes
                      : key == "VmSwap"  ? &memory.swap_bytes
                                         : nullptr;
    if (value == nullptr) continue;
    std::string_view text = StripSpace(std::string_view(line).substr(colon + 1));
    uint64_t kib = 0;
    if (std::from_chars(text.data(), text.data() + text.size(), kib).ec != std::errc()) {
      return absl::InternalError("cannot understand /proc/self/status: " + line);
    }
    *value = kib * 1024;
    found = true;
  }
  if (!found) return absl::UnavailableError("/proc/self/status names no memory");
  return memory;
}

}  // namespace terrace::os
