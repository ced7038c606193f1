// The groups that the table of filters is put together from.
#ifndef TERRACE_TEXT_JINJA_FILTERS_H_
#define TERRACE_TEXT_JINJA_FILTERS_H_

#include <span>
#include <string_view>
#include <utility>

#include "text/jinja/builtins.h"

namespace terrace::jinja {

using NamedFilter = std::pair<std::string_view, Filter>;

std::span<const NamedFilter> TextFilters();
std::span<const NamedFilter> ListFilters();

}  // namespace terrace::jinja

#endif  // TERRACE_TEXT_JINJA_FILTERS_H_
