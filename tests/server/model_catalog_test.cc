// Opening models: failures that mend, waiting for one opening together, and a real model at the
// end. Hard case A38 as far as it is the catalog's.
#include "server/model_catalog.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/synchronization/notification.h"
#include "base/status.h"
#include "engine/testing.h"
#include "fake_scheduler.h"
#include "obs/log.h"

namespace terrace::server {
namespace {

using Model = std::shared_ptr<const ServedModel>;
using Weights = std::shared_ptr<engine::EngineModel>;

class CatalogTest : public testing::Test {
 protected:
  CatalogTest()
      : rig_("ref", 64 * kMiB), scheduler_({}, [](const SeenRequest&) { return Script{}; }) {}

  std::unique_ptr<ModelCatalog> Make(std::vector<CatalogEntry> entries) {
    return std::make_unique<ModelCatalog>(std::move(entries), &scheduler_, &clock_, &log_);
  }
  absl::StatusOr<Weights> Real(const std::string& name) {
    return rig_.Open(std::string(TERRACE_TEST_DATA) + "/golden/arch/qwen2.gguf", name);
  }
  static absl::StatusOr<Model> OpenNow(ModelCatalog* catalog, const std::string& name) {
    absl::Notification done;
    absl::StatusOr<Model> result;
    catalog->Open(name, [&](const absl::StatusOr<Model>& opened) {
      result = opened;
      done.Notify();
    });
    done.WaitForNotification();
    return result;
  }

