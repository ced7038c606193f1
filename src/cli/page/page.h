// Pages that commands write: one file each, with scripts, styles and data in it, so that it shows
// everything wherever it is opened, without a server and without the internet.
#ifndef TERRACE_CLI_PAGE_PAGE_H_
#define TERRACE_CLI_PAGE_PAGE_H_

#include <boost/json.hpp>
#include <string>
#include <vector>

namespace terrace::cli {

// `scripts` are run in their order and find `data` by pageData() (web/report.html).
std::string MakePage(const std::string& title, const std::vector<std::string>& scripts,
                     const boost::json::object& data);

}  // namespace terrace::cli

#endif  // TERRACE_CLI_PAGE_PAGE_H_
