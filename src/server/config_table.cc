// The configuration's keys as the tables of docs/CONFIG.md.
#include <fmt/format.h>

#include "server/config.h"

namespace terrace::server {
namespace {

template <typename Target>
std::string TableMarkdown(std::span<const ConfigKeyOf<Target>> keys) {
  std::string out = "| key | value | default | meaning |\n|---|---|---|---|\n";
  for (const ConfigKeyOf<Target>& key : keys) {
    out += fmt::format("| `{}` | {} | {} | {} |\n", key.name, key.kind,
                       key.default_text.empty() ? "" : fmt::format("`{}`", key.default_text),
                       key.help);
  }
  return out;
}

}  // namespace

std::string ConfigTableMarkdown() { return TableMarkdown(ConfigKeys()); }
std::string ModelConfigTableMarkdown() { return TableMarkdown(ModelConfigKeys()); }
std::string TenantConfigTableMarkdown() { return TableMarkdown(TenantConfigKeys()); }

}  // namespace terrace::server
