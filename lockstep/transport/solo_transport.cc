#include "lockstep/transport/solo_transport.h"

#include <cstdlib>
#include <cstring>
#include <new>

#include "lockstep/base/round_up.h"

namespace lockstep::transport {
namespace {

// The size of a page, at which the memory of a rank starts.
constexpr size_t kPage = 4096;

void copy(Bytes to, ConstBytes from) {
  if (from.empty() || to.data() == from.data()) return;
  std::memmove(to.data(), from.data(), from.size());
}

}  // namespace

void SoloTransport::begin(const Call& call, Milliseconds) {
  check_root(call, 0, 1);
}

void SoloTransport::all_reduce(Bytes data, const Reduction& reduction) {
  if (reduction.combine_scaled) scale(data, reduction);
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
  const size_t room = round_up(bytes + 1, kPage);
  std::shared_ptr<std::byte> memory(
      static_cast<std::byte*>(std::aligned_alloc(kPage, room)), std::free);
  if (!memory) throw std::bad_alloc();
  std::memset(memory.get(), 0, room);
  return std::make_shared<const std::vector<RankMemory>>(
      std::vector<RankMemory>{
          {.owner = memory, .bytes = {memory.get(), bytes}}});
}

void SoloTransport::abort(const std::string&) noexcept {}

}  // namespace lockstep::transport
