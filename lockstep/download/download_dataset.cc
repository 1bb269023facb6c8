#include "lockstep/download/download_dataset.h"

#include <algorithm>
#include <archive.h>
#include <archive_entry.h>
#include <array>
#include <cerrno>
#include <cstring>
#include <fcntl.h>
#include <filesystem>
#include <map>
#include <memory>
#include <poll.h>
#include <sys/statvfs.h>

#include <fmt/format.h>

#include "lockstep/base/atomic_file.h"
#include "lockstep/base/checksum.h"
#include "lockstep/base/error.h"
#include "lockstep/base/file_descriptor.h"
#include "lockstep/base/file_lock.h"
#include "lockstep/base/format.h"
#include "lockstep/base/input_file.h"
#include "lockstep/base/output.h"
#include "lockstep/base/stopwatch.h"

namespace lockstep::download {
namespace {

namespace fs = std::filesystem;

constexpr size_t kMaxRecordBytes = 64 << 10;
// Limit on the size of files that are skipped, such as a page about the
// dataset.
constexpr int64_t kMaxOtherBytes = 1 << 20;
constexpr int kMaxEntries = 1000;

// Returns the digest of a file in hex. Throws IoError.
template <class D>
std::string digest_of_file(const std::string& path) {
  D digest;
  read_in_parts(path, [&](auto bytes) { digest.add(bytes); });
  return digest.hex();
}

/// Locks the folder for this process. The kernel releases the lock when the
/// process ends for any reason.
FileDescriptor lock_folder(const DownloadOptions& options) {
  const std::string path = options.dir + "/.lockstep-download.lock";
  FileDescriptor file(
      ::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600));
  if (!file.is_open()) {
    throw IoError({.code = ErrorCode::kFileAccess,
                   .what = "can't lock " + path,
                   .got = std::strerror(errno),
                   .fix = "check that this user may write to the folder"});
  }
  const Stopwatch watch;
  for (bool has_told = false;;) {
    const FileLock lock = try_lock(file);
    if (lock == FileLock::kUnsupported && options.fetch.say) {
      options.fetch.say(fmt::format(
          "nothing keeps a second download out of {}, as its file system has "
          "no locks: {}",
          options.dir, std::strerror(errno)));
    }
    if (lock != FileLock::kTaken) return file;
    if (!has_told && options.fetch.say) {
      options.fetch.say("another process downloads to " + options.dir +
                        "; waiting for it");
    }
    has_told = true;
    if (options.fetch.stop && options.fetch.stop()) {
      throw DataError(
          {.code = ErrorCode::kInterrupted,
           .what = "interrupted while another process downloads to " +
                   options.dir});
    }
    if (watch.seconds() > options.lock_timeout_s) {
      throw DataError(
          {.code = ErrorCode::kFileAccess,
           .what = fmt::format("another process downloads to {} for {}",
                               options.dir,
                               format_duration(options.lock_timeout_s)),
           .fix = "end it, or name another --dir"});
    }
    ::poll(nullptr, 0, 50);
  }
}

std::string record_path(const RemoteDataset& dataset, const std::string& dir) {
  return dir + "/" + dataset.name + ".sha256";
}

// Returns the first line of a record, which names the archive of the files.
std::string origin_line(const RemoteFile& file) {
  return fmt::format("# unpacked from {}, MD5 {}\n", file.name, file.md5);
}

/// Returns the SHA-256 of unpacked files by name. Returns nothing if there is
/// no record, or if it belongs to another archive.
std::map<std::string, std::string> read_record(const std::string& path,
                                               const RemoteFile& file) {
  std::error_code error;
  if (!fs::is_regular_file(path, error)) return {};
  std::string text = read_file(path, kMaxRecordBytes);
  if (!text.starts_with(origin_line(file))) return {};
  text.erase(0, origin_line(file).size());
  std::map<std::string, std::string> digests;
  constexpr size_t kHexDigits = 64;
  for (size_t at = 0; at < text.size();) {
    const size_t end = std::min(text.find('\n', at), text.size());
    const std::string line = text.substr(at, end - at);
    if (line.size() > kHexDigits + 2) {
      digests[line.substr(kHexDigits + 2)] = line.substr(0, kHexDigits);
    }
    at = end + 1;
  }
  return digests;
}

[[noreturn]] void refuse_other_file(const std::string& path,
                                    const std::string& expected,
                                    const std::string& got) {
  throw DataError({.code = ErrorCode::kMalformedData,
                   .what = path + " exists, and is a different file",
                   .expected = expected,
                   .got = got,
                   .fix = "move it away, or name another --dir"});
}

bool has_unpacked(const RemoteDataset& dataset, const RemoteFile& file,
                  const std::string& dir) {
  const auto digests = read_record(record_path(dataset, dir), file);
  bool has_all = true;
  for (const Member& member : file.members) {
    const std::string path = dir + "/" + member.name;
    const auto recorded = digests.find(member.name);
    if (recorded == digests.end() || !fs::exists(path)) {
      has_all = false;
      continue;
    }
    const std::string digest = digest_of_file<Sha256>(path);
    if (digest == recorded->second) continue;
    refuse_other_file(path, "SHA-256 " + recorded->second, digest);
  }
  return has_all;
}

bool has_file(const RemoteFile& file, const std::string& dir) {
  const std::string path = dir + "/" + file.name;
  if (!fs::exists(path)) return false;
  const std::string digest = digest_of_file<Md5>(path);
  if (digest == file.md5) return true;
  refuse_other_file(path, "MD5 " + file.md5, digest);
}

bool is_complete(const RemoteDataset& dataset, const RemoteFile& file,
                 const std::string& dir) {
  return file.members.empty() ? has_file(file, dir)
                              : has_unpacked(dataset, file, dir);
}

void check_space(const std::vector<RemoteFile>& files, const std::string& dir) {
  int64_t needed = 0;
  for (const RemoteFile& file : files) {
    const std::string path = dir + "/" + file.name;
    std::error_code none;
    const auto part = fs::file_size(partial_path(path), none);
    const int64_t had = fs::exists(path) ? file.bytes
                        : none           ? 0
                                         : static_cast<int64_t>(part);
    needed += std::max<int64_t>(file.bytes - had, 0);
    for (const Member& member : file.members) needed += member.most_bytes;
  }
  struct statvfs disk {};
  // Go on if the free space is not known. A full disk causes an error later.
  if (::statvfs(dir.c_str(), &disk) != 0) return;
  const auto free =
      static_cast<double>(disk.f_bavail) * static_cast<double>(disk.f_frsize);
  if (free >= static_cast<double>(needed)) return;
  throw IoError(
      {.code = ErrorCode::kFileAccess,
       .what = "there is not enough space on the disk of " + dir,
       .expected = format_bytes(static_cast<double>(needed)) + " free",
       .got = format_bytes(free),
       .fix = "free some, or name a --dir on another disk"});
}

void fetch(const RemoteDataset& dataset, const RemoteFile& file,
           const DownloadOptions& options) {
  const std::string path = options.dir + "/" + file.name;
  std::string base = options.mirror.empty() ? dataset.url : options.mirror;
  if (!base.ends_with('/')) base += '/';
  const std::string url = base + file.name;
  if (options.begin) options.begin(file, url);
  std::string digest;
  // If the server did not report versions, bytes of an earlier download may
  // belong to another file. In that case the whole file is downloaded again.
  for (bool has_old_bytes = true; has_old_bytes;) {
    has_old_bytes = fetch_file(url, path, file.bytes, options.fetch);
    digest = digest_of_file<Md5>(partial_path(path));
    fs::remove(version_path(path));
    if (digest == file.md5) {
      fs::rename(partial_path(path), path);
      sync_directory(options.dir);
      return;
    }
    fs::remove(partial_path(path));
  }
  throw DataError({.code = ErrorCode::kDownloadFailed,
                   .what = url + " is a different file, and was removed",
                   .expected = "MD5 " + file.md5,
                   .got = digest,
                   .fix = "try again, or name another --mirror"});
}

void unpack_file(const RemoteDataset& dataset, const RemoteFile& file,
                 const std::string& dir, bool removes_archive) {
  const std::string archive = dir + "/" + file.name;
  const auto digests = unpack(archive, file, dir);
  std::string text = origin_line(file);
  for (const auto& [name, digest] : digests) {
    text += fmt::format("{}  {}\n", digest, name);
  }
  write_atomically(record_path(dataset, dir), text);
  if (removes_archive) fs::remove(archive);
}

class Archive {
 public:
  explicit Archive(const std::string& path)
      : path_(path),
        file_(open_regular_file(path)),
        reader_(archive_read_new(), archive_read_free) {
    if (!reader_) refuse("libarchive can't begin");
    archive_read_support_filter_gzip(reader_.get());
    archive_read_support_format_tar(reader_.get());
    check(archive_read_open_fd(reader_.get(), file_.descriptor.get(), 1 << 16));
  }

