#include "storage/history/use_store.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <thread>
#include <vector>

namespace terrace::storage {
namespace {

namespace fs = std::filesystem;

class UseStoreTest : public testing::Test {
 protected:
  UseStoreTest() {
    std::string name = (fs::temp_directory_path() / "use-store-XXXXXX").string();
    folder_ = ::mkdtemp(name.data());
    path_ = folder_ + "/deeper/history.db";
  }
  ~UseStoreTest() override { fs::remove_all(folder_); }
  static UseRecord Record(const std::string& model, int64_t at) {
    UseRecord record{.model = model, .last_us = at, .use_began_us = at - 1, .uses = 3};
    record.by_hour[7] = 2.5;
    record.weight = 1.25;
    return record;
  }
  std::string folder_, path_;
};

TEST_F(UseStoreTest, KeepsTheLatestOfEachModelOverOpenings) {
  {
    auto store = UseStore::Open(path_);
    ASSERT_TRUE(store.ok()) << store.status();
    EXPECT_FALSE((*store)->Load("a")->has_value());
    ASSERT_TRUE((*store)->Save(std::vector{Record("a", 10), Record("b'; --", -5)}).ok());
    ASSERT_TRUE((*store)->Save(std::vector{Record("a", 20)}).ok());
  }
  auto store = UseStore::Open(path_).value();
  EXPECT_EQ(*store->Load("a").value(), Record("a", 20));
  EXPECT_EQ(*store->Load("b'; --").value(), Record("b'; --", -5));
}

TEST_F(UseStoreTest, WhatIsNoDatabaseIsSetAside) {
  fs::create_directories(fs::path(path_).parent_path());
  std::ofstream(path_) << std::string(10'000, 'x');
  auto store = UseStore::Open(path_);
  ASSERT_TRUE(store.ok()) << store.status();
  EXPECT_TRUE((*store)->Save(std::vector{Record("a", 1)}).ok());
  EXPECT_EQ(fs::file_size(path_ + ".damaged"), 10'000u);
}

TEST_F(UseStoreTest, TwoProcessesMayWriteAtOnce) {
  auto first = UseStore::Open(path_).value(), second = UseStore::Open(path_).value();
  auto write = [](UseStore& store, const std::string& name) {
    for (int i = 0; i < 50; ++i) EXPECT_TRUE(store.Save(std::vector{Record(name, i)}).ok());
  };
  std::thread other([&] { write(*second, "b"); });
  write(*first, "a");
  other.join();
  EXPECT_EQ((*first->Load("b"))->last_us, 49);
}

}  // namespace
}  // namespace terrace::storage
