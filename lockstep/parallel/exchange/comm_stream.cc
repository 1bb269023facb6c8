#include "lockstep/parallel/exchange/comm_stream.h"

#include <c10/core/impl/VirtualGuardImpl.h>

namespace lockstep {

using c10::impl::VirtualGuardImpl;

CommStream::CommStream(torch::Device device) : device_(device) {
  if (device.is_cpu()) return;
  stream_ = VirtualGuardImpl(device.type()).getStreamFromGlobalPool(device);
}

CommStream::Mark CommStream::mark() const {
  if (!stream_) return nullptr;
  auto event = std::make_shared<c10::Event>(device_.type());
  event->record(VirtualGuardImpl(device_.type()).getStream(device_));
  return event;
}

void CommStream::wait(const Mark& mark) const {
  if (!mark) return;
  mark->block(VirtualGuardImpl(device_.type()).getStream(device_));
}

c10::OptionalStreamGuard CommStream::enter() const {
  return stream_ ? c10::OptionalStreamGuard(*stream_)
                 : c10::OptionalStreamGuard();
}

}  // namespace lockstep
