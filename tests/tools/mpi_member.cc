// A member of an MPI group for tests, to be started by mpirun: does what its argument says and
// prints what came of it, a line a member.
#include <fmt/format.h>
#include <unistd.h>

#include <cstdio>
#include <string>
#include <string_view>
#include <vector>

#include "absl/time/time.h"
#include "base/status.h"
#include "parallel/mpi.h"

namespace terrace::parallel {
namespace {

// All operations over runs that do not divide by the members, with values that differ by member.
absl::Status Exchange(Communicator& me) {
  std::vector<float> values;
  for (int i = 0; i < 1001; ++i) values.push_back(static_cast<float>(i * (me.rank() + 1)));
  RETURN_IF_ERROR(me.AllReduce(values));
  const int sum = me.size() * (me.size() + 1) / 2;
  for (int i = 0; i < 1001; ++i) {
    if (values[static_cast<size_t>(i)] != static_cast<float>(i * sum)) {
      return absl::InternalError(fmt::format("sum {} is {}", i, values[static_cast<size_t>(i)]));
    }
  }
  std::vector<IndexRange> parts;
  for (int32_t r = 0; r < me.size(); ++r) parts.push_back({r * r, (r + 1) * (r + 1)});
  std::vector<float> gathered(static_cast<size_t>(me.size() * me.size()));
  const IndexRange mine = parts[static_cast<size_t>(me.rank())];
  for (int64_t i = mine.begin; i < mine.end; ++i) {
    gathered[static_cast<size_t>(i)] = static_cast<float>(i);
  }
  RETURN_IF_ERROR(me.AllGather(gathered, parts));
  for (size_t i = 0; i < gathered.size(); ++i) {
    if (gathered[i] != static_cast<float>(i)) return absl::InternalError("a part is missing");
  }
  std::vector<std::byte> bytes(100'000, static_cast<std::byte>(me.rank()));
  RETURN_IF_ERROR(me.Broadcast(0, bytes));
  if (bytes.back() != std::byte{0}) return absl::InternalError("not what member 0 has sent");
  ASSIGN_OR_RETURN(const int32_t refused, me.FirstToRefuse(me.rank() > 0));
  if (refused != (me.size() > 1 ? 1 : Communicator::kNobody)) {
    return absl::InternalError(fmt::format("member {} refuses", refused));
  }
  return me.Barrier();
}

absl::Status Run(std::string_view what) {
  ASSIGN_OR_RETURN(std::unique_ptr<Communicator> me, JoinMpiGroup(absl::Milliseconds(500)));
  absl::Status status;
  std::vector<float> values(10);
  const bool last = me->rank() == me->size() - 1;
  if (what == "exchange") status = Exchange(*me);
  if (what == "give-up" && last) me->GiveUp(absl::ResourceExhaustedError("no room in layer 3"));
  if (what == "differ" && last) values.resize(22);
  if (what != "exchange" && !(last && what != "differ")) status = me->AllReduce(values);
  const Traffic traffic = me->traffic();
  std::printf("%s", fmt::format("{} {} {} {}\n", me->rank(), traffic.sent_bytes,
                                absl::StatusCodeToString(status.code()), Message(status))
                        .c_str());
  std::fflush(stdout);
  // mpirun ends all members when one has ended without the others; they are to find out themselves,
  // and the test ends them.
  while (what != "exchange") pause();
  return absl::OkStatus();
}

}  // namespace
}  // namespace terrace::parallel

int main(int argc, char** argv) {
  const absl::Status status = terrace::parallel::Run(argc > 1 ? argv[1] : "exchange");
  if (!status.ok()) std::fprintf(stderr, "%s\n", std::string(status.message()).c_str());
  return status.ok() ? 0 : 1;
}
