#include "device/driver_collectives.h"

#include <utility>

#include <fmt/format.h>

#include "base/status.h"

namespace terrace::device {
namespace {

absl::Status Check(const CollectiveCalls& calls, int code, const char* what) {
  if (code == 0) return absl::OkStatus();
  return absl::UnavailableError(
      fmt::format("{} {}: {} ({})", calls.maker, what, calls.Describe(code), code));
}

class Member final : public Collectives {
 public:
  Member(const DriverApi* api, const CollectiveCalls& calls, void* group, void* stream)
      : api_(api), calls_(calls), group_(group), stream_(stream) {}
  ~Member() override {
    if (!api_->Enter().ok()) return;
    calls_.Leave(group_);
    api_->DestroyStream(stream_);
  }
  Member(const Member&) = delete;
  Member& operator=(const Member&) = delete;

  absl::Status AllReduce(float* values, uint64_t count) override {
    RETURN_IF_ERROR(api_->Enter());
    RETURN_IF_ERROR(
        Check(calls_, calls_.AllReduce(values, count, group_, stream_), "sum over chips"));
    return api_->SynchronizeStream(stream_);
  }

 private:
  const DriverApi* const api_;
  const CollectiveCalls calls_;
  void* const group_;
  void* const stream_;
};

class Library final : public CollectiveLibrary {
 public:
  Library(const DriverApi* api, CollectiveCalls calls) : api_(api), calls_(std::move(calls)) {}

  absl::StatusOr<GroupId> MakeId() const override {
    RETURN_IF_ERROR(api_->Enter());
    GroupId id = {};
    RETURN_IF_ERROR(Check(calls_, calls_.MakeId(&id), "making a group"));
    return id;
  }
  absl::StatusOr<std::unique_ptr<Collectives>> Join(const GroupId& id, int32_t rank,
                                                    int32_t size) const override {
    RETURN_IF_ERROR(api_->Enter());
    ASSIGN_OR_RETURN(void* stream, api_->CreateStream());
    void* group = nullptr;
    const absl::Status joined = Check(calls_, calls_.Join(&group, id, rank, size), "joining");
    if (!joined.ok()) {
      api_->DestroyStream(stream);
      return joined;
    }
    return std::unique_ptr<Collectives>(std::make_unique<Member>(api_, calls_, group, stream));
  }

 private:
  const DriverApi* const api_;
  const CollectiveCalls calls_;
};

}  // namespace

std::unique_ptr<CollectiveLibrary> MakeCollectiveLibrary(const DriverApi* api,
                                                         CollectiveCalls calls) {
  return std::make_unique<Library>(api, std::move(calls));
}

}  // namespace terrace::device
