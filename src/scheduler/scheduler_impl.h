// The scheduler's inside: queues of requests by model, the loop that steps them, and what happens
// to their KV. Declared here so that its parts can stand in files of their own: scheduler.cc
// (requests come and go, the loop), admission.cc (who gets in, with which KV, and who gives way),
// step.cc (what a step holds, and what its logits become).
#ifndef TERRACE_SCHEDULER_SCHEDULER_IMPL_H_
#define TERRACE_SCHEDULER_SCHEDULER_IMPL_H_

#include <algorithm>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/functional/function_ref.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "base/random.h"
#include "engine/engine.h"
#include "kv/cache.h"
#include "obs/metrics.h"
#include "scheduler/arbiter.h"
#include "scheduler/late_cancels.h"
#include "scheduler/live_request.h"
#include "scheduler/model_queue.h"
#include "scheduler/scheduler.h"
#include "scheduler/shares.h"
#include "scheduler/step_budget.h"
#include "scheduler/step_work.h"

namespace terrace::scheduler {

class SchedulerImpl final : public Scheduler {
 public:
  SchedulerImpl(const SchedulerOptions& options, engine::Engine* engine, const Clock* clock,
                Metrics* metrics);
  ~SchedulerImpl() override;

  absl::Status AddModel(std::shared_ptr<engine::EngineModel> model) override;
  absl::Status AddAdapter(std::shared_ptr<engine::EngineModel> base,
                          std::shared_ptr<const engine::Adapter> adapter) override;
  absl::Status RemoveModel(const std::string& name) override;
  absl::Status Submit(std::unique_ptr<Request> request) override;
  void Cancel(const std::string& request_id) override;
  bool Drain(int64_t timeout_us) override;
  SchedulerState State() const override;
  void SetTenants(TenantTable tenants) override;
  void Probe() override;

