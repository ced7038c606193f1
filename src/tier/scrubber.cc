#include "tier/scrubber.h"

#include <algorithm>
#include <utility>

#include <fmt/format.h>

#include "absl/synchronization/notification.h"
#include "absl/time/time.h"
#include "base/hash.h"
#include "base/status.h"
#include "os/direct_file.h"

namespace terrace::tier {
namespace {

// No image yet: look again after this.
constexpr int64_t kNothingUs = 10'000'000;
// Damage may be of the memory or the bus the first time.
constexpr int kMostReads = 2;

}  // namespace

Scrubber::Scrubber(TierManager* manager, ScrubOptions options)
    : manager_(manager), options_(std::move(options)) {}

Scrubber::~Scrubber() {
  {
    absl::MutexLock lock(&mutex_);
    ending_ = true;
    cancel_.cancelled = true;
    wake_.SignalAll();
  }
  if (thread_.joinable()) thread_.join();
}

void Scrubber::Start() {
  thread_ = std::thread([this] { Run(); });
}

void Scrubber::Run() {
  for (;;) {
    const bool some = Idle() && Step();
    const int64_t pause_us = some ? std::max(PauseUs(last_bytes_), options_.idle_us)
                                  : std::max(options_.idle_us, all_bytes_ == 0 ? kNothingUs : 0);
    absl::MutexLock lock(&mutex_);
    const absl::Time until = absl::Now() + absl::Microseconds(pause_us);
    while (!ending_ && absl::Now() < until) wake_.WaitWithDeadline(&mutex_, until);
    if (ending_) return;
  }
}

// So long that a round over all bytes takes round_us.
int64_t Scrubber::PauseUs(uint64_t bytes) const {
  if (all_bytes_ == 0) return 0;
  return static_cast<int64_t>(static_cast<double>(options_.round_us) * static_cast<double>(bytes) /
                              static_cast<double>(all_bytes_));
}

// Nothing waits, and nothing but this has moved since the last look.
bool Scrubber::Idle() {
  uint64_t moved = 0, queued = 0;
  for (const LinkState& link : manager_->Snapshot().links) {
    if (!link.name.starts_with("disk")) continue;
    moved += link.bytes;
    queued += link.queued;
  }
  return std::exchange(link_bytes_, moved) == moved && queued == 0;
}

std::optional<Scrubber::Place> Scrubber::Next() {
  std::vector<ModelSource> models = manager_->Sources();
  all_bytes_ = 0;
  for (const ModelSource& model : models) all_bytes_ += model.bytes;
  if (models.empty()) return std::nullopt;
  auto at = std::find_if(models.begin(), models.end(),
                         [&](const ModelSource& model) { return model.id >= model_; });
  uint32_t segment = 0;
  if (at != models.end() && at->id == model_) {
    segment = segment_ + 1;
    if (segment >= at->segments.size()) {
      segment = 0;
      ++at;
    }
  }
  if (at == models.end()) {
    at = models.begin();
    absl::MutexLock lock(&mutex_);
    if (model_ != 0) ++state_.rounds;
  }
  model_ = at->id;
  segment_ = segment;
  return Place{std::move(*at), segment};
}

bool Scrubber::Step() {
  std::optional<Place> first;
  for (;;) {
    std::optional<Place> place = Next();
    if (!place.has_value()) return false;
    const bool round =
        first.has_value() && first->model.id == place->model.id && first->segment == place->segment;
    if (round) return false;
    const SegmentSource::OnDisk disk = place->model.source->Locate(place->segment);
    last_bytes_ = place->model.segments[place->segment].bytes;
    if (disk.file == nullptr) {  // its image is still being written
      if (!first.has_value()) first = std::move(place);
      continue;
    }
    absl::Status status = Check(*place, disk);
    if (status.ok()) {
      absl::MutexLock lock(&mutex_);
      state_.bytes += last_bytes_;
    } else if (!absl::IsCancelled(status)) {
      Mend(*place, status);
    }
    return true;
  }
}

absl::Status Scrubber::Check(const Place& place, const SegmentSource::OnDisk& disk) {
  if (!memory_) {
    ASSIGN_OR_RETURN(memory_, os::Mapping::Anonymous(kMaxBlockBytes));
  }
  for (const DiskBlock& block : disk.blocks) {
    absl::Status status;
    for (int i = 0; i < kMostReads; ++i) {
      if (cancel_.cancelled) return absl::CancelledError("the scrubber ends");
      status = ReadBlock(disk, block);
      if (status.ok()) break;
    }
    if (!status.ok()) {
      return WithContext(status, place.model.segments[place.segment].name);
    }
  }
  // Its own reading is no reason to wait.
  for (const LinkState& link : manager_->Snapshot().links) {
    if (link.name.starts_with("disk")) link_bytes_ = link.bytes;
  }
  return absl::OkStatus();
}

absl::Status Scrubber::ReadBlock(const SegmentSource::OnDisk& disk, const DiskBlock& block) {
  if (block.bytes > kMaxBlockBytes) return absl::DataLossError("an impossible block");
  absl::Notification done;
  absl::Status status;
  manager_->ReadRanges({{disk.file, block.offset, memory_.span().first(block.bytes)}},
                       Priority::kScrub, [&](size_t, absl::Status read) {
                         status = std::move(read);
                         done.Notify();
                       });
  done.WaitForNotification();
  RETURN_IF_ERROR(status);
  if (Hash64(memory_.data(), block.bytes) == block.checksum) return absl::OkStatus();
  return absl::DataLossError(fmt::format("{} bytes at offset {} of {} do not match their checksum",
                                         block.bytes, block.offset, disk.file->path()));
}

void Scrubber::Mend(const Place& place, const absl::Status& damage) {
  absl::Status status;
  {
    absl::StatusOr<os::Mapping> memory = os::Mapping::Anonymous(last_bytes_);
    status = memory.status();
    if (status.ok()) {
      status =
          place.model.source->Produce(place.segment, memory->span().first(last_bytes_), &cancel_);
    }
  }
  if (absl::IsCancelled(status)) return;
  {
    absl::MutexLock lock(&mutex_);
    ++state_.damaged;
    state_.mended += status.ok();
  }
  if (!options_.notice) return;
  options_.notice(place.model.name, status.ok()
                                        ? fmt::format("scrubbing made {} anew", Message(damage))
                                        : fmt::format("scrubbing found {}; making it anew: {}",
                                                      Message(damage), Message(status)));
}

ScrubState Scrubber::State() const {
  absl::MutexLock lock(&mutex_);
  return state_;
}

}  // namespace terrace::tier
