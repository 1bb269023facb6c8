#include "lockstep/device/random.h"

#include <mutex>
#include <utility>

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Context.h>
#include <ATen/DeviceAccelerator.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <torch/library.h>

// A scope affects operators that are called without a generator through a
// dispatch key that no tensor has and that a thread can switch on. For this
// key, each operator with a `Generator?` argument has a kernel that fills in
// the argument and forwards the call. Every other operator falls through.
// Threads without a scope never use the key and have no overhead.
namespace lockstep {
namespace {

// LibTorch reserves this key for tests of per-thread modes like this one. It
// comes before autograd and autocast, so they see the generator as if the
// caller had passed it.
constexpr auto kScopeKey = c10::DispatchKey::TESTING_ONLY_GenericMode;

// A thread's state, which includes the key, is copied to other threads. The
// generator is not copied, because threads must not share it.
constinit thread_local const at::Generator* scope_generator = nullptr;

uint64_t splitmix64(uint64_t value) {
  value += 0x9e3779b97f4a7c15;
  value = (value ^ (value >> 30)) * 0xbf58476d1ce4e5b9;
  value = (value ^ (value >> 27)) * 0x94d049bb133111eb;
  return value ^ (value >> 31);
}

bool is_generator(const c10::Argument& argument) {
  const auto optional = argument.type()->cast<c10::OptionalType>();
  return optional != nullptr &&
         optional->getElementType()->kind() == c10::TypeKind::GeneratorType;
}

bool is_elsewhere(const c10::IValue& value) {
  if (value.isTensor()) {
    return value.toTensor().defined() && !value.toTensor().is_cpu();
  }
  return value.isDevice() && !value.toDevice().is_cpu();
}

void fill_generator_in(const c10::OperatorHandle& op, c10::DispatchKeySet keys,
                       torch::jit::Stack* stack) {
  const auto& arguments = op.schema().arguments();
  const size_t first = stack->size() - arguments.size();
  const auto begin = stack->begin() + static_cast<ptrdiff_t>(first);
  if (scope_generator != nullptr &&
      std::none_of(begin, stack->end(), is_elsewhere)) {
    for (size_t i = 0; i < arguments.size(); ++i) {
      c10::IValue& value = (*stack)[first + i];
      if (value.isNone() && is_generator(arguments[i])) {
        value = c10::IValue(*scope_generator);
      }
    }
  }
  const c10::DispatchKeySet after(c10::DispatchKeySet::FULL_AFTER, kScopeKey);
  op.redispatchBoxed(keys & after, stack);
}

/// Returns the default generator of the thread's current accelerator. It is
/// undefined if the process has no accelerator, or has not used it.
at::Generator accelerator_generator() {
  const auto type = at::getAccelerator();
  if (!type || !c10::impl::hasDeviceGuardImpl(*type)) return {};
  const c10::impl::VirtualGuardImpl guard(*type);
  if (guard.deviceCount() == 0) return {};
  const auto index = guard.getDevice().index();
  const auto& hooks = at::globalContext().getAcceleratorHooksInterface(*type);
  if (!hooks.hasPrimaryContext(index)) return {};
  at::globalContext().lazyInitDevice(*type);
  return hooks.getDefaultGenerator(index);
}

bool draws_random_numbers(const c10::OperatorName& name) {
  if (name.name.rfind("aten::", 0) != 0) return false;
  const auto op = c10::Dispatcher::singleton().findSchema(name);
  if (!op) return false;
  const auto& arguments = op->schema().arguments();
  return std::any_of(arguments.begin(), arguments.end(), is_generator);
}

TORCH_LIBRARY_IMPL(_, TESTING_ONLY_GenericMode, library) {
  library.fallback(torch::CppFunction::makeFallthrough());
}

// Runs when the program starts, because operators must not be registered while
// other threads call them.
TORCH_LIBRARY_IMPL(aten, TESTING_ONLY_GenericMode, library) {
  for (const auto& name : c10::Dispatcher::singleton().getAllOpNames()) {
    if (!draws_random_numbers(name)) continue;
    const auto full_name = c10::toString(name);
    library.impl(
        full_name.c_str(),
        torch::CppFunction::makeFromBoxedFunction<&fill_generator_in>());
  }
}

}  // namespace

uint64_t mix_seed(uint64_t a, uint64_t b, uint64_t c, uint64_t d) {
  uint64_t mixed = splitmix64(a);
  for (const uint64_t part : {b, c, d}) mixed = splitmix64(mixed ^ part);
  return mixed;
}

RandomState RandomState::from_thread() {
  RandomState state;
  if (scope_generator != nullptr) {
    state.cpu_ = scope_generator->clone();
  } else {
    auto generator = at::detail::getDefaultCPUGenerator();
    const std::lock_guard lock(generator.mutex());
    state.cpu_ = generator.clone();
  }
  auto generator = accelerator_generator();
  if (!generator.defined()) return state;
  const std::lock_guard lock(generator.mutex());
  state.accelerator_ = generator.clone();
  return state;
}

struct RandomScope::State {
  at::Generator generator;
  const at::Generator* outer_generator = nullptr;
  bool outer_key = false;
  at::Tensor outer_state;  // of the accelerator; undefined: none to restore

  /// Calls `change` with the generator of this thread's accelerator, whose
  /// state is restored at the end. Does nothing if there is no such generator.
  template <class Change>
  void change_accelerator(const Change& change) {
    auto current = accelerator_generator();
    if (!current.defined()) return;
    const std::lock_guard lock(current.mutex());
    outer_state = current.get_state();
    change(current);
  }
};

RandomScope::RandomScope(uint64_t seed, uint64_t step, uint64_t shard,
                         uint64_t phase)
    : state_(std::make_unique<State>()) {
  const uint64_t stream = mix_seed(seed, step, shard, phase);
  state_->change_accelerator(
      [&](at::Generator& generator) { generator.set_current_seed(stream); });
  enter(at::make_generator<at::CPUGeneratorImpl>(stream));
}

RandomScope::RandomScope(const RandomState& state)
    : state_(std::make_unique<State>()) {
  if (state.accelerator_.defined()) {
    state_->change_accelerator([&](at::Generator& generator) {
      generator.set_state(state.accelerator_.get_state());
    });
  }
  enter(state.cpu_.clone());
}

void RandomScope::enter(at::Generator generator) {
  state_->generator = std::move(generator);
  state_->outer_generator = scope_generator;
  state_->outer_key = c10::impl::tls_is_dispatch_key_included(kScopeKey);
  scope_generator = &state_->generator;
  c10::impl::tls_set_dispatch_key_included(kScopeKey, true);
}

RandomScope::~RandomScope() {
  c10::impl::tls_set_dispatch_key_included(kScopeKey, state_->outer_key);
  scope_generator = state_->outer_generator;
  if (!state_->outer_state.defined()) return;
  auto generator = accelerator_generator();
  const std::lock_guard lock(generator.mutex());
  generator.set_state(state_->outer_state);
}

}  // namespace lockstep
