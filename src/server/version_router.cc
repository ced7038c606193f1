#include "server/version_router.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "obs/log.h"
#include "obs/metrics.h"

namespace terrace::server {

void VersionRouter::Set(const std::vector<Trial>& trials) {
  absl::MutexLock lock(&mutex_);
  std::map<std::string, State, std::less<>> next;
  for (const Trial& trial : trials) {
    const size_t at = trial.model.rfind('@');
    if (at == std::string::npos || trial.traffic <= 0) continue;
    const std::string name = trial.model.substr(0, at);
    auto found = trials_.find(name);
    const bool same = found != trials_.end() && found->second.trial.model == trial.model &&
                      found->second.trial.traffic == trial.traffic &&
                      found->second.trial.errors == trial.errors;
    next[name] = same ? std::move(found->second) : State{.trial = trial};
  }
  trials_ = std::move(next);
}

std::vector<std::pair<Trial, bool>> VersionRouter::Trials() {
  absl::MutexLock lock(&mutex_);
  std::vector<std::pair<Trial, bool>> out;
  for (const auto& [name, state] : trials_) out.emplace_back(state.trial, state.rolled_back);
  return out;
}

std::string VersionRouter::Route(const HttpRequest& request, const std::string& name) {
  const std::string& equivalent = request.caller.equivalent;
  if (!equivalent.empty() && !is_warm_(name) && is_warm_(equivalent)) return equivalent;
  absl::MutexLock lock(&mutex_);
  auto found = trials_.find(name);
  if (found == trials_.end() || found->second.rolled_back) return name;
  State& state = found->second;
  state.credit += state.trial.traffic;
  if (state.credit < 1) return name;
  state.credit -= 1;
  return state.trial.model;
}

void VersionRouter::Report(std::string_view model, int status) {
  const size_t at = model.rfind('@');
  if (at == std::string_view::npos) return;
  absl::MutexLock lock(&mutex_);
  auto found = trials_.find(model.substr(0, at));
  if (found == trials_.end()) return;
  State& state = found->second;
  if (state.trial.model != model || state.rolled_back) return;
  const bool failed = status >= 500 && status != 503;
  if (state.window.size() < kWindow) {
    state.window.push_back(failed);
  } else {
    state.window[state.next++ % kWindow] = failed;
  }
  const auto failures = std::count(state.window.begin(), state.window.end(), true);
  const auto seen = static_cast<double>(state.window.size());
  if (seen < kLeast || static_cast<double>(failures) <= state.trial.errors * seen) return;
  state.rolled_back = true;
  metrics_->Count(MetricId::kVersionRollbacks, {state.trial.model});
  log_->Error("a version on trial fails too often and gets no more traffic",
              {{"model", state.trial.model},
               {"failures", failures},
               {"requests", state.window.size()},
               {"allowed", state.trial.errors}});
}

}  // namespace terrace::server
