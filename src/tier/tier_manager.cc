#include "tier/tier_manager.h"

#include <utility>

#include "base/status.h"
#include "base/units.h"
#include "device/device.h"
#include "tier/manager_impl.h"

namespace terrace::tier {

Pin::Pin(Pin&& other) noexcept { *this = std::move(other); }

Pin& Pin::operator=(Pin&& other) noexcept {
  if (this == &other) return *this;
  Release();
  manager_ = std::exchange(other.manager_, nullptr);
  model_ = other.model_;
  segment_ = other.segment_;
  data_ = std::exchange(other.data_, nullptr);
  bytes_ = std::exchange(other.bytes_, 0);
  return *this;
}

Pin::~Pin() { Release(); }

void Pin::Release() {
  if (manager_ == nullptr) return;
  std::exchange(manager_, nullptr)->Unpin(model_, segment_);
  data_ = nullptr;
  bytes_ = 0;
}

DeviceBuffer::DeviceBuffer(DeviceBuffer&& other) noexcept { *this = std::move(other); }

DeviceBuffer& DeviceBuffer::operator=(DeviceBuffer&& other) noexcept {
  if (this == &other) return *this;
  Release();
  manager_ = std::exchange(other.manager_, nullptr);
  owner_ = std::move(other.owner_);
  data_ = std::exchange(other.data_, nullptr);
  bytes_ = std::exchange(other.bytes_, 0);
  return *this;
}

DeviceBuffer::~DeviceBuffer() { Release(); }

void DeviceBuffer::Release() {
  if (manager_ == nullptr) return;
  std::exchange(manager_, nullptr)->FreeBuffer(data_);
  data_ = nullptr;
  bytes_ = 0;
}

namespace {

absl::Status CheckOptions(const TierManagerOptions& options, const device::Device& device) {
  if (options.device_budget_bytes < kBlockAlignment) {
    return absl::InvalidArgumentError("the device budget must be at least 4 KiB");
  }
  if (options.read_depth == 0) {
    return absl::InvalidArgumentError("the read depth must be at least 1");
  }
  if (device.info().unified_memory) return absl::OkStatus();
  if (options.staging_bytes < kMaxBlockBytes) {
    return absl::InvalidArgumentError("the staging ring must hold at least one block of 4 MiB");
  }
  if (options.host_budget_bytes != 0 && options.host_budget_bytes < options.staging_bytes) {
    return absl::InvalidArgumentError("the host budget does not even hold the staging ring");
  }
  return absl::OkStatus();
}

Ledger::Budgets MakeBudgets(const TierManagerOptions& options) {
  Ledger::Budgets budgets;
  budgets.fill(uint64_t{1} << 62);  // tiers without a cap of their own
  budgets[static_cast<size_t>(Tier::kDevice)] = options.device_budget_bytes;
  if (options.host_budget_bytes != 0) {
    budgets[static_cast<size_t>(Tier::kHost)] = options.host_budget_bytes;
  }
  return budgets;
}

}  // namespace

absl::StatusOr<std::unique_ptr<TierManager>> TierManager::Create(const TierManagerOptions& options,
                                                                 device::Device* device,
                                                                 const Clock* clock) {
  RETURN_IF_ERROR(CheckOptions(options, *device));
  auto impl = std::make_unique<TierManagerImpl>(options, device, clock, MakeBudgets(options));
  RETURN_IF_ERROR(impl->PrepareStaging());
  TierManagerParts parts;
  storage::DiskReaderOptions reader_options;
  reader_options.depth = options.read_depth;
  reader_options.registered = impl->staging();
  ASSIGN_OR_RETURN(parts.reader, storage::DiskReader::Create(reader_options));
  parts.checks = std::make_unique<os::WorkerPool>("terrace-check", 2);
  parts.producers = std::make_unique<os::WorkerPool>("terrace-import", 1);
  ASSIGN_OR_RETURN(parts.policy, CreateEvictionPolicy(options.eviction_policy));
  impl->SetParts(std::move(parts));
  return std::unique_ptr<TierManager>(new TierManager(std::move(impl)));
}

absl::StatusOr<std::unique_ptr<TierManager>> TierManager::CreateFromParts(
    const TierManagerOptions& options, device::Device* device, const Clock* clock,
    TierManagerParts parts) {
  RETURN_IF_ERROR(CheckOptions(options, *device));
  auto impl = std::make_unique<TierManagerImpl>(options, device, clock, MakeBudgets(options));
  RETURN_IF_ERROR(impl->PrepareStaging());
  impl->SetParts(std::move(parts));
  return std::unique_ptr<TierManager>(new TierManager(std::move(impl)));
}

TierManager::TierManager(std::unique_ptr<TierManagerImpl> impl) : impl_(std::move(impl)) {}
TierManager::~TierManager() = default;

absl::StatusOr<ModelId> TierManager::Register(ModelSpec spec) {
  return impl_->Register(std::move(spec));
}
absl::Status TierManager::Unregister(ModelId model) { return impl_->Unregister(model); }
void TierManager::Prefetch(ModelId model, uint32_t first, uint32_t count, Priority priority) {
  impl_->Prefetch(model, first, count, priority);
}
absl::StatusOr<Pin> TierManager::Acquire(ModelId model, uint32_t segment, Priority priority,
                                         const CancelFlag* cancel) {
  return impl_->Acquire(model, segment, priority, cancel);
}
absl::StatusOr<DeviceBuffer> TierManager::Allocate(const Owner& owner, uint64_t bytes) {
  return impl_->Allocate(owner, bytes);
}
absl::StatusOr<HostBuffer> TierManager::AllocateHost(const Owner& owner, uint64_t bytes) {
  return impl_->AllocateHost(owner, bytes);
}
uint64_t TierManager::ReadRanges(std::vector<FileRange> ranges, Priority priority, RangeDone done) {
  return impl_->ReadRanges(std::move(ranges), priority, std::move(done));
}
absl::StatusOr<bool> TierManager::ReadPieces(ModelId model, uint32_t segment,
                                             std::span<const SegmentPiece> pieces,
                                             const CancelFlag* cancel) {
  return impl_->ReadPieces(model, segment, pieces, cancel);
}
void TierManager::CancelRanges(uint64_t number) { impl_->CancelRanges(number); }
TierManager::DiskLoad TierManager::disk_load() const { return impl_->disk_load(); }
void TierManager::SetIdleMemory(IdleMemory* idle) { impl_->SetIdleMemory(idle); }

void TierManager::Lease(ModelId model, int64_t until_us) { impl_->Lease(model, until_us); }
void TierManager::StepBegins(const ComputeStep& step) { impl_->StepBegins(step); }
void TierManager::StepEnds(int64_t busy_us) { impl_->StepEnds(busy_us); }
void TierManager::NoteRequest(ModelId model) { impl_->NoteRequest(model); }

void TierManager::SetAtWork(ModelId model, bool at_work, LinkClass link_class) {
  impl_->SetAtWork(model, at_work, link_class);
}

AwaitedStore TierManager::Awaited(ModelId model) const { return impl_->Awaited(model); }

void TierManager::StepsPause() { impl_->StepsPause(); }
void TierManager::SetTenantQuota(const std::string& tenant, uint64_t bytes) {
  impl_->ledger().SetTenantQuota(Tier::kDevice, tenant, bytes);
}
uint64_t TierManager::TenantQuotaLeft(const std::string& tenant) const {
  return impl_->ledger().QuotaLeft(Tier::kDevice, Owner{"", tenant, Kind::kKv});
}
void TierManager::EvictModel(ModelId model) { impl_->EvictModel(model); }
bool TierManager::CouldFit(uint64_t bytes) const { return impl_->CouldFit(bytes); }
bool TierManager::CouldPin(ModelId model, uint32_t segment) const {
  return impl_->CouldPin(model, segment);
}
Missing TierManager::MissingOf(ModelId model) const { return impl_->MissingOf(model); }
uint64_t TierManager::LoadedBytes(ModelId model) const { return impl_->LoadedBytes(model); }
TierSnapshot TierManager::Snapshot() const { return impl_->Snapshot(); }
std::vector<ModelSource> TierManager::Sources() const { return impl_->Sources(); }
void TierManager::VisitResident(
    const std::function<void(ModelId, uint32_t, std::span<const std::byte>)>& visit) const {
  impl_->VisitResident(visit);
}
absl::Status TierManager::CheckInvariants() const { return impl_->CheckInvariants(); }

}  // namespace terrace::tier
