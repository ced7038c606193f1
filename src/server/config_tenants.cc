// The keys of an entry of `tenants`.
#include <fmt/format.h>

#include "base/units.h"
#include "server/config.h"
#include "server/config_values.h"

namespace terrace::server {
namespace {

using absl::Status;
using std::string_view;
using In = const TenantConfig&;

// Less would not hold one request's KV.
constexpr uint64_t kLeastMemory = kMiB;

const TenantConfigKey kKeys[] = {
    {"name", "name", "",
     "The tenant, as API keys name it (terrace key add --tenant); `default` for requests without "
     "one. Needed.",
     [](string_view t, TenantConfig* c) {
       if (t.size() > 128) return absl::InvalidArgumentError("a name has at most 128 bytes");
       return SetText(t, &c->name);
     },
     [](In c) { return c.name; }},
    {"share", "number", "1",
     "Its share of computing, against other tenants' shares, when several have work. Who asks for "
     "less than its share is served as if it were alone.",
     [](string_view t, TenantConfig* c) {
       double share = 0;
       Status status = SetWeight(t, &share);
       if (status.ok() && share < 0.01) {
         status = absl::InvalidArgumentError("a share is a number from 0.01 to 1000");
       }
       if (status.ok()) c->share = share;
       return status;
     },
     [](In c) { return fmt::format("{}", c.share); }},
    {"memory", "size or off", "off",
     "The most device memory that its KV may take; its requests wait, or end at that length, when "
     "it is used up. off: what there is.",
     [](string_view t, TenantConfig* c) {
       if (t != "off") return SetBytes(t, kLeastMemory, &c->memory_bytes);
       c->memory_bytes = 0;
       return absl::OkStatus();
     },
     [](In c) { return c.memory_bytes > 0 ? BytesText(c.memory_bytes) : "off"; }},
    {"compute", "share or off", "off",
     "The most of the engine's time that its requests may take, also when nobody else wants it, "
     "such as 0.25; averaged over a few seconds. off: what is left.",
     [](string_view t, TenantConfig* c) {
       if (t != "off") return SetRatio(t, &c->compute);
       c->compute = 1;
       return absl::OkStatus();
     },
     [](In c) { return c.compute < 1 ? fmt::format("{}", c.compute) : std::string("off"); }},
    {"running", "number", "0",
     "The most of its requests that run at once; 0: what scheduler.tenant_running says.",
     [](string_view t, TenantConfig* c) { return SetInteger(t, 0, 100'000, &c->running); },
     [](In c) { return fmt::format("{}", c.running); }},
};

}  // namespace

std::span<const TenantConfigKey> TenantConfigKeys() { return kKeys; }

}  // namespace terrace::server
