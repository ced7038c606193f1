// The machinery below the server, put together from a configuration: clock, threads, device,
// kernels, tier manager and engine. Serving, one-shot commands and benchmarks all stand on it, so
// that what is measured is what serves.
//
// Parts are used as their own headers say; the runtime itself is made and destroyed by one thread.
#ifndef TERRACE_CLI_RUNTIME_H_
#define TERRACE_CLI_RUNTIME_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "base/clock.h"
#include "cli/history_keeper.h"
#include "device/cpu/thread_team.h"
#include "device/device.h"
#include "engine/engine.h"
#include "engine/engine_model.h"
#include "engine/group_message.h"
#include "engine/leader.h"
#include "kv/cache.h"
#include "ops/backend.h"
#include "server/config.h"
#include "storage/disk/block_store.h"
#include "storage/disk/disk_budget.h"
#include "storage/remote/remote_store.h"
#include "tier/page_trace.h"
#include "tier/scrubber.h"
#include "tier/tier_manager.h"
#include "weights/model_weights.h"

namespace terrace::cli {

// What a model's entry in the configuration says beside its file.
struct ModelTerms {
  std::string sla = "standard";
  std::string sha256;
  int32_t tensor_parallel = 1, expert_parallel = 1;
};
ModelTerms TermsOf(const server::ModelConfig& model);

class MemberGroup;

class Runtime {
 public:
  // InvalidArgument names the key that does not suit this machine.
  static absl::StatusOr<std::unique_ptr<Runtime>> Create(const server::Config& config);
  // For a member of a group other than its leader; `sharers` of them have this host's memory.
  static absl::StatusOr<std::unique_ptr<Runtime>> CreateMember(const server::Config& config,
                                                               int32_t sharers);
  ~Runtime();
  Runtime(const Runtime&) = delete;
  Runtime& operator=(const Runtime&) = delete;

  const Clock& clock() const { return clock_; }
  device::Device& device() { return *device_; }
  ops::Backend& backend() { return *backend_; }
  tier::TierManager& manager() { return *manager_; }
  engine::Engine& engine() { return *engine_; }
  uint64_t device_budget_bytes() const { return budget_bytes_; }
  // What images and stored models may take of the disk; null: no cap.
  const storage::DiskBudget* disk_budget() const { return disk_budget_.get(); }
  // Told, on any thread, what an operator should know of a model (or of "kv"). Set before models
  // are opened.
  using Notice = std::function<void(const std::string& subject, const std::string& message)>;
  void SetNotice(Notice notice);
  ThreadTeam& team() { return *team_; }
  HistoryKeeper& history() { return *history_; }

  // Opens the model in the GGUF file `path`; reads no weights yet. The runtime must outlive it.
  // `more`: options beside name and context.
  absl::StatusOr<std::shared_ptr<engine::EngineModel>> OpenModel(
      const std::string& name, const std::string& path, int32_t max_context, int64_t hot_keep_us,
      engine::EngineModelOptions more = {}, const ModelTerms& terms = {});
  // Opens what a member of `group` (see CreateMember) has of a model that its leader names.
  absl::StatusOr<std::shared_ptr<engine::EngineModel>> OpenShare(const engine::GroupModel& model,
                                                                 parallel::Communicator* group);
  // What device `rank` of `size` would hold of a model; as OpenModel, but it cannot compute.
  absl::StatusOr<std::shared_ptr<engine::EngineModel>> OpenPart(const std::string& name,
                                                                const std::string& path,
                                                                engine::EngineModelOptions more,
                                                                const ModelTerms& terms,
                                                                int32_t rank, int32_t size);
  // Null unless models are divided among devices: what the leader has exchanged.
  const parallel::Communicator* group() const;
  // Opens the adapter at `path` for `base`; reads no matrices yet. The runtime must outlive it.
  absl::StatusOr<std::shared_ptr<const engine::Adapter>> OpenAdapter(
      const std::string& name, const std::string& path, int64_t hot_keep_us,
      const engine::EngineModel& base, const ModelTerms& terms = {});
  // The KV cache, with the stores below it that the configuration asks for; a null store of it says
  // in kv_note() why there is none.
  kv::Cache& kv_cache() { return *kv_cache_; }
  const std::string& kv_note() const { return kv_note_; }
  // Which operators the device leaves to the host; empty: none.
  const std::string& device_note() const { return device_note_; }
  // Reads images in idle time, each about once in `round_us`; 0: not at all.
  void StartScrubbing(int64_t round_us);
  tier::ScrubState scrubbed() const;
  // Null unless memory.trace_pages is on.
  const tier::PageTrace* page_trace() const { return page_trace_.get(); }
  // Without an image: weights are always read from the source file (diagnosis).
  void set_write_images(bool write) { write_images_ = write; }

