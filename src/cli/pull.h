// terrace pull: brings a model into the store.
#ifndef TERRACE_CLI_PULL_H_
#define TERRACE_CLI_PULL_H_

#include "cli/cli.h"

namespace terrace::cli {

void AddPullCommand(Command root, Invocation* invocation);

}  // namespace terrace::cli

#endif  // TERRACE_CLI_PULL_H_
