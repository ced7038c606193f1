#include "tier/load_brake.h"

#include <algorithm>
#include <utility>

#include "base/units.h"

namespace terrace::tier {
namespace {

// A device with memory of its own comes to nearly nothing.
constexpr double kLeastUsPerByte = 1e-6;
constexpr double kMostUsPerByte = 2e-3;
// Of the share that a step may grow by this much is used, so that noise stays within it as well.
constexpr double kUsed = 0.65;
// Loads get on at least this fast, whatever it costs.
constexpr double kLeastBytesPerUs = 64;
// No step for so long: nobody computes, or it is no matter of some bytes.
constexpr int64_t kStaleUs = 1'000'000;
// What a step takes alone shows in the fourth without transfers: before, caches still hold what has
// moved. While loads are held back, some steps in a row hold them back altogether to see it, after
// so many steps and so long a time.
constexpr int32_t kSettleSteps = 3;
constexpr int32_t kQuietEvery = 64;
constexpr int32_t kQuietSteps = 8;
constexpr int64_t kFreshUs = 2'000'000;
constexpr int64_t kAloneUs = 5'000'000;  // how long such a measure holds
constexpr size_t kMostAlone = 256;
constexpr double kForget = 1.02;  // of the least that a step has taken, a step
// An estimate takes so many steps and bytes.
constexpr int32_t kLearnSteps = 8;
constexpr double kLearnBytes = 16.0 * kMiB;
constexpr double kWeight = 0.3;
// A step that took longer than so many times its usual was held up by something else.
constexpr double kOutlier = 3;

}  // namespace

bool LoadBrake::Holds(int64_t now_us) const {
  return slowdown_ > 0 && active_ && !lifted_ && !step_.gives_way &&
         (credit_ <= 0 || step_.hurries) && now_us - heard_us_ <= kStaleUs;
}

uint64_t LoadBrake::StepBytes() const {
  const auto found = alone_.find({step_.model, step_.rows});
  if (found == alone_.end()) return 0;  // the first of its kind tells
  // Not what the last one took: with what loads add to it they would get more and more.
  const Alone& alone = found->second;
  const double alone_us = alone.us > 0 ? alone.us : alone.least_us / (1 + slowdown_);
  return static_cast<uint64_t>(alone_us *
                               std::max(kUsed * slowdown_ / us_per_byte_, kLeastBytesPerUs));
}

double LoadBrake::bytes_per_s(int64_t now_us) const {
  if (slowdown_ == 0 || !active_ || lifted_ || step_.gives_way || last_us_ <= 0 ||
      now_us - heard_us_ > kStaleUs) {
    return 0;
  }
  return static_cast<double>(StepBytes()) * 1e6 / last_us_;
}

void LoadBrake::Begin(const ComputeStep& step, int64_t now_us) {
  const bool wanted = held_;
  step_ = step;
  began_us_ = heard_us_ = now_us;
  // What moved before anybody computed says nothing of this step.
  learns_ = active_ || under_way_ == 0;
  if (!active_) moved_ = 0;
  active_ = true;
  lifted_ = held_ = false;
  quiet_ = under_way_ == 0 && moved_ == 0;
  const auto known = alone_.find({step.model, step.rows});
  if (wanted && step.rows > 0 && since_quiet_ >= kQuietEvery && known != alone_.end() &&
      (known->second.us == 0 || now_us - known->second.at_us > kFreshUs)) {
    since_quiet_ = 0;
    quiet_left_ = kQuietSteps;
  }
  if (quiet_left_ > 0) {
    --quiet_left_;
    credit_ = std::min(credit_, 0.0);
    return;
  }
  const auto bytes = static_cast<double>(StepBytes());
  credit_ = std::min(credit_ + bytes, bytes);
}

void LoadBrake::End(int64_t busy_us, int64_t now_us) {
  heard_us_ = now_us;
  if (!active_ || busy_us <= 0) return;
  last_us_ = static_cast<double>(busy_us);
  const auto bytes = static_cast<double>(std::exchange(moved_, 0));
  const bool quiet = quiet_ && bytes == 0 && under_way_ == 0;
  quiet_steps_ = quiet ? quiet_steps_ + 1 : 0;
  if (alone_.size() >= kMostAlone) alone_.clear();
  Alone& alone = alone_[{step_.model, step_.rows}];
  alone.least_us = alone.least_us > 0 ? std::min(last_us_, alone.least_us * kForget) : last_us_;
  if (step_.rows <= 0) return;
  if (quiet_steps_ > kSettleSteps) {
    const bool fresh = alone.us > 0 && now_us - alone.at_us <= kAloneUs;
    alone.us += (fresh ? kWeight : 1) * (last_us_ - alone.us);
    alone.at_us = now_us;
    since_quiet_ = 0;
    return;
  }
  ++since_quiet_;
  if (learns_ && alone.us > 0 && now_us - alone.at_us <= kAloneUs) Learn(alone, last_us_, bytes);
}

void LoadBrake::Learn(const Alone& alone, double busy_us, double bytes) {
  extra_us_ += std::min(busy_us, kOutlier * alone.us) - alone.us;
  bytes_ += bytes;
  if (++steps_ < kLearnSteps || bytes_ < kLearnBytes) return;
  const double measured = std::clamp(extra_us_ / bytes_, kLeastUsPerByte, kMostUsPerByte);
  us_per_byte_ += kWeight * (measured - us_per_byte_);
  extra_us_ = bytes_ = 0;
  steps_ = 0;
}

void LoadBrake::Started(uint64_t bytes, bool may_be_held) {
  ++under_way_;
  if (!may_be_held || !active_ || lifted_) return;
  credit_ = std::max(credit_ - static_cast<double>(bytes), -static_cast<double>(kMaxBlockBytes));
}

void LoadBrake::Ended(uint64_t bytes, bool moved) {
  --under_way_;
  if (moved) moved_ += bytes;
}

}  // namespace terrace::tier
