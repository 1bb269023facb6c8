#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace lockstep {

/// Notices assignments to members of a module that are not registered, such as
/// a temperature that forward() reads. Such members can't be listed, so this
/// class compares the bytes of the module object.
///
/// The bytes are only a hint. Whether replicas have to be made again is found
/// out by computing (follow_members()). Elements of a vector, and members of
/// submodules, are not part of the object.
class MemberWatch {
 public:
  using Object = std::vector<std::span<const std::byte>>;

  /// Starts to watch the bytes of `object`, which must outlive the watch.
  void start(Object object);
  /// Returns the bytes of the object now.
  std::vector<std::byte> bytes() const;
  /// Returns whether bytes changed since start() or since the last note().
  /// Leaves out bytes that often changed without an effect, such as those of a
  /// counter, except for their 16th, 32nd, 64th, ... change.
  bool has_change() const;
  /// Ends the changes up to now. `had_effect`: whether the module computes
  /// something else because of them.
  void note(bool had_effect);
  /// Same, without a conclusion about the bytes that changed.
  void skip();

 private:
  /// Calls `visit(i)` for each byte that changed. `i` is its index among
  /// all bytes.
  template <class Visit>
  void for_each_change(const Visit& visit) const;

  Object object_;
  std::vector<std::byte> seen_;
  std::vector<uint32_t> changes_without_effect_;  // of each byte
};

}  // namespace lockstep
