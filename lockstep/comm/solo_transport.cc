#include "lockstep/comm/solo_transport.h"

#include <cstring>
#include <utility>

#include "lockstep/shm/segment.h"

namespace lockstep {

using transport::Bytes;
using transport::Call;
using transport::ConstBytes;
using transport::Milliseconds;
using transport::RankMemory;
using transport::Reduction;

namespace {

void copy(Bytes to, ConstBytes from) {
  if (from.empty() || to.data() == from.data()) return;
  std::memmove(to.data(), from.data(), from.size());
}

}  // namespace

void SoloTransport::begin(const Call& call, Milliseconds) {
  transport::check_root(call, 0, 1);
}

void SoloTransport::all_reduce(Bytes data, const Reduction& reduction) {
  if (reduction.combine_scaled) transport::scale(data, reduction);
}

void SoloTransport::reduce(Bytes, int, const Reduction&) {}

void SoloTransport::broadcast(Bytes, int) {}

void SoloTransport::all_gather(ConstBytes input,
                               std::span<const Bytes> outputs) {
  copy(outputs[0], input);
}

void SoloTransport::gather(ConstBytes input, std::span<const Bytes> outputs,
                           int) {
  copy(outputs[0], input);
}

void SoloTransport::scatter(Bytes output, std::span<const ConstBytes> inputs,
                            int) {
  copy(output, inputs[0]);
}

void SoloTransport::reduce_scatter(Bytes output,
                                   std::span<const ConstBytes> inputs,
                                   const Reduction&) {
  copy(output, inputs[0]);
}

void SoloTransport::all_to_all(std::span<const Bytes> outputs,
                               std::span<const ConstBytes> inputs) {
  copy(outputs[0], inputs[0]);
}

std::shared_ptr<const std::vector<RankMemory>> SoloTransport::share(
    size_t bytes, Milliseconds) {
  auto segment = shm::Segment::create(bytes);
  const Bytes used = segment->bytes().first(bytes);
  return std::make_shared<const std::vector<RankMemory>>(
      std::vector<RankMemory>{{.owner = std::move(segment), .bytes = used}});
}

void SoloTransport::abort(const std::string&) noexcept {}

}  // namespace lockstep
