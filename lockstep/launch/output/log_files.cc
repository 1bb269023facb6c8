#include "lockstep/launch/output/log_files.h"

#include <cctype>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <sys/stat.h>

#include <fmt/format.h>

#include "lockstep/base/atomic_file.h"
#include "lockstep/base/error.h"

namespace lockstep::launch {
namespace {

// Creates a folder with mode 0700 and a name that can't be guessed.
std::string make_unique_folder(const std::string& beginning) {
  std::string path = beginning + "XXXXXX";
  if (::mkdtemp(path.data()) == nullptr) {
    throw IoError({.code = ErrorCode::kFileAccess,
                   .what = "can't make the log folder " + path,
                   .got = std::strerror(errno),
                   .fix = "choose another --log-dir or TMPDIR"});
  }
  return path;
}

void make_private_folder(const std::string& path) {
  if (::mkdir(path.c_str(), 0700) != 0) {
    throw IoError({.code = ErrorCode::kFileAccess,
                   .what = "can't make the log folder " + path,
                   .got = std::strerror(errno)});
  }
}

// Returns a file name for a run id, which is free text and must not lead out of
// the folder.
std::string as_file_name(std::string run_id) {
  for (char& c : run_id) {
    if (std::isalnum(static_cast<unsigned char>(c)) == 0 && c != '-') c = '_';
  }
  return run_id.substr(0, 100);
}

}  // namespace

LogFiles::LogFiles(const std::string& log_dir, const std::string& run_id,
                   int workers)
    : workers_(workers), is_kept_(!log_dir.empty()) {
  std::string base = log_dir;
  if (base.empty()) {
    temporary_.emplace();
    base = temporary_->path();
  } else {
    make_directories(base);
  }
  // A program may change its working folder, so it gets absolute paths.
  base = std::filesystem::absolute(base).string();
  run_ = make_unique_folder(base + "/" + as_file_name(run_id) + "_");
  begin_attempt(0);
}

void LogFiles::begin_attempt(int attempt) {
  attempt_ = attempt;
  make_private_folder(fmt::format("{}/attempt_{}", run_, attempt_));
  for (int rank = 0; rank < workers_; ++rank) make_private_folder(folder(rank));
}

void LogFiles::keep() {
  is_kept_ = true;
  if (temporary_) temporary_->keep();
}

std::string LogFiles::folder(int local_rank) const {
  return fmt::format("{}/attempt_{}/{}", run_, attempt_, local_rank);
}

std::string LogFiles::file(int local_rank, const std::string& name) const {
  return folder(local_rank) + "/" + name;
}

}  // namespace lockstep::launch
