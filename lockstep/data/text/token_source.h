#pragma once

#include <cstdint>
#include <span>
#include <string>

namespace lockstep::data {

/// Interface to a sequence of tokens, which may be larger than memory.
/// Thread-safe once made.
class TokenSource {
 public:
  virtual ~TokenSource() = default;

  virtual int64_t size() const = 0;
  /// Writes the tokens begin..begin+out.size()-1 to `out`. Throws
  /// InvalidArgument if there are fewer tokens.
  void read(int64_t begin, std::span<int64_t> out) const;
  /// Returns the SHA-256 of the tokens in hex. May take seconds.
  virtual std::string fingerprint() const = 0;

 private:
  /// Returns a name for errors, such as a path.
  virtual std::string name() const { return "the tokens"; }
  /// Implements read() for arguments that were checked.
  virtual void read_checked(int64_t begin, std::span<int64_t> out) const = 0;
};

}  // namespace lockstep::data
