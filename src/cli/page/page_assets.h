// The files (web/) that pages of commands are made of, as the build put them into the program.
#ifndef TERRACE_CLI_PAGE_PAGE_ASSETS_H_
#define TERRACE_CLI_PAGE_PAGE_ASSETS_H_

#include <span>

#include "server/web_assets.h"

namespace terrace::cli {

std::span<const server::WebAsset> PageAssets();

}  // namespace terrace::cli

#endif  // TERRACE_CLI_PAGE_PAGE_ASSETS_H_
