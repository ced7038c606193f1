#include "storage/disk/disk_budget.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "base/units.h"

namespace terrace::storage {
namespace {

namespace fs = std::filesystem;

class DiskBudgetTest : public testing::Test {
 protected:
  DiskBudgetTest() {
    std::string name = (fs::current_path() / "disk-budget-XXXXXX").string();
    folder_ = ::mkdtemp(name.data());
  }
  ~DiskBudgetTest() override { fs::remove_all(folder_); }
  void Write(const std::string& name, uint64_t bytes) {
    fs::create_directories(fs::path(folder_ + "/" + name).parent_path());
    std::ofstream(folder_ + "/" + name) << std::string(bytes, 'x');
  }
  std::string folder_;
};

TEST_F(DiskBudgetTest, CountsWhatLiesThereAndWhatIsPromised) {
  DiskBudget budget({folder_, folder_ + "-absent"}, kMiB);
  Write("a/b", 512 * kKiB);
  auto claim = budget.Claim(400 * kKiB, "an image", nullptr);
  ASSERT_TRUE(claim.ok()) << claim.status();
  EXPECT_GE(budget.used_bytes(), 912 * kKiB);
  auto more = budget.Claim(200 * kKiB, "an image", nullptr);
  ASSERT_TRUE(absl::IsResourceExhausted(more.status()));
  EXPECT_NE(more.status().message().find("storage.disk.size"), absl::string_view::npos);
  claim->Release();
  EXPECT_TRUE(budget.Claim(200 * kKiB, "an image", nullptr).ok());
}

TEST_F(DiskBudgetTest, AFileWithHolesCountsAsWhatItTakes) {
  Write("sparse", 1);
  fs::resize_file(folder_ + "/sparse", 64 * kMiB);
  EXPECT_LE(PhysicalBytes(folder_), 64 * kKiB);
}

TEST_F(DiskBudgetTest, AsksForRoomUntilItIsThereOrNothingIsLeft) {
  DiskBudget budget({folder_}, kMiB);
  for (const char* name : {"1", "2", "3"}) Write(name, 300 * kKiB);
  int removed = 0;
  auto reclaim = [&] {
    if (removed == 3) return false;
    return fs::remove(folder_ + "/" + std::to_string(++removed));
  };
  EXPECT_TRUE(budget.Claim(600 * kKiB, "an image", reclaim).ok());
  EXPECT_EQ(removed, 2);
  EXPECT_FALSE(budget.Claim(2 * kMiB, "an image", reclaim).ok());
  EXPECT_EQ(removed, 2) << "what can never fit costs nobody anything";
}

}  // namespace
}  // namespace terrace::storage
