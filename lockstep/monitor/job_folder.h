#pragma once

#include <optional>
#include <string>
#include <vector>

#include "lockstep/monitor/rank_status.h"

namespace lockstep::monitor {

/// The folder in which the ranks of a job report their state. Each rank has a
/// file, such as rank-0.json, which is always complete. The files need not
/// outlive the machine, so they are not synced to disk.
///
/// For a run with an output folder it is OUT/live. The jobs of this user on
/// this host are listed in a folder in memory (jobs_folder()). There each job
/// has its own folder, or a link to OUT/live.

/// Returns "/run/user/1000/lockstep" or "/dev/shm/lockstep-1000".
std::string jobs_folder();

/// Returns the sorted names of the listed jobs that are running or starting.
/// Removes jobs from the list that ended without removing themselves.
std::vector<std::string> list_jobs();

/// Returns a name for a new job that is unique on this host.
std::string new_job_name();

/// Writes the status of a rank. If that fails, a warning is logged once and the
/// run goes on.
class StatusFile {
 public:
  /// Creates the folder and lists the job. `out_dir` is the output folder of
  /// the run, or "".
  StatusFile(const std::string& job, const std::string& out_dir, int64_t rank);
  /// Removes the file if the job has no output folder. Removes the job from the
  /// list when its last rank ends.
  ~StatusFile();
  StatusFile(const StatusFile&) = delete;
  StatusFile& operator=(const StatusFile&) = delete;

  void write(const RankStatus& status) const;
  /// Returns whether the job was watched in the last seconds (touch_watched()).
  bool is_watched() const;

 private:
  std::string entry_;   // path in jobs_folder(); empty if that is not usable
  std::string folder_;  // folder of the files; empty if there is none
  std::string path_;
  bool is_kept_ = false;
  mutable bool has_warned_ = false;
};

/// Tells the ranks of `folder` that they are watched, so that they also make
/// measurements that cost time. Returns false if this user may not do that.
bool touch_watched(const std::string& folder);

/// Returns the statuses in `folder`, by rank. Files that can't be read are left
/// out. Throws IoError if there is no such folder.
std::vector<RankStatus> read_statuses(const std::string& folder);

/// Returns whether the process of `status` ended without reporting that, or
/// nothing if it is on another host.
std::optional<bool> is_lost(const RankStatus& status);

}  // namespace lockstep::monitor
