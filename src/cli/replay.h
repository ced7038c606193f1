// terrace replay: what each eviction policy would have made of a trace of requests.
#ifndef TERRACE_CLI_REPLAY_H_
#define TERRACE_CLI_REPLAY_H_

#include "cli/command.h"

namespace terrace::cli {

void AddReplayCommand(Command root, Invocation* invocation);

}  // namespace terrace::cli

#endif  // TERRACE_CLI_REPLAY_H_
