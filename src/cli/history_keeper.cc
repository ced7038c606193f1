#include "cli/history_keeper.h"

#include <utility>
#include <vector>

#include "absl/time/time.h"
#include "base/status.h"

namespace terrace::cli {
namespace {

// A crash forgets at most so much.
constexpr absl::Duration kSaveEvery = absl::Seconds(10);
// Counts by hour are kept for about so long: older ones fade, so that habits may change.
constexpr double kMostDays = 28;

}  // namespace

HistoryKeeper::HistoryKeeper(const std::string& path, const tier::TierManager* manager,
                             const Clock* clock)
    : manager_(manager), clock_(clock) {
  absl::StatusOr<std::unique_ptr<storage::UseStore>> store = storage::UseStore::Open(path);
  if (!store.ok()) {
    why_ = Message(store.status());
    return;
  }
  store_ = *std::move(store);
  thread_ = std::thread([this] { Run(); });
}

HistoryKeeper::~HistoryKeeper() {
  if (store_ == nullptr) return;
  {
    absl::MutexLock lock(&mutex_);
    ending_ = true;
    wake_.Signal();
  }
  thread_.join();
  Save().IgnoreError();
}

void HistoryKeeper::Run() {
  absl::MutexLock lock(&mutex_);
  while (!ending_) {
    if (!wake_.WaitWithTimeout(&mutex_, kSaveEvery) || ending_) continue;
    mutex_.Unlock();
    // What could not be saved now is saved the next time.
    Save().IgnoreError();
    mutex_.Lock();
  }
}

tier::UseHistory HistoryKeeper::Load(const std::string& model) {
  tier::UseHistory history;
  if (store_ == nullptr) return history;
  absl::StatusOr<std::optional<storage::UseRecord>> loaded = store_->Load(model);
  if (!loaded.ok() || !loaded->has_value()) return history;
  const storage::UseRecord& record = **loaded;
  const int64_t shift_us = clock_->NowUs() - clock_->WallUs();
  history.last_us = record.last_us + shift_us;
  history.use_began_us = record.use_began_us + shift_us;
  history.previous_began_us = record.previous_began_us + shift_us;
  history.first_us = record.first_us + shift_us;
  history.uses = record.uses;
  history.by_hour = record.by_hour;
  history.weight = record.weight;
  history.weighed_us = history.use_began_us;
  const double days =
      static_cast<double>(clock_->NowUs() - history.first_us) / tier::UseHistory::kDayUs;
  if (days > kMostDays) {
    for (double& uses : history.by_hour) uses *= kMostDays / days;
    history.first_us = clock_->NowUs() - static_cast<int64_t>(kMostDays * tier::UseHistory::kDayUs);
  }
  return history;
}

absl::Status HistoryKeeper::Save() {
  if (store_ == nullptr) return absl::UnavailableError(why_);
  const int64_t shift_us = clock_->WallUs() - clock_->NowUs();
  std::vector<storage::UseRecord> records;
  for (const tier::ModelState& state : manager_->Snapshot().models) {
    const tier::UseHistory& history = state.history;
    if (history.uses == 0) continue;
    records.push_back({.model = state.name,
                       .last_us = history.last_us + shift_us,
                       .use_began_us = history.use_began_us + shift_us,
                       .previous_began_us = history.previous_began_us + shift_us,
                       .first_us = history.first_us + shift_us,
                       .uses = history.uses,
                       .by_hour = history.by_hour,
                       .weight = history.WeightAt(history.use_began_us)});
  }
  return store_->Save(records);
}

}  // namespace terrace::cli
