#include "format/model_set.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <map>
#include <set>
#include <system_error>
#include <utility>

namespace terrace::format {
namespace {

constexpr std::string_view kExtension = ".gguf";
constexpr size_t kDigits = 5;

std::optional<uint32_t> FiveDigits(std::string_view text) {
  if (text.size() != kDigits) return std::nullopt;
  uint32_t value = 0;
  for (char c : text) {
    if (c < '0' || c > '9') return std::nullopt;
    value = value * 10 + static_cast<uint32_t>(c - '0');
  }
  return value;
}

}  // namespace

std::optional<PartName> ParsePartName(std::string_view path) {
  // "-00002-of-00003.gguf"
  constexpr size_t kTail = 1 + kDigits + 4 + kDigits + kExtension.size();
  if (path.size() <= kTail || !path.ends_with(kExtension)) return std::nullopt;
  std::string_view tail = path.substr(path.size() - kTail);
  if (tail[0] != '-' || tail.substr(1 + kDigits, 4) != "-of-") return std::nullopt;
  auto part = FiveDigits(tail.substr(1, kDigits));
  auto count = FiveDigits(tail.substr(1 + kDigits + 4, kDigits));
  if (!part || !count || *part == 0 || *part > *count) return std::nullopt;
  std::string_view base = path.substr(0, path.size() - kTail);
  if (base.ends_with('/')) return std::nullopt;
  return PartName{std::string(base), *part, *count};
}

std::string PartPath(std::string_view base, uint32_t part, uint32_t count) {
  return fmt::format("{}-{:05}-of-{:05}.gguf", base, part, count);
}

absl::StatusOr<std::vector<ModelFileEntry>> ListModelFiles(const std::string& folder) {
  namespace fs = std::filesystem;
  std::error_code error;
  fs::directory_iterator iterator(folder, error);
  if (error) {
    return absl::NotFoundError(fmt::format("reading folder '{}': {}", folder, error.message()));
  }
  std::vector<ModelFileEntry> entries;
  // Parts present of each set, by base name and count: x-..-of-00002 and x-..-of-00003 are two
  // sets.
  std::map<std::pair<std::string, uint32_t>, std::pair<std::set<uint32_t>, uint64_t>> sets;
  for (; iterator != fs::directory_iterator(); iterator.increment(error)) {
    std::string path = iterator->path().string();
    if (!path.ends_with(kExtension)) continue;
    std::error_code ignored;
    if (!fs::is_regular_file(path, ignored)) continue;
    uint64_t bytes = fs::file_size(path, ignored);
    if (ignored) continue;
    if (auto part = ParsePartName(path); part && part->count > 1) {
      auto& set = sets[{part->base, part->count}];
      set.first.insert(part->part);
      set.second += bytes;
    } else {
      entries.push_back({iterator->path().stem().string(), path, 1, bytes, 0, ""});
    }
  }
  if (error) {
    return absl::UnavailableError(fmt::format("reading folder '{}': {}", folder, error.message()));
  }
  for (const auto& [key, present] : sets) {
    const auto& [base, count] = key;
    ModelFileEntry entry{
        fs::path(base).filename().string(), PartPath(base, 1, count), count, present.second, 0, ""};
    entry.missing_parts = count - static_cast<uint32_t>(present.first.size());
    for (uint32_t part = 1; part <= count && entry.missing_parts > 0; ++part) {
      if (present.first.contains(part)) continue;
      entry.first_missing = fs::path(PartPath(base, part, count)).filename().string();
      break;
    }
    entries.push_back(std::move(entry));
  }
  std::sort(entries.begin(), entries.end(),
            [](const auto& a, const auto& b) { return a.path < b.path; });
  return entries;
}

}  // namespace terrace::format
