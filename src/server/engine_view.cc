#include "server/engine_view.h"

#include <algorithm>
#include <utility>

#include "absl/time/time.h"
#include "base/clock.h"
#include "os/thread_usage.h"

namespace terrace::server {

EngineView::EngineView(EngineViewDeps deps)
    : deps_(std::move(deps)),
      latest_(std::make_shared<EngineReading>()),
      thread_([this] { Run(); }) {}

EngineView::~EngineView() {
  {
    absl::MutexLock lock(&mutex_);
    stopping_ = true;
  }
  thread_.join();
}

std::shared_ptr<const EngineReading> EngineView::Read(bool* fresh) {
  absl::MutexLock lock(&mutex_);
  const uint64_t mine = ++asked_;
  int64_t patience_us = kPatienceUs;
  if (reading_since_us_ != 0) patience_us -= deps_.clock->NowUs() - reading_since_us_;
  auto done = [this, mine]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return done_ >= mine; };
  const bool in_time = mutex_.AwaitWithTimeout(
      absl::Condition(&done), absl::Microseconds(std::max<int64_t>(patience_us, 0)));
  if (fresh != nullptr) *fresh = in_time;
  return latest_;
}

int64_t EngineView::StaleUs() const {
  absl::MutexLock lock(&mutex_);
  if (reading_since_us_ == 0) return 0;
  const int64_t age_us = deps_.clock->NowUs() - reading_since_us_;
  return age_us > kPatienceUs ? age_us : 0;
}

void EngineView::Run() {
  os::NameThisThread("view");
  auto wanted = [this]()
                    ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return stopping_ || asked_ > done_; };
  absl::MutexLock lock(&mutex_);
  for (;;) {
    mutex_.Await(absl::Condition(&wanted));
    if (stopping_) return;
    const uint64_t number = asked_;
    reading_since_us_ = deps_.clock->NowUs();
    auto reading = std::make_shared<EngineReading>();
    reading->began_us = reading_since_us_;
    mutex_.Unlock();
    reading->queue = deps_.queue();
    reading->tiers = deps_.tiers();
    mutex_.Lock();
    latest_ = std::move(reading);
    done_ = number;
    reading_since_us_ = 0;
  }
}

}  // namespace terrace::server
