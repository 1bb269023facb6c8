#include "lockstep/monitor/job_folder.h"

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdio>
#include <fcntl.h>
#include <filesystem>
#include <string_view>
#include <sys/stat.h>
#include <system_error>
#include <unistd.h>
#include <utility>

#include <fmt/chrono.h>
#include <fmt/format.h>

#include "lockstep/base/atomic_file.h"
#include "lockstep/base/env.h"
#include "lockstep/base/error.h"
#include "lockstep/base/file_descriptor.h"
#include "lockstep/base/file_error.h"
#include "lockstep/base/log.h"
#include "lockstep/base/numbers.h"
#include "lockstep/base/output.h"

namespace lockstep::monitor {
namespace {

namespace fs = std::filesystem;

constexpr const char* kWatched = "watched";
constexpr double kWatchedFor_s = 3;
constexpr size_t kMaxBytes = 1 << 20;
// Time in which the first rank of a new job should have written its status.
constexpr double kStartsWithin_s = 60;
constexpr double kElsewhereSilent_s = 3600;

/// Returns whether `path` is a folder of this user that others can't write to.
/// Anyone can create a folder in /dev/shm.
bool is_own_folder(const std::string& path) {
  struct stat found {};
  return ::lstat(path.c_str(), &found) == 0 && S_ISDIR(found.st_mode) &&
         found.st_uid == ::geteuid() && (found.st_mode & 022) == 0;
}

bool make_own_folder(const std::string& path) {
  ::mkdir(path.c_str(), 0700);
  return is_own_folder(path);
}

/// Returns when a file, or a link itself, was last modified. Returns 0 if it
/// does not exist.
double modified_s(const std::string& path) {
  struct stat found {};
  if (::lstat(path.c_str(), &found) != 0) return 0;
  return static_cast<double>(found.st_mtim.tv_sec) +
         static_cast<double>(found.st_mtim.tv_nsec) / 1e9;
}

double age_s(const std::string& path) { return now_s() - modified_s(path); }

std::string status_name(int64_t rank) {
  return fmt::format("rank-{}.json", rank);
}

/// Returns the rank whose status is in a file of this name.
std::optional<int64_t> rank_of(std::string_view name) {
  constexpr std::string_view kBegin = "rank-", kEnd = ".json";
  if (!name.starts_with(kBegin) || !name.ends_with(kEnd)) return std::nullopt;
  const auto rank = parse_number<int64_t>(
      name.substr(kBegin.size(), name.size() - kBegin.size() - kEnd.size()));
  const bool is_rank = rank && *rank >= 0 && status_name(*rank) == name;
  return is_rank ? rank : std::nullopt;
}

/// Returns the ranks that have a status in `folder`, sorted.
std::vector<int64_t> ranks_in(const std::string& folder,
                              std::error_code& error) {
  std::vector<int64_t> ranks;
  for (auto at = fs::directory_iterator(folder, error);
       !error && at != fs::directory_iterator(); at.increment(error)) {
    if (const auto rank = rank_of(at->path().filename().native())) {
      ranks.push_back(*rank);
    }
  }
  std::sort(ranks.begin(), ranks.end());
  return ranks;
}

// Reads the statuses of `ranks`. Files may disappear at any time, because ranks
// end.
std::vector<RankStatus> statuses_of(const std::vector<int64_t>& ranks,
                                    const std::string& folder) {
  std::vector<RankStatus> statuses;
  for (const int64_t rank : ranks) {
    // Later files are from an earlier attempt with more ranks.
    const bool is_known = !statuses.empty() && statuses[0].rank == 0;
    if (is_known && rank >= statuses[0].world_size) break;
    try {
      RankStatus status = rank_status_from_json(
          read_file(folder + "/" + status_name(rank), kMaxBytes));
      if (status.rank == rank) statuses.push_back(std::move(status));
    } catch (const Error&) {
      // The rank has just ended, or something else wrote the file.
    }
  }
  return statuses;
}

/// Returns whether a rank has ended. The process of a rank on another host
/// can't be checked, so such a rank counts as ended when its status is old.
bool has_ended(const RankStatus& status) {
  const bool is_silent = now_s() - status.updated_at > kElsewhereSilent_s;
  return status.activity == Activity::kEnded ||
         is_lost(status).value_or(is_silent);
}

/// Returns whether a listed job has no rank left and none that is about to
/// start.
bool is_dead(const std::string& entry) {
  std::error_code error;
  const auto ranks = ranks_in(entry, error);
  if (error) return true;  // a link to a folder that is gone
  const auto statuses = statuses_of(ranks, entry);
  if (!std::all_of(statuses.begin(), statuses.end(), has_ended)) return false;
  // The folder of a run may contain statuses of an earlier job. They are older
  // than the link of this job.
  const bool is_link = fs::is_symlink(entry, error);
  const double listed_s = is_link ? modified_s(entry) : 0;
  const bool has_begun =
      std::any_of(ranks.begin(), ranks.end(), [&](int64_t rank) {
        return modified_s(entry + "/" + status_name(rank)) >= listed_s;
      });
  return has_begun || age_s(entry) > kStartsWithin_s;
}

void take_off(const std::string& entry) {
  std::error_code ignored;
  if (fs::is_symlink(entry, ignored)) {
    fs::remove(entry, ignored);
  } else {
    fs::remove_all(entry, ignored);
  }
}

/// Removes other links to `folder` from the list. A run that resumes in a
/// folder takes it over from the previous job.
void take_off_links_to(const std::string& folder, const std::string& jobs,
                       const std::string& but) {
  std::error_code error, ignored;
  for (auto at = fs::directory_iterator(jobs, error);
       !error && at != fs::directory_iterator(); at.increment(error)) {
    if (at->path().filename() != but && fs::is_symlink(at->path(), ignored) &&
        fs::equivalent(at->path(), folder, ignored)) {
      take_off(at->path().string());
    }
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
  // Removes the links of jobs that were killed, even if `lockstep top` is never
  // run.
  if (rank == 0) list_jobs();
  if (!out_dir.empty()) {
    folder_ = (fs::absolute(out_dir, ignored) / "live").string();
    is_kept_ = true;
    fs::create_directories(folder_, ignored);
    if (!entry_.empty()) {
      if (rank == 0) take_off_links_to(folder_, jobs, job);
      fs::create_directory_symlink(folder_, entry_, ignored);
    }
  } else if (!entry_.empty() && make_own_folder(entry_)) {
    folder_ = entry_;
  }
  if (!folder_.empty()) path_ = folder_ + "/" + status_name(rank);
}

StatusFile::~StatusFile() {
  std::error_code ignored;
  if (!is_kept_ && !path_.empty()) fs::remove(path_, ignored);
  if (!entry_.empty() && is_dead(entry_)) take_off(entry_);
  // Without a status there is no rank to wait for.
  if (!is_kept_ && !folder_.empty() && ranks_in(folder_, ignored).empty()) {
    take_off(folder_);
  }
}

void StatusFile::write(const RankStatus& status) const {
  if (path_.empty()) return;
  const std::string aside = fmt::format("{}.{}.tmp", path_, ::getpid());
  try {
    // Never write to a file that others created there, such as a link or a
    // pipe.
    ::unlink(aside.c_str());
    write_new_file(aside, to_json(status) + "\n");
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
  // Non-blocking, so that it does not wait if there is a pipe of that name.
  const FileDescriptor file(
      ::open(path.c_str(),
             O_WRONLY | O_CREAT | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK, 0600));
  return file.is_open() && ::futimens(file.get(), nullptr) == 0;
}

std::vector<RankStatus> read_statuses(const std::string& folder) {
  std::error_code error;
  const auto ranks = ranks_in(folder, error);
  if (error) {
    throw IoError(
        {.code = ErrorCode::kFileAccess,
         .what = fmt::format("can't read {}: {}", folder, error.message()),
         .expected = "the folder of a run (--out-dir)",
         .fix = "`lockstep top` without a folder shows what runs on "
                "this host"});
  }
  return statuses_of(ranks, folder);
}

std::optional<bool> is_lost(const RankStatus& status) {
  if (status.machine != machine()) return std::nullopt;
  return status.activity != Activity::kEnded &&
         process_start(status.pid) != status.process_start;
}

}  // namespace lockstep::monitor
