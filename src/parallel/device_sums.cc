#include "parallel/device_sums.h"

#include <memory>
#include <span>
#include <utility>

#include <fmt/format.h>

#include "base/status.h"
#include "device/driver_device.h"

namespace terrace::parallel {
namespace {

absl::StatusOr<std::unique_ptr<device::CollectiveLibrary>> Open(const device::Device& device) {
  const auto* driver = dynamic_cast<const device::DriverDevice*>(&device);
  if (driver == nullptr) {
    return absl::NotFoundError(fmt::format("{} is no maker's chip", device.info().kind));
  }
  return driver->OpenCollectives();
}

// Empty if nobody refuses.
absl::StatusOr<std::string> Refusal(Communicator* group, const absl::Status& mine) {
  ASSIGN_OR_RETURN(const int32_t who, group->FirstToRefuse(!mine.ok()));
  if (who == Communicator::kNobody) return std::string();
  return mine.ok() ? fmt::format("member {} has said why", who) : std::string(Message(mine));
}

}  // namespace

absl::StatusOr<std::string> JoinDeviceSums(Communicator* group, const device::Device& device) {
  const auto library = Open(device);
  ASSIGN_OR_RETURN(std::string refusal, Refusal(group, library.status()));
  if (!refusal.empty()) return refusal;
  absl::StatusOr<device::CollectiveLibrary::GroupId> id = device::CollectiveLibrary::GroupId{};
  if (group->rank() == 0) id = (*library)->MakeId();
  ASSIGN_OR_RETURN(refusal, Refusal(group, id.status()));
  if (!refusal.empty()) return refusal;
  RETURN_IF_ERROR(group->Broadcast(0, std::span(*id)));
  // Ends at all members or at none: the library's own affair.
  absl::StatusOr<std::unique_ptr<device::Collectives>> joined =
      (*library)->Join(*id, group->rank(), group->size());
  ASSIGN_OR_RETURN(refusal, Refusal(group, joined.status()));
  if (refusal.empty()) group->set_device_sums(*std::move(joined));
  return refusal;
}

}  // namespace terrace::parallel
