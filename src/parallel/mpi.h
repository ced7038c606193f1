// A group whose members are processes that mpirun has started, on one host or on several. The MPI
// library is opened when it is wanted: Open MPI, or one with the binary interface of MPICH.
#ifndef TERRACE_PARALLEL_MPI_H_
#define TERRACE_PARALLEL_MPI_H_

#include <cstdint>
#include <memory>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "parallel/communicator.h"

namespace terrace::parallel {

// How many processes mpirun has started this one with, from the environment; 1 if it was not
// started so.
int32_t MpiProcesses();
// Which of them this one is, and which of those on this host; 0 if it was not started so.
int32_t MpiRank();
int32_t MpiLocalRank();

// This process as a member of the group of all of them; the group ends with it. To be called once
// in a process, from the thread that will use it or before that. A member that waits for another
// for longer than `patience` gives up; after that, and after a member has given up, messages may be
// under way still, so the group stays broken and the process should end. NotFound without an MPI
// library.
absl::StatusOr<std::unique_ptr<Communicator>> JoinMpiGroup(
    absl::Duration patience = absl::Seconds(60));

}  // namespace terrace::parallel

#endif  // TERRACE_PARALLEL_MPI_H_
