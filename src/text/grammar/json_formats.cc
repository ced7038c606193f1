#include "text/grammar/json_formats.h"

#include <array>
#include <utility>

namespace terrace::grammar {
namespace {

// Days are up to 28 where the month is not known to have more, so that every date exists. Seconds
// go up to 59. RFC 3339, 4122, 5321, 1123, 3986.
#define TERRACE_DATE                                                                  \
  "(19|20)[0-9]{2}-((0[1-9]|1[0-2])-(0[1-9]|1[0-9]|2[0-8])|(0[13-9]|1[0-2])-(29|30)|" \
  "(0[13578]|1[02])-31)"
#define TERRACE_TIME \
  "([01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](\\.[0-9]{1,6})?(Z|[+-]([01][0-9]|2[0-3]):[0-5][0-9])"
#define TERRACE_BYTE "(25[0-5]|2[0-4][0-9]|1[0-9]{2}|[1-9]?[0-9])"
#define TERRACE_LABEL "[A-Za-z0-9]([A-Za-z0-9-]{0,20}[A-Za-z0-9])?"

constexpr std::array<std::pair<std::string_view, std::string_view>, 10> kFormats = {{
    {"date", TERRACE_DATE},
    {"time", TERRACE_TIME},
    {"date-time", TERRACE_DATE "T" TERRACE_TIME},
    {"duration", "P([0-9]{1,4}D(T[0-9]{1,4}H([0-9]{1,4}M([0-9]{1,4}S)?)?)?|T[0-9]{1,4}[HMS])"},
    {"uuid", "[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}"},
    {"ipv4", TERRACE_BYTE "(\\." TERRACE_BYTE "){3}"},
    {"ipv6", "[0-9a-f]{1,4}(:[0-9a-f]{1,4}){7}"},
    {"hostname", TERRACE_LABEL "(\\." TERRACE_LABEL "){0,5}"},
    {"email", "[A-Za-z0-9_+-]{1,30}(\\.[A-Za-z0-9_+-]{1,30}){0,3}@" TERRACE_LABEL
              "(\\." TERRACE_LABEL "){1,4}"},
    {"uri", "(https?|ftp)://" TERRACE_LABEL "(\\." TERRACE_LABEL
            "){0,5}(:[1-9][0-9]{0,3})?(/[A-Za-z0-9._~-]{0,60}){0,12}(\\?[A-Za-z0-9._~=&-]{0,100})?"
            "(#[A-Za-z0-9._~-]{0,60})?"},
}};

#undef TERRACE_DATE
#undef TERRACE_TIME
#undef TERRACE_BYTE
#undef TERRACE_LABEL

}  // namespace

std::optional<std::string_view> FormatPattern(std::string_view format) {
  for (const auto& [name, pattern] : kFormats) {
    if (name == format) return pattern;
  }
  return std::nullopt;
}

}  // namespace terrace::grammar