  engine::Rig rig_;
  ManualClock clock_{1'000'000};
  NullLogger log_;
  FakeScheduler scheduler_;
};

TEST_F(CatalogTest, UnknownNamesAreToldTheKnownOnes) {
  auto catalog = Make({{"first", "", [&] { return Real("first"); }}, {"second", "", nullptr}});
  const auto opened = OpenNow(catalog.get(), "fisrt");
  EXPECT_TRUE(absl::IsNotFound(opened.status()));
  EXPECT_NE(Message(opened.status()).find("first, second"), std::string::npos);
  EXPECT_NE(Message(opened.status()).find("Did you mean \"first\"?"), std::string::npos);
}

TEST_F(CatalogTest, AFailureIsListedAndTriedAgain) {
  std::atomic<bool> mended{false};
  std::atomic<int> tries{0};
  auto catalog = Make({{"bad", "",
                        [&]() -> absl::StatusOr<Weights> {
                          ++tries;
                          if (mended) return Real("bad");
                          return absl::NotFoundError("bad.gguf: no such file");
                        }},
                       {"good", "", [&] { return Real("good"); }}});
  catalog->OpenAll();
  EXPECT_TRUE(OpenNow(catalog.get(), "good").ok());
  const auto failed = OpenNow(catalog.get(), "bad");
  // Not NotFound, which means a name that is not configured.
  EXPECT_TRUE(absl::IsFailedPrecondition(failed.status())) << failed.status();
  EXPECT_NE(Message(failed.status()).find("bad.gguf"), std::string::npos);
  auto list = catalog->List();
  ASSERT_EQ(list.size(), 2u);
  EXPECT_EQ(list[0].state, ModelStateKind::kFailed);
  EXPECT_NE(list[0].reason.find("bad.gguf"), std::string::npos);
  EXPECT_EQ(list[1].state, ModelStateKind::kReady);
  EXPECT_EQ(list[1].max_context, 2048);
  EXPECT_EQ(catalog->TryGet("bad"), nullptr);

  mended = true;
  const int before = tries;
  EXPECT_FALSE(OpenNow(catalog.get(), "bad").ok());  // too soon after the failure
  EXPECT_EQ(tries, before);
  clock_.AdvanceUs(1'000'000);
  const auto opened = OpenNow(catalog.get(), "bad");
  ASSERT_TRUE(opened.ok()) << opened.status();
  EXPECT_EQ(catalog->TryGet("bad"), *opened);
  EXPECT_EQ(catalog->List()[0].state, ModelStateKind::kReady);
  EXPECT_TRUE(catalog->List()[0].reason.empty());
}

TEST_F(CatalogTest, ManyAsksShareOneOpeningAndHoldUpNobody) {
  absl::Notification go;
  std::atomic<int> tries{0};
  auto catalog = Make({{"slow", "",
                        [&]() -> absl::StatusOr<Weights> {
                          ++tries;
                          go.WaitForNotification();
                          return absl::DataLossError("cut off");
                        }},
                       {"good", "", [&] { return Real("good"); }}});
  std::atomic<int> answers{0};
  for (int i = 0; i < 10; ++i) {
    catalog->Open("slow", [&](const absl::StatusOr<Model>& opened) {
      EXPECT_EQ(opened.status().code(), absl::StatusCode::kDataLoss);
      ++answers;
    });
  }
  EXPECT_TRUE(OpenNow(catalog.get(), "good").ok());  // while the other still opens
  EXPECT_EQ(answers, 0);
  EXPECT_EQ(catalog->List()[0].state, ModelStateKind::kOpening);
  go.Notify();
  catalog.reset();  // waits for what is under way
  EXPECT_EQ(answers, 10);
  EXPECT_EQ(tries, 1);
}

TEST_F(CatalogTest, AServedModelKnowsItsTokensAndTemplate) {
  auto catalog = Make({{"tiny", "", [&] { return Real("tiny"); }}});
  const auto model = OpenNow(catalog.get(), "tiny");
  ASSERT_TRUE(model.ok()) << model.status();
  EXPECT_EQ((*model)->vocab_size(), 512);
  const auto& ends = (*model)->end_tokens();
  EXPECT_NE(std::find(ends.begin(), ends.end(), 507), ends.end());  // <|im_end|>
  const auto prompt = (*model)->EncodeChat({.messages = {{.role = "user", .content = "hi"}}});
  ASSERT_TRUE(prompt.ok()) << prompt.status();
  EXPECT_EQ(prompt->ids.front(), 506);  // <|im_start|>; this model wants no start token
}

TEST_F(CatalogTest, AnUnloadedModelIsRefusedUntilItIsLoaded) {
  std::atomic<int> brought{0}, evicted{0};
  ModelCatalog catalog({{"m", "", [&] { return Real("m"); }}}, &scheduler_, &clock_, &log_,
                       {.bring = [&](engine::EngineModel&) { ++brought; },
                        .evict = [&](engine::EngineModel&) { ++evicted; }});
  auto wait = [&](auto&& call) {
    absl::Notification done;
    absl::Status result;
    call([&](const absl::Status& status) {
      result = status;
      done.Notify();
    });
    done.WaitForNotification();
    return result;
  };
  auto load = [&](auto done) { catalog.Load("m", done); };
  auto unload = [&](auto done) { catalog.Unload("m", done); };
  EXPECT_TRUE(wait(load).ok());
  EXPECT_EQ(brought, 1);
  EXPECT_TRUE(catalog.Evict("m").ok());
  EXPECT_EQ(evicted, 1);
  EXPECT_TRUE(wait(unload).ok());
  EXPECT_EQ(catalog.TryGet("m"), nullptr);
  EXPECT_EQ(catalog.List()[0].state, ModelStateKind::kUnloaded);
  const auto refused = OpenNow(&catalog, "m");
  EXPECT_NE(Message(refused.status()).find("unloaded"), std::string::npos);
  EXPECT_TRUE(wait(load).ok());
  EXPECT_TRUE(OpenNow(&catalog, "m").ok());
  EXPECT_EQ(catalog.List()[0].facts->architecture, "qwen2");
  EXPECT_TRUE(absl::IsNotFound(catalog.Evict("x")));
  EXPECT_TRUE(absl::IsNotFound(wait([&](auto done) { catalog.Unload("x", done); })));
  EXPECT_TRUE(absl::IsNotFound(wait([&](auto done) { catalog.Load("x", done); })));
}

TEST_F(CatalogTest, AModelInUseByAnActionIsClosedAfterIt) {
  absl::Notification evicting, go;
  ModelCatalog catalog({{"m", "", [&] { return Real("m"); }}}, &scheduler_, &clock_, &log_,
                       {.evict = [&](engine::EngineModel&) {
                         evicting.Notify();
                         go.WaitForNotification();
                       }});
  ASSERT_TRUE(OpenNow(&catalog, "m").ok());
  std::thread evict([&] { EXPECT_TRUE(catalog.Evict("m").ok()); });
  evicting.WaitForNotification();
  absl::Notification unloaded, loaded;
  absl::Status again;
  catalog.Unload("m", [&](const absl::Status&) { unloaded.Notify(); });
  catalog.Load("m", [&](const absl::Status& status) {
    again = status;
    loaded.Notify();
  });
  EXPECT_FALSE(unloaded.WaitForNotificationWithTimeout(absl::Milliseconds(20)));
  EXPECT_FALSE(loaded.HasBeenNotified());
  go.Notify();
  evict.join();
  loaded.WaitForNotification();
  unloaded.WaitForNotification();
  EXPECT_TRUE(again.ok()) << again;
}

TEST_F(CatalogTest, AnUpdateTouchesOnlyWhatItChanges) {
  std::map<std::string, std::atomic<int>> opened;
  auto entry = [&](const std::string& name, const std::string& settings) {
    return CatalogEntry{name, settings, [this, &opened, name] {
                          ++opened[name];
                          return Real(name);
                        }};
  };
  for (const char* name : {"same", "other", "gone", "new"}) opened[name] = 0;
  auto catalog = Make({entry("same", "1"), entry("other", "1"), entry("gone", "1")});
  for (const char* name : {"same", "other", "gone"}) {
    ASSERT_TRUE(OpenNow(catalog.get(), name).ok());
  }
  const std::shared_ptr<const ServedModel> same = catalog->TryGet("same");
  std::vector<std::string> changes =
      catalog->Update({entry("new", "1"), entry("other", "2"), entry("same", "1")});
  std::sort(changes.begin(), changes.end());
  EXPECT_EQ(changes, (std::vector<std::string>{"added new", "changed other", "removed gone"}));
  EXPECT_EQ(catalog->TryGet("same"), same);
  EXPECT_TRUE(OpenNow(catalog.get(), "new").ok());
  EXPECT_TRUE(OpenNow(catalog.get(), "other").ok());
  EXPECT_TRUE(absl::IsNotFound(OpenNow(catalog.get(), "gone").status()));
  EXPECT_EQ(opened["same"], 1);
  EXPECT_EQ(opened["other"], 2);
  EXPECT_EQ(catalog->List().size(), 3u);
}

}  // namespace
}  // namespace terrace::server
