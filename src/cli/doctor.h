// terrace doctor: measures this machine's memory, disk and object store, looks at the host's
// settings, and says what to change.
#ifndef TERRACE_CLI_DOCTOR_H_
#define TERRACE_CLI_DOCTOR_H_

#include "cli/command.h"

namespace terrace::cli {

void AddDoctorCommand(Command root, Invocation* invocation);

}  // namespace terrace::cli

#endif  // TERRACE_CLI_DOCTOR_H_
