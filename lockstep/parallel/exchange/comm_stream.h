#pragma once

#include <memory>
#include <optional>

#include <c10/core/Event.h>
#include <c10/core/Stream.h>
#include <c10/core/StreamGuard.h>
#include <torch/types.h>

namespace lockstep {

/// Orders what a communication thread does on a GPU: after the work that it is
/// given, before what follows, and beside everything in between, on a stream
/// of its own. On the host, where calls are done when they return, nothing.
class CommStream {
 public:
  /// A point in the order of a stream; null on the host.
  using Mark = std::shared_ptr<c10::Event>;

  explicit CommStream(torch::Device device);

  /// Where the calling thread's stream is now.
  Mark mark() const;
  /// Lets the calling thread's stream go on after `mark`.
  void wait(const Mark& mark) const;
  /// Makes this the calling thread's stream while the guard lives.
  c10::OptionalStreamGuard enter() const;

 private:
  torch::Device device_;
  std::optional<c10::Stream> stream_;
};

}  // namespace lockstep
