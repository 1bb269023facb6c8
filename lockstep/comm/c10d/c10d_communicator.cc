#include "lockstep/comm/c10d/c10d_communicator.h"

#include <utility>

#include "lockstep/comm/c10d/c10d_collectives.h"

namespace lockstep {

C10dCommunicator::C10dCommunicator(c10::intrusive_ptr<c10d::Backend> backend,
                                   c10::DeviceType device_type,
                                   std::chrono::milliseconds timeout)
    : backend_(std::move(backend)),
      calls_(backend_->getRank(), backend_->getSize(), device_type),
      timeout_(timeout) {}

void C10dCommunicator::run(const CollectiveCall& call) {
  C10dCollectives collectives(*backend_, C10dCollectives::Mode::kSync);
  call.perform(collectives, timeout_);
}

Communicator::WorkPtr C10dCommunicator::begin(CollectiveCall call) {
  C10dCollectives collectives(*backend_, C10dCollectives::Mode::kAsync);
  call.perform(collectives, timeout_);
  return collectives.last_work();
}

Communicator::WorkPtr C10dCommunicator::send(const at::Tensor& tensor, int to,
                                             int tag) {
  calls_.check_send(tensor, to, tag);
  return C10dCollectives(*backend_, C10dCollectives::Mode::kAsync)
      .send(tensor, to, tag, timeout_);
}

Communicator::WorkPtr C10dCommunicator::recv(const at::Tensor& tensor, int from,
                                             int tag) {
  calls_.check_recv(tensor, from, tag);
  return C10dCollectives(*backend_, C10dCollectives::Mode::kAsync)
      .recv(tensor, from, tag, timeout_);
}

Communicator::WorkPtr C10dCommunicator::recv_any(const at::Tensor& tensor,
                                                 int tag) {
  calls_.check_recv_any(tensor, tag);
  return C10dCollectives(*backend_, C10dCollectives::Mode::kAsync)
      .recv_any(tensor, tag, timeout_);
}

SharedMemory C10dCommunicator::share(size_t bytes) {
  C10dCollectives collectives(*backend_, C10dCollectives::Mode::kSync);
  return collectives.share(bytes, timeout_);
}

}  // namespace lockstep
