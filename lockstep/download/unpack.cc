#include "lockstep/download/unpack.h"

#include <algorithm>
#include <archive.h>
#include <archive_entry.h>
#include <array>
#include <filesystem>
#include <memory>
#include <string_view>

#include <fmt/format.h>

#include "lockstep/base/atomic_file.h"
#include "lockstep/base/checksum.h"
#include "lockstep/base/error.h"
#include "lockstep/base/file_descriptor.h"
#include "lockstep/base/input_file.h"
#include "lockstep/base/printable_ascii.h"

namespace lockstep::download {
namespace {

namespace fs = std::filesystem;

// Limit on the size of files that are skipped, such as a page about the
// dataset.
constexpr int64_t kMostOtherBytes = 1 << 20;
constexpr int kMostEntries = 1000;

// Returns the first 200 characters of a text from an archive or library, in
// printable ASCII.
std::string printable(std::string_view text) {
  return printable_ascii(std::string(text.substr(0, 200)));
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
    if (++entries_ > kMostEntries) refuse("more files than a dataset has");
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
    refuse(printable(message != nullptr ? message : "an unknown error"));
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
                   printable(path));
  }
  const bool is_link = archive_entry_hardlink(entry) != nullptr;
  const auto type = archive_entry_filetype(entry);
  if (is_link || (type != AE_IFREG && type != AE_IFDIR)) {
    archive.refuse("a link or a device: " + printable(path));
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
  } else if (sha256_of_file(path) != hex) {
    throw DataError({.code = ErrorCode::kMalformedData,
                     .what = path + " is there already, and is another file",
                     .expected = "that of the dataset, or none",
                     .got = "other bytes",
                     .fix = "move it away, or name another --dir"});
  }
  return hex;
}

template <class D>
std::string digest_of_file(const std::string& path) {
  D digest;
  read_in_parts(path, [&](auto bytes) { digest.add(bytes); });
  return digest.hex();
}

}  // namespace

std::map<std::string, std::string> unpack(const std::string& archive,
                                          const RemoteFile& file,
                                          const std::string& dir) {
  Archive reader(archive);
  std::map<std::string, std::string> digests;
  while (archive_entry* entry = reader.next()) {
    const std::string path = path_of(reader, entry);
    const auto member = std::find_if(
        file.members.begin(), file.members.end(), [&](const Member& candidate) {
          return path == file.folder + "/" + candidate.name;
        });
    if (member != file.members.end()) {
      if (archive_entry_filetype(entry) != AE_IFREG) {
        reader.refuse("a folder named " + printable(path));
      }
      digests[member->name] =
          unpack_member(reader, *member, dir + "/" + member->name);
    } else if (archive_entry_size(entry) > kMostOtherBytes) {
      reader.refuse("a large file that is not of the dataset: " +
                    printable(path));
    }
  }
  for (const Member& member : file.members) {
    if (!digests.contains(member.name)) {
      reader.refuse("no " + file.folder + "/" + member.name);
    }
  }
  return digests;
}

std::string sha256_of_file(const std::string& path) {
  return digest_of_file<Sha256>(path);
}

std::string md5_of_file(const std::string& path) {
  return digest_of_file<Md5>(path);
}

}  // namespace lockstep::download
