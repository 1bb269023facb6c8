#pragma once

#include <memory>
#include <optional>

#include <c10/core/Event.h>
#include <c10/core/Stream.h>
#include <c10/core/StreamGuard.h>
#include <torch/types.h>

namespace lockstep {

/// Orders the GPU work of a communication thread on a separate stream: after
/// the work already submitted, before the work that follows, and in parallel
/// with everything in between. Does nothing on the host, where calls are done
/// when they return.
class CommStream {
 public:
  /// A point in the order of a stream; null on the host.
  using Mark = std::shared_ptr<c10::Event>;

  explicit CommStream(torch::Device device);

  /// Returns the current position of the calling thread's stream.
  Mark mark() const;
  /// Makes the calling thread's stream wait for `mark`.
  void wait(const Mark& mark) const;
  /// Makes this the calling thread's stream during the lifetime of the guard.
  c10::OptionalStreamGuard enter() const;

 private:
  torch::Device device_;
  std::optional<c10::Stream> stream_;
};

}  // namespace lockstep