 private:
  using Finished = std::vector<std::pair<std::unique_ptr<LiveRequest>, FinishInfo>>;
  absl::Status AddNameLocked(const std::string& name, std::shared_ptr<engine::EngineModel> model,
                             std::shared_ptr<const engine::Adapter> adapter)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Loop();
  void ParkLocked(absl::Duration most) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Lets requests in and chooses what the step holds; false: nothing.
  bool BeginStepLocked(ModelQueue* queue, bool admit, int64_t now_us, StepWork* work)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // False if none of its requests could go on.
  bool RunStep(ModelQueue* queue, bool admit) ABSL_LOCKS_EXCLUDED(mutex_);
  // Gives a request its KV: empty, or begun with what the cache holds.
  void BeginKvLocked(ModelQueue* queue, LiveRequest* live) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Adopts what the cache has in device memory; then loads what lies below, if that pays (`load`).
  void FindKvLocked(ModelQueue* queue, LiveRequest* live, bool load, bool again)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Notes the running request that begins most like `live`, which waits for what that one computes.
  void JoinLocked(const ModelQueue& queue, LiveRequest* live) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Lets go on those whose wait for another's KV or for a load is over.
  void CollectKvLocked(ModelQueue* queue) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Loads what the disk (or, with none of it there, the remote store) holds of `found`.
  void StartLoadLocked(ModelQueue* queue, LiveRequest* live, kv::Cache::Found found)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void OnLoadBegun(const std::string& id, uint64_t number, std::shared_ptr<kv::Restore> restore)
      ABSL_LOCKS_EXCLUDED(mutex_);
  // With nothing else to compute, the oldest request whose KV is on its way may use it as it comes.
  void LetInEarlyLocked() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // After a step with requests that were let in early, with KV that has come or is forgotten.
  bool SettleEarlyLocked(const std::vector<LiveRequest*>& step, bool good, int64_t kv_wait_us)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void CountRestoredLocked(LiveRequest* live, size_t blocks, std::string_view tier)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void OnRestored(const std::string& id, uint64_t number, kv::Cache::Loaded loaded)
      ABSL_LOCKS_EXCLUDED(mutex_);
  // Whether requests of the queue share and keep KV: encoders have none.
  bool UsesCache(const ModelQueue& queue) const {
    return options_.cache != nullptr && !queue.model->architecture().config().encoder;
  }
  kv::BlockKey RootOf(const ModelQueue& queue, const LiveRequest& live) const;
  void BuildStepLocked(ModelQueue* queue, int64_t now_us, StepWork* work)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void GuessAhead(ModelQueue* queue, StepWork* work) ABSL_LOCKS_EXCLUDED(mutex_);
  // Reports the prompt's tokens that come after those of which `each` has the logits.
  void ScorePrompt(LiveRequest* live, std::span<const std::span<float>> each);
  // Samples for one entry, also after each guess that was right; true if the request ends.
  bool TakeLogits(LiveRequest* live, const engine::StepEntry& step_entry,
                  engine::EntryResult* entry, FinishInfo* info);
  void MeasureLocked(ModelQueue* queue, const StepWork& work, int64_t busy_us)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void AdmitLocked(ModelQueue* queue) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void CollectCancelledLocked(Finished* finished) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void CancelLocked(const std::string& request_id) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void CancelAllLocked() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  std::unique_ptr<LiveRequest> TakeRunningLocked(ModelQueue* queue, const LiveRequest* live)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  bool IsGuestLocked(const LiveRequest& live, int64_t now_us) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Who has its steps does not wait, however long it takes: aging counts from the last one.
  int BandOf(const LiveRequest& live, int64_t now_us) const {
    return Band(arbiter_options_, live.request->sla, now_us - live.waiting_since_us());
  }
  // Whether somebody who gives way may step beside the others now.
  bool GuestMayRunLocked(const LiveRequest& guest, int64_t now_us)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Marks who gives way (in View::models too), once all who are there have been seen.
  void HoldGuestsLocked(View* view, int64_t now_us) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // The step under way is given up if all in it give way to the newcomer: it is done again later.
  void GiveUpStepLocked(const ModelQueue& queue, const LiveRequest& newcomer, int64_t now_us)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Prompt rows that keep a step short enough for those who may come meanwhile.
  int32_t RowsInTimeLocked(const ModelQueue& queue, bool guests, int32_t depth,
                           const StepWork& work) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Adds rows of those who wait for a step of `queue`, guests or others.
  void AddRowsLocked(ModelQueue* queue, bool guests, int64_t now_us, StepWork* work)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void ChargeLocked(ModelQueue* queue, const StepWork& work, int64_t busy_us)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  const TenantTerms& TermsLocked(std::string_view tenant) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // KV that the tenant's running requests hold or take in their next step.
  uint64_t TenantKvLocked(std::string_view tenant, int32_t* running) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // The most tokens of one request that the tenant's quota has room for.
  int32_t QuotaTokensLocked(const ModelQueue& queue, const std::string& tenant) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::Status OverQuotaLocked(const Request& request, int32_t quota_tokens) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Sends the youngest request of each tenant that is over its quota back to wait.
  void EnforceQuotasLocked() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // The youngest running request of which `may` holds goes back to wait; its queue, or null.
  ModelQueue* SendBackLocked(absl::FunctionRef<bool(const LiveRequest&)> may)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  bool FitsQuotaLocked(const std::string& tenant, uint64_t more_bytes) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // True if a tenant of this step has no room for a block more, whatever the device has.
  bool QuotaHitLocked(const ModelQueue& queue, const std::vector<LiveRequest*>& step) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  bool MakeRoomInQuotaLocked(const std::vector<LiveRequest*>& step)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Who is there, for shares of computing and of places in batches.
  void NoteTenantsLocked(View* view, int64_t now_us) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void ViewLocked(View* view) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // `chosen`: whose step is next, or null.
  ArbiterDecision DecideLocked(ModelQueue** chosen) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void NoteComing(ModelQueue* queue, bool has_turn, int64_t now_us, ArbiterModel* model) const;
  // Weights of models at work do not make room for those that come meanwhile.
  void KeepAtWorkLocked(const View& view, std::span<const int32_t> coming, int64_t now_us)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Weights of models that realtime requests ask for stay for a while, beside those of the others.
  void KeepRealtimeLocked(int64_t now_us) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // It gets the turn: its first weights start to move while its requests are taken in.
  void StartWeightsLocked(const ModelQueue& queue) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Puts these of its waiting requests first, in this order, and lets only them in.
  void BringForwardLocked(ModelQueue* queue, std::span<LiveRequest* const> first)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void CollectOverdueLocked(Finished* finished) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::Status CheckRequestLocked(const ModelQueue& queue, const Request& request)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::Status CheckContractLocked(const ModelQueue& queue, const Request& request)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void NoteArrivalLocked(const std::string& tenant) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void NoteEndLocked(ModelQueue* queue, const LiveRequest& live)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Until one more would have had its turn, by the rate of the last while.
  int ExpectedWaitSecondsLocked() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // What weights and KV of `model` may take if steps are as small as can be.
  uint64_t MostBudget(const engine::EngineModel& model) const;
  // What weights and KV may take: the device budget less the engine's workspace.
  uint64_t Budget() const;
  uint64_t TakenKvLocked() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Before a step: the workspace shrinks and sequences give way until KV fits beside the weights,
  // which would stream in every step otherwise. False: not before what is written down is free.
  bool MakeRoomBesideWeightsLocked(ModelQueue* queue) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // The most rows of a step whose workspace fits beside weights and KV.
  int32_t RowsWithRoomLocked(const ModelQueue& queue) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // After a step without memory the youngest sequence goes back to wait; false: it is the only one.
  bool PreemptLocked(ModelQueue* preferred) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Gives back a victim's KV, written to disk first where reading is cheaper than computing.
  void ReleaseVictimLocked(ModelQueue* queue, LiveRequest* victim)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Gives back the KV of every draft sequence; true if there was some.
  bool DropDraftsLocked() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Fails what the step ran, or makes room for it; false: not before what is written down is free.
  bool HandleStepError(ModelQueue* queue, const StepWork& work, int64_t start_us,
                       const absl::Status& status) ABSL_LOCKS_EXCLUDED(mutex_);
  bool Advance(LiveRequest* live, std::span<float> logits, FinishInfo* info);
  FinishInfo Info(const LiveRequest& live, FinishReason reason, absl::Status status) const;
  void Finish(Finished finished) ABSL_LOCKS_EXCLUDED(mutex_);
  void SetQueueGaugesLocked(const ModelQueue& queue) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const SchedulerOptions options_;
  ArbiterOptions arbiter_options_;
  engine::Engine* const engine_;
  const Clock* const clock_;
  Metrics* const metrics_;
  const uint64_t device_budget_bytes_;

