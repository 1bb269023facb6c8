// The interfaces of a device type: the guard with its streams and events, and
// the hooks with the generators.
#include <array>
#include <memory>
#include <mutex>
#include <optional>
#include <utility>

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/detail/PrivateUse1HooksInterface.h>
#include <c10/core/Allocator.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>

#include "tests/accelerator/sim/accelerator.h"
#include "tests/accelerator/sim/allocator.h"
#include "tests/accelerator/sim/generator.h"
#include "tests/accelerator/sim/memory.h"
#include "tests/accelerator/sim/stream.h"

namespace lockstep::sim {
namespace {

Event& event_of(void* event) { return *static_cast<Event*>(event); }

class Guard final : public c10::impl::DeviceGuardImplInterface {
 public:
  c10::DeviceType type() const override { return kSim; }
  c10::Device exchangeDevice(c10::Device device) const override {
    return named(exchange_device(device.index()));
  }
  c10::Device getDevice() const override { return named(current_device()); }
  void setDevice(c10::Device device) const override {
    exchange_device(device.index());
  }
  void uncheckedSetDevice(c10::Device device) const noexcept override {
    if (device.has_index()) exchange_device(device.index());
  }
  c10::DeviceIndex deviceCount() const noexcept override {
    return static_cast<c10::DeviceIndex>(installed().devices);
  }

  c10::Stream getStream(c10::Device device) const override {
    return current_stream(device.index());
  }
  c10::Stream getDefaultStream(c10::Device device) const override {
    return c10::Stream(c10::Stream::DEFAULT,
                       device.has_index() ? device : named(current_device()));
  }
  c10::Stream getStreamFromGlobalPool(c10::Device device,
                                      bool /*high*/) const override {
    return stream_of_pool(device.index());
  }
  c10::Stream getNewStream(c10::Device device,
                           int /*priority*/) const override {
    return new_stream(device.index());
  }
  c10::Stream exchangeStream(c10::Stream stream) const override {
    return exchange_stream(stream);
  }
  bool queryStream(const c10::Stream& stream) const override {
    return thread_of(stream).is_idle();
  }
  void synchronizeStream(const c10::Stream& stream) const override {
    thread_of(stream).drain();
  }
  void synchronizeDevice(c10::DeviceIndex index) const override {
    drain_device(index);
  }

  void record(void** event, const c10::Stream& stream,
              c10::DeviceIndex /*index*/,
              c10::EventFlag /*flag*/) const override {
    if (*event == nullptr) *event = new Event();
    thread_of(stream).enqueue(
        [point = event_of(*event).renew()] { Event::mark(*point); });
  }
  void block(void* event, const c10::Stream& stream) const override {
    if (event == nullptr) return;
    if (auto point = event_of(event).point()) {
      thread_of(stream).enqueue([point] { Event::wait(*point); });
    }
  }
  bool queryEvent(void* event) const override {
    if (event == nullptr) return true;
    const auto point = event_of(event).point();
    return point == nullptr || Event::is_reached(*point);
  }
  void synchronizeEvent(void* event) const override {
    if (event == nullptr) return;
    if (const auto point = event_of(event).point()) Event::wait(*point);
  }
  double elapsedTime(void* begin, void* end,
                     c10::DeviceIndex /*index*/) const override {
    return Event::time_ms(*event_of(end).point()) -
           Event::time_ms(*event_of(begin).point());
  }
  void destroyEvent(void* event,
                    c10::DeviceIndex /*i*/) const noexcept override {
    delete static_cast<Event*>(event);
  }
  void recordDataPtrOnStream(const c10::DataPtr& data,
                             const c10::Stream& stream) const override {
    allocator().recordStream(data, stream);
  }

 private:
  static c10::Device named(int index) {
    return {kSim, static_cast<c10::DeviceIndex>(index)};
  }
};

class Hooks final : public at::PrivateUse1HooksInterface {
 public:
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return true; }
  bool hasPrimaryContext(c10::DeviceIndex /*index*/) const override {
    return true;
  }
  c10::DeviceIndex deviceCount() const override {
    return static_cast<c10::DeviceIndex>(installed().devices);
  }
  void setCurrentDevice(c10::DeviceIndex index) const override {
    exchange_device(index);
  }
  c10::DeviceIndex getCurrentDevice() const override {
    return static_cast<c10::DeviceIndex>(current_device());
  }
  c10::DeviceIndex exchangeDevice(c10::DeviceIndex index) const override {
    return static_cast<c10::DeviceIndex>(sim::exchange_device(index));
  }
  c10::DeviceIndex maybeExchangeDevice(c10::DeviceIndex index) const override {
    return exchangeDevice(index);
  }
  const at::Generator& getDefaultGenerator(
      c10::DeviceIndex index) const override {
    return default_generator(index);
  }
  at::Generator getNewGenerator(c10::DeviceIndex index) const override {
    return new_generator(index);
  }
  c10::Device getDeviceFromPtr(void* data) const override {
    return {kSim,
            static_cast<c10::DeviceIndex>(DeviceMemory::get().device_of(data))};
  }
};

std::optional<Options> options_now;

}  // namespace

const Options& installed() {
  TORCH_CHECK(options_now.has_value(), "sim::install() comes first");
  return *options_now;
}

void install(const Options& options) {
  static std::once_flag once;
  std::call_once(once, [&] {
    options_now = options;
    static const Guard guard;
    static Hooks hooks;
    c10::impl::device_guard_impl_registry[static_cast<size_t>(kSim)].store(
        &guard);
    c10::register_privateuse1_backend("sim");
    c10::SetAllocator(kSim, &allocator());
    at::RegisterPrivateUse1HooksInterface(&hooks);
  });
}

}  // namespace lockstep::sim