 private:
  Runtime();
  // Its part of a device whose memory `sharers` have; `news` of a group's leader, else null.
  static absl::StatusOr<std::unique_ptr<Runtime>> CreateAlone(
      const server::Config& config, int32_t sharers, std::shared_ptr<engine::GroupNews> news);
  weights::OpenOptions OpenOptionsOf(const std::string& name, const std::string& path);
  // OpenModel, of a model that is divided.
  absl::StatusOr<std::shared_ptr<engine::EngineModel>> OpenDivided(const weights::OpenOptions& open,
                                                                   engine::EngineModelOptions more,
                                                                   const ModelTerms& terms);
  absl::Status CreateKvCache(const server::Config& config);
  void SetStorage(const server::Config& config);
  void Tell(const std::string& subject, const std::string& message);

  RealClock clock_;
  std::string image_folder_;
  std::string object_folder_;
  std::function<std::string(std::string_view)> environment_;  // of object stores
  int64_t object_patience_us_ = 0;
  std::unique_ptr<storage::DiskBudget> disk_budget_;
  absl::Mutex notice_mutex_;
  Notice notice_ ABSL_GUARDED_BY(notice_mutex_);
  // What was told before anybody listened.
  std::vector<std::pair<std::string, std::string>> untold_ ABSL_GUARDED_BY(notice_mutex_);
  bool write_images_ = true;
  uint64_t budget_bytes_ = 0;
  std::unique_ptr<ThreadTeam> team_;
  std::unique_ptr<device::Device> device_;
  std::unique_ptr<ops::Backend> backend_;
  std::unique_ptr<tier::TierManager> manager_;
  std::unique_ptr<tier::PageTrace> page_trace_;
  std::unique_ptr<engine::Engine> engine_;
  std::string kv_note_;
  std::string device_note_;
  std::unique_ptr<storage::BlockStore> kv_disk_;
  std::unique_ptr<storage::RemoteStore> kv_remote_;
  std::unique_ptr<kv::HostStore> kv_host_;  // null where the device's memory is the host's
  std::unique_ptr<kv::Cache> kv_cache_;
  std::unique_ptr<HistoryKeeper> history_;
  std::unique_ptr<tier::Scrubber> scrubber_;
  std::shared_ptr<engine::GroupNews> group_news_;
  std::unique_ptr<MemberGroup> group_;  // null: this device alone
};

// What `model` (or, for an empty one, the configuration) says about KV; not its speculation, whose
// draft somebody must open.
engine::EngineModelOptions KvOptions(const server::Config& config,
                                     const server::ModelConfig& model);

// What KV may take of the disk: kv.disk_size, and a quarter of storage.disk.size at most.
uint64_t KvDiskBytes(const server::Config& config);

// The backend that device.variant and device.deterministic ask for: variant "" is the best, else
// "ref" or a CPU variant.
absl::StatusOr<std::unique_ptr<ops::Backend>> CreateBackend(const server::Config& config,
                                                            ThreadTeam* team);

}  // namespace terrace::cli

#endif  // TERRACE_CLI_RUNTIME_H_