  /// Returns the next file, or null at the end.
  archive_entry* next() {
    archive_entry* entry = nullptr;
    const int result = archive_read_next_header(reader_.get(), &entry);
    if (result == ARCHIVE_EOF) return nullptr;
    check(result);
    if (++entries_ > kMaxEntries) refuse("more files than a dataset has");
    return entry;
  }

  /// Returns the next bytes of the file, or nothing at its end.
  std::span<const std::byte> read() {
    const ssize_t size =
        archive_read_data(reader_.get(), buffer_.data(), buffer_.size());
    if (size < 0) refuse_by_library();
    return {buffer_.data(), static_cast<size_t>(size)};
  }

  [[noreturn]] void refuse(const std::string& got) const {
    throw DataError({.code = ErrorCode::kMalformedData,
                     .what = "can't unpack " + path_,
                     .expected = "an archive of the dataset alone",
                     .got = got,
                     .fix = "remove it, and name another --mirror"});
  }

 private:
  void check(int result) const {
    if (result != ARCHIVE_OK) refuse_by_library();
  }

  [[noreturn]] void refuse_by_library() const {
    const char* message = archive_error_string(reader_.get());
    refuse(shown(message != nullptr ? message : "an unknown error"));
  }

  std::string path_;
  RegularFile file_;
  std::unique_ptr<archive, int (*)(archive*)> reader_;
  std::array<std::byte, 1 << 16> buffer_{};
  int entries_ = 0;
};

/// Returns the path of `entry`. Refuses links, devices, and paths that lead out
/// of the folder.
std::string path_of(const Archive& archive, archive_entry* entry) {
  const char* name = archive_entry_pathname(entry);
  const std::string path = name != nullptr ? name : "";
  const fs::path parts(path);
  if (path.empty() || parts.is_absolute() ||
      std::find(parts.begin(), parts.end(), "..") != parts.end()) {
    archive.refuse("a file that would be outside of the folder: " +
                   shown(path));
  }
  const bool is_link = archive_entry_hardlink(entry) != nullptr;
  const auto type = archive_entry_filetype(entry);
  if (is_link || (type != AE_IFREG && type != AE_IFDIR)) {
    archive.refuse("a link or a device: " + shown(path));
  }
  return parts.lexically_normal().string();
}

// Unpacks one member and returns its SHA-256.
std::string unpack_member(Archive& archive, const Member& member,
                          const std::string& path) {
  AtomicFile file(path);
  Sha256 digest;
  int64_t bytes = 0;
  for (auto part = archive.read(); !part.empty(); part = archive.read()) {
    bytes += static_cast<int64_t>(part.size());
    if (bytes > member.most_bytes) {
      archive.refuse(fmt::format("{} of more than {} bytes", member.name,
                                 member.most_bytes));
    }
    file.write(part);
    digest.add(part);
  }
  const std::string hex = digest.hex();
  std::error_code error;
  if (!fs::exists(fs::symlink_status(path, error))) {
    file.commit();
  } else if (digest_of_file<Sha256>(path) != hex) {
    throw DataError({.code = ErrorCode::kMalformedData,
                     .what = path + " exists already, and is a different file",
                     .expected = "that of the dataset, or none",
                     .got = "other bytes",
                     .fix = "move it away, or name another --dir"});
  }
  return hex;
}

}  // namespace

