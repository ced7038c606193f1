#include "cli/link_probe.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <memory>
#include <span>
#include <system_error>
#include <utility>
#include <vector>

#include "absl/synchronization/mutex.h"
#include "base/random.h"
#include "base/status.h"
#include "base/units.h"
#include "os/direct_file.h"
#include "os/mapping.h"
#include "storage/disk/block_reader.h"

namespace terrace::cli {
namespace {

constexpr uint64_t kPiece = 4 * kMiB;
constexpr uint64_t kPage = 4 * kKiB;

// Keeps `depth` reads in flight until the time is over.
class Reads {
 public:
  Reads(storage::BlockReader* reader, const os::DirectFile* file, uint64_t read_bytes,
        uint32_t depth, const Clock& clock)
      : reader_(reader), file_(file), read_bytes_(read_bytes), depth_(depth), clock_(clock) {}

  // Reads a second; sequential over the file, round and round, or anywhere in it.
  absl::StatusOr<double> Run(bool sequential, int64_t budget_us, std::span<std::byte> memory) {
    const uint64_t places = file_->size() / read_bytes_;
    const int64_t start_us = clock_.NowUs();
    uint64_t done = 0;
    for (; clock_.NowUs() - start_us < budget_us; done += depth_) {
      // Rounds of `depth` reads: simple, and the last of a round waits a little.
      for (uint32_t i = 0; i < depth_; ++i) {
        const uint64_t place = sequential ? (done + i) % places : random_.Below(places);
        {
          absl::MutexLock lock(&mutex_);
          ++in_flight_;
        }
        reader_->Read(*file_, place * read_bytes_, memory.subspan(i * read_bytes_, read_bytes_),
                      [this](absl::Status status) {
                        absl::MutexLock lock(&mutex_);
                        --in_flight_;
                        if (status_.ok()) status_ = std::move(status);
                      });
      }
      absl::MutexLock lock(&mutex_);
      mutex_.Await(absl::Condition(+[](int* in_flight) { return *in_flight == 0; }, &in_flight_));
      if (!status_.ok()) return status_;
    }
    return static_cast<double>(done) * 1e6 / static_cast<double>(clock_.NowUs() - start_us);
  }

 private:
  storage::BlockReader* reader_;
  const os::DirectFile* file_;
  const uint64_t read_bytes_;
  const uint32_t depth_;
  const Clock& clock_;
  Random random_{1};
  absl::Mutex mutex_;
  int in_flight_ = 0;  // guarded by mutex_
  absl::Status status_;
};

absl::Status WriteProbe(const std::string& path, uint64_t bytes) {
  ASSIGN_OR_RETURN(std::unique_ptr<os::DirectFile> file, os::DirectFile::Create(path));
  ASSIGN_OR_RETURN(os::Mapping memory, os::Mapping::Anonymous(kPiece));
  Random random(2);  // so that no layer below can compress it away
  for (uint64_t i = 0; i < kPiece; i += 8) {
    const uint64_t word = random.Next();
    std::memcpy(memory.data() + i, &word, 8);
  }
  for (uint64_t at = 0; at < bytes; at += kPiece) {
    RETURN_IF_ERROR(file->WriteAt(at, memory.span()));
  }
  return file->Sync();
}

absl::StatusOr<DiskProbe> ReadProbe(const std::string& path, int64_t budget_us,
                                    const Clock& clock) {
  ASSIGN_OR_RETURN(std::unique_ptr<os::DirectFile> file, os::DirectFile::OpenForRead(path));
  ASSIGN_OR_RETURN(os::Mapping memory, os::Mapping::Anonymous(8 * kPiece));
  DiskProbe probe;
  probe.direct = file->uses_direct_io();
  storage::DiskReaderOptions options;
  options.depth = 8;
  ASSIGN_OR_RETURN(std::unique_ptr<storage::DiskReader> few, storage::DiskReader::Create(options));
  ASSIGN_OR_RETURN(
      const double pieces,
      Reads(few.get(), file.get(), kPiece, 8, clock).Run(true, budget_us, memory.span()));
  probe.sequential_bytes_per_s = pieces * static_cast<double>(kPiece);
  options.depth = 64;
  ASSIGN_OR_RETURN(std::unique_ptr<storage::DiskReader> many, storage::DiskReader::Create(options));
  ASSIGN_OR_RETURN(
      probe.random_reads_per_s,
      Reads(many.get(), file.get(), kPage, 64, clock).Run(false, budget_us, memory.span()));
  std::vector<double> times;
  Random random(3);
  for (const int64_t start_us = clock.NowUs(); clock.NowUs() - start_us < budget_us / 2;) {
    const int64_t before_us = clock.NowUs();
    RETURN_IF_ERROR(
        file->ReadAt(random.Below(file->size() / kPage) * kPage, memory.span().first(kPage)));
    times.push_back(static_cast<double>(clock.NowUs() - before_us));
  }
  std::nth_element(times.begin(), times.begin() + static_cast<long>(times.size() / 2), times.end());
  probe.latency_us = times[times.size() / 2];
  return probe;
}

}  // namespace

double MeasureMemoryCopy(const Clock& clock) {
  constexpr uint64_t kBytes = 256 * kMiB;
  std::vector<std::byte> from(kBytes, std::byte{1}), to(kBytes, std::byte{2});
  double best = 0;
  for (int i = 0; i < 4; ++i) {
    const int64_t start_us = clock.NowUs();
    std::memcpy(to.data(), from.data(), kBytes);
    from[static_cast<size_t>(i)] = to[kBytes - 1 - static_cast<size_t>(i)];  // both are used
    best = std::max(best, static_cast<double>(kBytes) * 1e6 /
                              static_cast<double>(std::max<int64_t>(1, clock.NowUs() - start_us)));
  }
  return best;
}

absl::StatusOr<DiskProbe> MeasureDisk(const std::string& folder, uint64_t bytes, int64_t budget_us,
                                      const Clock& clock) {
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  if (error) return ErrnoStatus(error.value(), fmt::format("creating {}", folder));
  const std::string path = fmt::format("{}/doctor-{}.partial", folder, getpid());
  const absl::Status written = WriteProbe(path, bytes);
  absl::StatusOr<DiskProbe> probe =
      written.ok() ? ReadProbe(path, budget_us, clock) : absl::StatusOr<DiskProbe>(written);
  std::filesystem::remove(path, error);
  return probe;
}

}  // namespace terrace::cli
