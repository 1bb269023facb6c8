#include "tests/accelerator/sim/generator.h"

#include <array>
#include <utility>

#include <ATen/CPUGeneratorImpl.h>

#include "tests/accelerator/sim/accelerator.h"
#include "tests/accelerator/sim/stream.h"

namespace lockstep::sim {
namespace {

/// The generator of a device: one of the CPU that kernels draw from in the
/// order of their stream.
class Generator final : public c10::GeneratorImpl {
 public:
  Generator(int index, at::Generator inner)
      : GeneratorImpl(c10::Device(kSim, static_cast<c10::DeviceIndex>(index)),
                      c10::DispatchKeySet(c10::DispatchKey::PrivateUse1)),
        inner_(std::move(inner)) {}

  static c10::DeviceType device_type() { return kSim; }
  const at::Generator& lend() const {
    is_lent_ = true;
    return inner_;
  }

  void set_current_seed(uint64_t seed) override {
    is_lent_ = false;
    inner_ = at::make_generator<at::CPUGeneratorImpl>(seed);
  }
  void set_offset(uint64_t /*offset*/) override {
    TORCH_CHECK(false, "a generator of sim has no offset");
  }
  uint64_t get_offset() const override {
    TORCH_CHECK(false, "a generator of sim has no offset");
  }
  uint64_t current_seed() const override { return inner_.current_seed(); }
  uint64_t seed() override {
    wait_for_kernels();
    return inner_.seed();
  }
  void set_state(const c10::TensorImpl& state) override {
    is_lent_ = false;
    inner_ = at::make_generator<at::CPUGeneratorImpl>();
    inner_.unsafeGetGeneratorImpl()->set_state(state);
  }
  c10::intrusive_ptr<c10::TensorImpl> get_state() const override {
    wait_for_kernels();
    return inner_.unsafeGetGeneratorImpl()->get_state();
  }

 private:
  /// The generator of CUDA counts what kernels will draw when they are given to
  /// a stream. This one has to wait for them.
  void wait_for_kernels() const {
    if (is_lent_) drain_device(device().index());
  }
  Generator* clone_impl() const override {
    wait_for_kernels();
    return new Generator(device().index(), inner_.clone());
  }

  at::Generator inner_;
  mutable bool is_lent_ = false;  // kernels have it
};

}  // namespace

at::Generator new_generator(int index) {
  if (index < 0) index = current_device();
  return at::make_generator<Generator>(
      index, at::make_generator<at::CPUGeneratorImpl>());
}

const at::Generator& default_generator(int index) {
  static const auto all = [] {
    std::array<at::Generator, kMaxDevices> made;
    for (int i = 0; i < kMaxDevices; ++i) {
      made.at(static_cast<size_t>(i)) = new_generator(i);
    }
    return made;
  }();
  if (index < 0) index = current_device();
  return all.at(static_cast<size_t>(index));
}

at::Generator for_kernel(const at::Generator& generator) {
  return static_cast<const Generator*>(generator.unsafeGetGeneratorImpl())
      ->lend();
}

}  // namespace lockstep::sim
