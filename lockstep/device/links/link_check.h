#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "lockstep/device/links/link.h"

namespace lockstep {

/// What moves the bytes of a copy.
enum class CopyMethod {
  kCopyEngine,      ///< as training copies
  kLoadsAndStores,  ///< by a kernel on the receiving device
};

/// What a check copies over each link.
struct LinkCheckOptions {
  /// Bytes of the copies; multiples of 8.
  std::vector<int64_t> sizes = {1 << 10, 1 << 20, 4 << 20, 16 << 20, 64 << 20};
  int rounds = 1;         ///< with other numbers in each
  double timeout_s = 20;  ///< that a copy may take
};

/// One copy of a check.
struct LinkCopy {
  Link link;
  CopyMethod method = CopyMethod::kCopyEngine;
  int64_t bytes = 0;
};

/// A copy that did not bring over what it should have.
struct LinkFinding {
  /// What is wrong.
  enum class Kind {
    kChanged,     ///< other bytes arrived
    kNotWritten,  ///< the memory is as it was before, in part or all of it
    kTimeout,     ///< the copy did not end
  };
  LinkCopy copy;
  Kind kind = Kind::kChanged;
  int64_t first_byte = 0;   ///< the first wrong one
  int64_t wrong_bytes = 0;  ///< in words of 8

  /// "cuda:0 -> cuda:1: a copy of 4 MiB arrived changed: ...".
  std::string text() const;
};

/// Makes one copy of a check in this thread: writes a pattern in which no two
/// words are alike to memory of link.from, another value to memory of link.to,
/// copies, and reads from the host what is there then. Nothing if all is as it
/// should be.
std::optional<LinkFinding> check_copy(const LinkCopy& copy, int round);

/// Makes all copies over `links`, one after another, for what is wrong with
/// them: the first finding of each link. A thread of this process makes the
/// copies, and stays where one hangs.
std::vector<LinkFinding> check_links(std::span<const Link> links,
                                     const LinkCheckOptions& options);

/// The same in a process of its own, which takes with it what hangs: the
/// program of the variable LOCKSTEP_PROGRAM, this program if it is `lockstep`,
/// or the one in the PATH. Without one, in this process.
std::vector<LinkFinding> check_links_in_child(std::span<const Link> links,
                                              const LinkCheckOptions& options);

/// JSON, as the child writes it for its parent.
std::string format_findings(const std::vector<LinkFinding>& findings);
/// Those of them that are about `links`. Throws what nlohmann::json throws, or
/// InvalidArgument, for another text.
std::vector<LinkFinding> parse_findings(const std::string& text,
                                        std::span<const Link> links);

}  // namespace lockstep
