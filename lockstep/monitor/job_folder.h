#pragma once

#include <optional>
#include <string>
#include <vector>

#include "lockstep/monitor/rank_status.h"

namespace lockstep::monitor {

/// Where ranks of a job say what they do: a file for each, rank-0.json, which
/// is always whole. Nothing in it is meant to outlive the machine, so nothing
/// is synced to a disk.
///
/// A run with an output folder has it there, as OUT/live. The jobs of this user
/// on this host are listed in a folder in memory (jobs_folder()): there each
/// has its own, or a link to OUT/live.

/// "/run/user/1000/lockstep" or "/dev/shm/lockstep-1000".
std::string jobs_folder();

/// Of the jobs that are listed, those that have a rank that lives here, or are
/// only just starting; the names, sorted. Those that ended without a word are
/// taken off the list.
std::vector<std::string> list_jobs();

/// The name of a new job, unlike any other on this host.
std::string new_job_name();

/// A rank's side: writes its status. If that fails, a warning says so once, and
/// the run goes on.
class StatusFile {
 public:
  /// `out_dir`: the run's, or "". Makes the folder, and lists the job.
  StatusFile(const std::string& job, const std::string& out_dir, int64_t rank);
  /// Takes the file away if the job has no output folder, and the job off the
  /// list when its last rank goes.
  ~StatusFile();
  StatusFile(const StatusFile&) = delete;
  StatusFile& operator=(const StatusFile&) = delete;

  void write(const RankStatus& status) const;
  /// Whether somebody looked in the last seconds (touch_watched()).
  bool is_watched() const;

 private:
  std::string entry_;   // in jobs_folder(); empty: there is no such place
  std::string folder_;  // of the files; empty: nowhere
  std::string path_;
  bool is_kept_ = false;
  mutable bool has_warned_ = false;
};

/// Tells the ranks of `folder` that somebody looks, so that they measure what
/// costs something. False if this user may not.
bool touch_watched(const std::string& folder);

/// The statuses in `folder`, by rank; what can't be read is left out. Throws
/// IoError if there is no such folder.
std::vector<RankStatus> read_statuses(const std::string& folder);

/// Whether the process of `status` has gone without saying so; nothing if it
/// is another host's.
std::optional<bool> is_lost(const RankStatus& status);

}  // namespace lockstep::monitor
