#include "lockstep/monitor/job_folder.h"

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <fcntl.h>
#include <filesystem>
#include <sys/stat.h>
#include <system_error>
#include <unistd.h>
#include <utility>

#include <fmt/chrono.h>
#include <fmt/format.h>

#include "lockstep/base/atomic_file.h"
#include "lockstep/base/env.h"
#include "lockstep/base/error.h"
#include "lockstep/base/file_error.h"
#include "lockstep/base/log.h"
#include "lockstep/base/output.h"

namespace lockstep::monitor {
namespace {

namespace fs = std::filesystem;

constexpr const char* kWatched = "watched";
constexpr double kWatchedFor_s = 3;
constexpr size_t kMostBytes = 1 << 20;
// Until its first rank has written something.
constexpr double kStartsWithin_s = 60;

/// Ours alone: what is in /dev/shm anybody may have made.
bool is_own_folder(const std::string& path) {
  struct stat found {};
  return ::lstat(path.c_str(), &found) == 0 && S_ISDIR(found.st_mode) &&
         found.st_uid == ::geteuid() && (found.st_mode & 022) == 0;
}

bool make_own_folder(const std::string& path) {
  ::mkdir(path.c_str(), 0700);
  return is_own_folder(path);
}

double age_s(const std::string& path) {
  struct stat found {};
  if (::stat(path.c_str(), &found) != 0) return 1e9;
  return now_s() - (static_cast<double>(found.st_mtim.tv_sec) +
                    static_cast<double>(found.st_mtim.tv_nsec) / 1e9);
}

bool is_status_file(const fs::path& path) {
  const std::string name = path.filename().string();
  return name.starts_with("rank-") && name.ends_with(".json");
}

std::vector<fs::path> status_files(const std::string& folder,
                                   std::error_code& error) {
  std::vector<fs::path> files;
  for (auto at = fs::directory_iterator(folder, error);
       !error && at != fs::directory_iterator(); at.increment(error)) {
    if (is_status_file(at->path())) files.push_back(at->path());
  }
  return files;
}

// Files may go at any time, as ranks end.
std::vector<RankStatus> statuses_in(const std::vector<fs::path>& files) {
  std::vector<RankStatus> statuses;
  for (const fs::path& path : files) {
    try {
      statuses.push_back(
          rank_status_from_json(read_file(path.string(), kMostBytes)));
    } catch (const Error&) {
      // It ended just now, or somebody else wrote it.
    }
  }
  std::sort(
      statuses.begin(), statuses.end(),
      [](const RankStatus& a, const RankStatus& b) { return a.rank < b.rank; });
  // Of ranks that an earlier, larger attempt had.
  if (!statuses.empty() && statuses[0].rank == 0) {
    const int64_t ranks = statuses[0].world_size;
    std::erase_if(statuses, [ranks](const RankStatus& status) {
      return status.rank >= ranks;
    });
  }
  return statuses;
}

bool is_dead(const std::string& folder) {
  std::error_code error;
  const auto files = status_files(folder, error);
  if (error) return true;  // a link to what is gone
  if (files.empty()) return age_s(folder) > kStartsWithin_s;
  const auto statuses = statuses_in(files);
  return std::all_of(statuses.begin(), statuses.end(),
                     [](const RankStatus& status) {
                       return status.activity == Activity::kEnded ||
                              is_lost(status).value_or(false);
                     });
}

void take_off(const std::string& entry) {
  std::error_code ignored;
  if (fs::is_symlink(entry, ignored)) {
    fs::remove(entry, ignored);
  } else {
    fs::remove_all(entry, ignored);
  }
}

}  // namespace

std::string jobs_folder() {
  const auto runtime = env("XDG_RUNTIME_DIR");
  if (runtime && is_own_folder(*runtime)) return *runtime + "/lockstep";
  return fmt::format("/dev/shm/lockstep-{}", ::geteuid());
}

std::vector<std::string> list_jobs() {
  const std::string folder = jobs_folder();
  std::vector<std::string> jobs;
  if (!is_own_folder(folder)) return jobs;
  std::error_code error;
  for (auto at = fs::directory_iterator(folder, error);
       !error && at != fs::directory_iterator(); at.increment(error)) {
    const std::string entry = at->path().string();
    if (is_dead(entry)) {
      take_off(entry);
    } else {
      jobs.push_back(at->path().filename().string());
    }
  }
  std::sort(jobs.begin(), jobs.end());
  return jobs;
}

std::string new_job_name() {
  static std::atomic<int> jobs = 0;
  const int number = jobs++;
  return fmt::format("{:%m%d-%H%M%S}-{}{}",
                     fmt::localtime(static_cast<std::time_t>(now_s())),
                     ::getpid(), number == 0 ? "" : fmt::format("-{}", number));
}

StatusFile::StatusFile(const std::string& job, const std::string& out_dir,
                       int64_t rank) {
  const std::string jobs = jobs_folder();
  std::error_code ignored;
  if (make_own_folder(jobs)) entry_ = jobs + "/" + job;
  if (!out_dir.empty()) {
    folder_ = (fs::absolute(out_dir, ignored) / "live").string();
    is_kept_ = true;
    fs::create_directories(folder_, ignored);
    if (!entry_.empty()) {
      fs::create_directory_symlink(folder_, entry_, ignored);
    }
  } else if (!entry_.empty() && make_own_folder(entry_)) {
    folder_ = entry_;
  }
  if (!folder_.empty()) path_ = fmt::format("{}/rank-{}.json", folder_, rank);
}

StatusFile::~StatusFile() {
  std::error_code ignored;
  if (!is_kept_ && !path_.empty()) fs::remove(path_, ignored);
  if (!entry_.empty() && is_dead(entry_)) take_off(entry_);
  // Without a status there is nothing to wait for.
  if (!is_kept_ && !folder_.empty() && status_files(folder_, ignored).empty()) {
    take_off(folder_);
  }
}

void StatusFile::write(const RankStatus& status) const {
  if (path_.empty()) return;
  const std::string aside = fmt::format("{}.{}.tmp", path_, ::getpid());
  ::unlink(aside.c_str());
  try {
    append_to_file(aside, to_json(status) + "\n");
    if (std::rename(aside.c_str(), path_.c_str()) == 0) return;
    throw file_error("rename to", path_, errno);
  } catch (const IoError& error) {
    ::unlink(aside.c_str());
    if (std::exchange(has_warned_, true)) return;
    log_warning(
        "monitor",
        fmt::format("{}; `lockstep top` shows what was before", error.text()));
  }
}

bool StatusFile::is_watched() const {
  return !folder_.empty() && age_s(folder_ + "/" + kWatched) < kWatchedFor_s;
}

bool touch_watched(const std::string& folder) {
  const std::string path = folder + "/" + kWatched;
  const int fd =
      ::open(path.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
  if (fd < 0) return false;
  const bool is_done = ::futimens(fd, nullptr) == 0;
  ::close(fd);
  return is_done;
}

std::vector<RankStatus> read_statuses(const std::string& folder) {
  std::error_code error;
  const auto files = status_files(folder, error);
  if (error) {
    throw IoError(
        {.code = ErrorCode::kFileAccess,
         .what = fmt::format("can't read {}: {}", folder, error.message()),
         .expected = "the folder of a run (--out-dir)",
         .fix = "`lockstep top` without a folder shows what runs on "
                "this host"});
  }
  return statuses_in(files);
}

std::optional<bool> is_lost(const RankStatus& status) {
  if (status.machine != machine()) return std::nullopt;
  return status.activity != Activity::kEnded &&
         process_start(status.pid) != status.process_start;
}

}  // namespace lockstep::monitor
