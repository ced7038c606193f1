#include "tier/ledger.h"

#include <string>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include "base/random.h"

namespace terrace::tier {
namespace {

Ledger::Budgets Budgets(uint64_t device) {
  Ledger::Budgets budgets{};
  budgets[static_cast<size_t>(Tier::kDevice)] = device;
  budgets[static_cast<size_t>(Tier::kHost)] = 100;
  return budgets;
}

const Owner kA{"a", "t1", Kind::kWeights};
const Owner kB{"b", "t2", Kind::kKv};

TEST(LedgerTest, BooksAndGivesBack) {
  Ledger ledger(Budgets(1000));
  {
    Reservation a = ledger.Reserve(Tier::kDevice, kA, 600).value();
    Reservation b = ledger.Reserve(Tier::kDevice, kB, 400).value();
    EXPECT_EQ(ledger.used(Tier::kDevice), 1000u);
    EXPECT_EQ(ledger.free(Tier::kDevice), 0u);
    EXPECT_EQ(ledger.used(Tier::kDevice, Kind::kKv), 400u);
    EXPECT_EQ(ledger.Lines().size(), 2u);
    EXPECT_TRUE(ledger.CheckInvariants().ok());
    Reservation moved = std::move(a);
    EXPECT_FALSE(a);
    EXPECT_EQ(moved.bytes(), 600u);
    moved.Release();
    moved.Release();
    EXPECT_EQ(ledger.used(Tier::kDevice), 400u);
    b = ledger.Reserve(Tier::kDevice, kA, 600).value();  // the old one goes back after the new came
    EXPECT_EQ(ledger.used(Tier::kDevice), 600u);
  }
  EXPECT_EQ(ledger.used(Tier::kDevice), 0u);
  EXPECT_TRUE(ledger.Lines().empty());
}

TEST(LedgerTest, RefusalSaysWhoHoldsWhat) {
  Ledger ledger(Budgets(1000));
  Reservation a = ledger.Reserve(Tier::kDevice, kA, 900).value();
  absl::Status status = ledger.Reserve(Tier::kDevice, kB, 101).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_NE(std::string(status.message()).find("a weights 900 B"), std::string::npos) << status;
  EXPECT_TRUE(ledger.Reserve(Tier::kDevice, kB, 100).ok());
  EXPECT_FALSE(ledger.Reserve(Tier::kDevice, kB, ~uint64_t{0}).ok());  // no overflow
  EXPECT_FALSE(ledger.Reserve(Tier::kDisk, kB, 1).ok());
  EXPECT_TRUE(ledger.CheckInvariants().ok());
}

TEST(LedgerTest, QuotasBindModelAndTenant) {
  Ledger ledger(Budgets(1000));
  ledger.SetModelQuota(Tier::kDevice, "a", 300);
  ledger.SetTenantQuota(Tier::kDevice, "t1", 500);
  Reservation first = ledger.Reserve(Tier::kDevice, kA, 300).value();
  EXPECT_FALSE(ledger.Reserve(Tier::kDevice, kA, 1).ok());
  const Owner other{"c", "t1", Kind::kWeights};
  EXPECT_EQ(ledger.QuotaLeft(Tier::kDevice, other), 200u);
  EXPECT_FALSE(ledger.Reserve(Tier::kDevice, other, 201).ok());
  Reservation second = ledger.Reserve(Tier::kDevice, other, 200).value();
  EXPECT_TRUE(ledger.Reserve(Tier::kHost, kA, 100).ok());  // another tier, another account
  ledger.SetModelQuota(Tier::kDevice, "a", 100);  // below what is held: stays, grows no more
  EXPECT_EQ(ledger.QuotaLeft(Tier::kDevice, kA), 0u);
  EXPECT_TRUE(ledger.CheckInvariants().ok());
}

TEST(LedgerTest, ManyThreadsNeverExceedTheBudget) {
  Ledger ledger(Budgets(10'000));
  std::vector<std::thread> threads;
  for (uint64_t t = 0; t < 4; ++t) {
    threads.emplace_back([&ledger, t] {
      Random random(t);
      std::vector<Reservation> held;
      const Owner owner{"m" + std::to_string(t), "t", Kind::kWeights};
      for (int i = 0; i < 2000; ++i) {
        if (random.Below(2) == 0 || held.empty()) {
          auto got = ledger.Reserve(Tier::kDevice, owner, 1 + random.Below(2000));
          if (got.ok()) held.push_back(*std::move(got));
        } else {
          held.pop_back();
        }
        ASSERT_TRUE(ledger.CheckInvariants().ok());
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(ledger.used(Tier::kDevice), 0u);
}

}  // namespace
}  // namespace terrace::tier
