#include "storage/history/use_store.h"

#include <fmt/format.h>
#include <sqlite3.h>

#include <cstring>
#include <filesystem>
#include <system_error>
#include <utility>

#include "base/status.h"

namespace terrace::storage {
namespace {

constexpr const char* kSchema =
    "CREATE TABLE IF NOT EXISTS uses (model TEXT PRIMARY KEY, last_us INTEGER NOT NULL, "
    "use_began_us INTEGER NOT NULL, previous_began_us INTEGER NOT NULL, first_us INTEGER NOT NULL, "
    "uses INTEGER NOT NULL, by_hour BLOB NOT NULL, weight REAL NOT NULL)";
// Another process that writes takes a moment only.
constexpr int kBusyMs = 2000;

absl::Status Failed(sqlite3* database, const char* what) {
  return absl::UnavailableError(
      fmt::format("{} the history of use: {}", what, sqlite3_errmsg(database)));
}

// A prepared statement; values are bound in order.
class Statement {
 public:
  Statement(sqlite3* database, const char* sql) {
    if (sqlite3_prepare_v2(database, sql, -1, &statement_, nullptr) != SQLITE_OK) {
      statement_ = nullptr;
    }
  }
  ~Statement() { sqlite3_finalize(statement_); }
  Statement(const Statement&) = delete;
  Statement& operator=(const Statement&) = delete;

  void Bind(const std::string& text) {
    sqlite3_bind_text(statement_, ++bound_, text.data(), static_cast<int>(text.size()),
                      SQLITE_TRANSIENT);
  }
  void Bind(int64_t value) { sqlite3_bind_int64(statement_, ++bound_, value); }
  void Bind(double value) { sqlite3_bind_double(statement_, ++bound_, value); }
  void Bind(const std::array<double, 24>& hours) {
    sqlite3_bind_blob(statement_, ++bound_, hours.data(), static_cast<int>(sizeof(hours)),
                      SQLITE_TRANSIENT);
  }
  // SQLITE_ROW, SQLITE_DONE or an error.
  int Step() { return statement_ == nullptr ? SQLITE_ERROR : sqlite3_step(statement_); }
  sqlite3_stmt* get() const { return statement_; }

 private:
  sqlite3_stmt* statement_ = nullptr;
  int bound_ = 0;
};

}  // namespace

void UseStore::Close::operator()(sqlite3* database) const { sqlite3_close(database); }

UseStore::~UseStore() = default;

absl::StatusOr<UseStore::Database> UseStore::OpenDatabase(const std::string& path) {
  sqlite3* raw = nullptr;
  const int opened =
      sqlite3_open_v2(path.c_str(), &raw,
                      SQLITE_OPEN_READWRITE | SQLITE_OPEN_CREATE | SQLITE_OPEN_FULLMUTEX, nullptr);
  Database database(raw);
  if (opened != SQLITE_OK) return Failed(raw, "opening");
  sqlite3_busy_timeout(raw, kBusyMs);
  for (const char* sql : {"PRAGMA journal_mode=WAL", kSchema, "SELECT count(weight) FROM uses"}) {
    const int code = sqlite3_exec(raw, sql, nullptr, nullptr, nullptr);
    if (code == SQLITE_NOTADB || code == SQLITE_CORRUPT || code == SQLITE_ERROR) {
      return absl::DataLossError(fmt::format("'{}': {}", path, sqlite3_errmsg(raw)));
    }
    if (code != SQLITE_OK) return Failed(raw, "opening");
  }
  return database;
}

absl::StatusOr<std::unique_ptr<UseStore>> UseStore::Open(const std::string& path) {
  std::error_code error;
  std::filesystem::create_directories(std::filesystem::path(path).parent_path(), error);
  if (error) return ErrnoStatus(error.value(), fmt::format("creating the folder of '{}'", path));
  absl::StatusOr<Database> database = OpenDatabase(path);
  if (absl::IsDataLoss(database.status())) {
    for (const char* suffix : {"-wal", "-shm"}) std::filesystem::remove(path + suffix, error);
    std::filesystem::rename(path, path + ".damaged", error);
    if (error) return database.status();
    database = OpenDatabase(path);
  }
  RETURN_IF_ERROR(database.status());
  return std::unique_ptr<UseStore>(new UseStore(*std::move(database)));
}

absl::StatusOr<std::optional<UseRecord>> UseStore::Load(const std::string& model) {
  absl::MutexLock lock(&mutex_);
  Statement select(database_.get(),
                   "SELECT last_us, use_began_us, previous_began_us, first_us, uses, by_hour, "
                   "weight FROM uses WHERE model = ?");
  select.Bind(model);
  const int code = select.Step();
  if (code == SQLITE_DONE) return std::nullopt;
  if (code != SQLITE_ROW) return Failed(database_.get(), "reading");
  UseRecord record;
  record.model = model;
  record.last_us = sqlite3_column_int64(select.get(), 0);
  record.use_began_us = sqlite3_column_int64(select.get(), 1);
  record.previous_began_us = sqlite3_column_int64(select.get(), 2);
  record.first_us = sqlite3_column_int64(select.get(), 3);
  record.uses = static_cast<uint64_t>(sqlite3_column_int64(select.get(), 4));
  const void* hours = sqlite3_column_blob(select.get(), 5);
  if (sqlite3_column_bytes(select.get(), 5) != static_cast<int>(sizeof(record.by_hour))) {
    return absl::DataLossError(fmt::format("the history of model '{}' is damaged", model));
  }
  std::memcpy(record.by_hour.data(), hours, sizeof(record.by_hour));
  record.weight = sqlite3_column_double(select.get(), 6);
  return record;
}

absl::Status UseStore::Save(std::span<const UseRecord> records) {
  absl::MutexLock lock(&mutex_);
  sqlite3* database = database_.get();
  if (sqlite3_exec(database, "BEGIN IMMEDIATE", nullptr, nullptr, nullptr) != SQLITE_OK) {
    return Failed(database, "writing");
  }
  for (const UseRecord& record : records) {
    Statement insert(database, "INSERT OR REPLACE INTO uses VALUES (?, ?, ?, ?, ?, ?, ?, ?)");
    insert.Bind(record.model);
    insert.Bind(record.last_us);
    insert.Bind(record.use_began_us);
    insert.Bind(record.previous_began_us);
    insert.Bind(record.first_us);
    insert.Bind(static_cast<int64_t>(record.uses));
    insert.Bind(record.by_hour);
    insert.Bind(record.weight);
    if (insert.Step() != SQLITE_DONE) {
      absl::Status status = Failed(database, "writing");
      sqlite3_exec(database, "ROLLBACK", nullptr, nullptr, nullptr);
      return status;
    }
  }
  if (sqlite3_exec(database, "COMMIT", nullptr, nullptr, nullptr) == SQLITE_OK) {
    return absl::OkStatus();
  }
  absl::Status status = Failed(database, "writing");
  sqlite3_exec(database, "ROLLBACK", nullptr, nullptr, nullptr);
  return status;
}

}  // namespace terrace::storage