  LateCancels late_;
  mutable absl::Mutex mutex_;
  std::map<std::string, std::unique_ptr<ModelQueue>> queues_ ABSL_GUARDED_BY(mutex_);
  std::map<std::string, ServedName> names_ ABSL_GUARDED_BY(mutex_);
  std::map<std::string, LiveRequest*> live_ ABSL_GUARDED_BY(mutex_);
  std::vector<LiveRequest*> in_step_ ABSL_GUARDED_BY(mutex_);
  GiveUpFor give_up_for_ ABSL_GUARDED_BY(mutex_) = GiveUpFor::kNobody;  // the step under way
  std::string current_ ABSL_GUARDED_BY(mutex_);                         // model that has the turn
  std::string stepping_ ABSL_GUARDED_BY(mutex_);  // model whose step runs now, else empty
  int64_t last_work_us_ ABSL_GUARDED_BY(mutex_) = 0;
  Turn turn_ ABSL_GUARDED_BY(mutex_);  // of `current_`
  TenantsServed served_ ABSL_GUARDED_BY(mutex_);
  TenantTable terms_ ABSL_GUARDED_BY(mutex_);
  ComputeShares shares_ ABSL_GUARDED_BY(mutex_);
  bool favoured_live_ ABSL_GUARDED_BY(mutex_) = false;  // somebody who gives way to none can step
  bool realtime_live_ ABSL_GUARDED_BY(mutex_) = false;  // and is of the realtime class
  EndRate ends_ ABSL_GUARDED_BY(mutex_);
  int32_t waiting_ ABSL_GUARDED_BY(mutex_) = 0;
  int32_t restores_ ABSL_GUARDED_BY(mutex_) = 0;       // loads of KV under way
  uint64_t last_restore_ ABSL_GUARDED_BY(mutex_) = 0;  // loads are numbered from 1
  int32_t finishing_ ABSL_GUARDED_BY(mutex_) = 0;      // ended, but their sinks not yet told
  bool draining_ ABSL_GUARDED_BY(mutex_) = false;
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  bool wake_ ABSL_GUARDED_BY(mutex_) = false;
  bool parked_ ABSL_GUARDED_BY(mutex_) = false;
  Probes probes_ ABSL_GUARDED_BY(mutex_);
  bool loads_are_urgent_ ABSL_GUARDED_BY(mutex_) = false;  // as of the last decision
  // One of this band gave way for memory and none has ended since: its like would do so again.
  int held_band_ ABSL_GUARDED_BY(mutex_) = kNoBand;
  uint64_t moving_bytes_ ABSL_GUARDED_BY(mutex_) = 0;  // of KV being written down, at most
  SchedulerState totals_ ABSL_GUARDED_BY(mutex_);

  // Set while a step runs whose every request has been cancelled.
  tier::CancelFlag step_cancel_;
  Random random_ ABSL_GUARDED_BY(mutex_);
  std::thread thread_;
};

}  // namespace terrace::scheduler

#endif  // TERRACE_SCHEDULER_SCHEDULER_IMPL_H_