std::map<std::string, std::string> unpack(const std::string& archive,
                                          const RemoteFile& file,
                                          const std::string& dir) {
  Archive reader(archive);
  std::map<std::string, std::string> digests;
  while (archive_entry* entry = reader.next()) {
    const std::string path = path_of(reader, entry);
    const auto member =
        std::ranges::find_if(file.members, [&](const Member& candidate) {
          return path == file.folder + "/" + candidate.name;
        });
    if (member != file.members.end()) {
      if (archive_entry_filetype(entry) != AE_IFREG) {
        reader.refuse("a folder named " + shown(path));
      }
      digests[member->name] =
          unpack_member(reader, *member, dir + "/" + member->name);
    } else if (archive_entry_size(entry) > kMaxOtherBytes) {
      reader.refuse("a large file that is not of the dataset: " + shown(path));
    }
  }
  for (const Member& member : file.members) {
    if (!digests.contains(member.name)) {
      reader.refuse("no " + file.folder + "/" + member.name);
    }
  }
  return digests;
}

Outcome download_dataset(const RemoteDataset& dataset,
                         const DownloadOptions& options) {
  make_directories(options.dir);
  const FileDescriptor lock = lock_folder(options);
  std::vector<RemoteFile> missing;
  for (const RemoteFile& file : dataset.files) {
    if (!is_complete(dataset, file, options.dir)) missing.push_back(file);
  }
  if (missing.empty()) return Outcome::kWasThere;
  check_space(missing, options.dir);
  for (const RemoteFile& file : missing) {
    // An archive that the user has put there is used and kept.
    const bool was_there = has_file(file, options.dir);
    if (!was_there) fetch(dataset, file, options);
    if (!file.members.empty()) {
      unpack_file(dataset, file, options.dir, !was_there);
    }
  }
  return Outcome::kDownloaded;
}

}  // namespace lockstep::download
