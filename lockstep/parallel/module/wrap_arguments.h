#pragma once

#include <concepts>
#include <memory>

#include <torch/nn/module.h>
#include <torch/script.h>
#include <torch/types.h>

// Types from which DataParallel and DistributedDataParallel can be constructed,
// and one-sentence compile errors for all others.
namespace lockstep {
class ParallelModuleBase;
}

namespace lockstep::detail {

template <class T>
inline constexpr bool kNever = false;

template <class T>
concept Holder = requires {
  typename T::ContainedType;
};

/// Module type for a wrapper constructed from a `T`: M for std::shared_ptr<M>
/// and for a holder made by TORCH_MODULE. A module itself can't be wrapped,
/// which check_module() explains.
template <class T>
struct Wrapped;
template <std::derived_from<torch::nn::Module> M>
struct Wrapped<M> {
  using Module = M;
};
template <class M>
struct Wrapped<std::shared_ptr<M>> {
  using Module = M;
};
template <Holder H>
struct Wrapped<H> {
  using Module = typename H::ContainedType;
};
template <>
struct Wrapped<torch::jit::Module> {
  using Module = torch::jit::Module;
};

/// A module, a pointer or a holder that can be wrapped. A wrapper can't.
template <class T>
concept Wrappable = requires {
  typename Wrapped<T>::Module;
}
&&!std::derived_from<typename Wrapped<T>::Module, ParallelModuleBase>;

/// A function that makes another module like the wrapped one.
template <class F, class M>
concept FactoryOf = std::invocable<const F&> &&
    std::convertible_to<std::invoke_result_t<const F&>, std::shared_ptr<M>>;

/// Matches the first arguments of an invalid constructor call: `T` is a module
/// rather than a pointer to one, or the next argument is neither a `Wanted` nor
/// a factory.
template <class T, class Next, class Wanted, class M>
concept WrongArguments = std::derived_from<T, torch::nn::Module> ||
    (!std::convertible_to<Next, Wanted> && !FactoryOf<Next, M>);

/// Fails to compile if `T` is a module rather than a pointer to one.
template <class T>
constexpr void check_module() {
  static_assert(!std::derived_from<T, torch::nn::Module>,
                "the first argument must be a std::shared_ptr to the module, "
                "std::make_shared<Net>(...), or its holder (TORCH_MODULE)");
}

/// Base of the wrappers of TorchScript modules, which are not torch::nn
/// modules.
struct ScriptWrapper {};

/// Reports at compile time that torch::save() and torch::load() do not take a
/// wrapped TorchScript module.
template <std::derived_from<ScriptWrapper> W>
torch::serialize::OutputArchive& operator<<(
    torch::serialize::OutputArchive& archive, const W&) {
  static_assert(kNever<W>,
                "a TorchScript module is saved with "
                "model->module().save(path)");
  return archive;
}
template <std::derived_from<ScriptWrapper> W>
torch::serialize::InputArchive& operator>>(
    torch::serialize::InputArchive& archive, const W&) {
  static_assert(kNever<W>,
                "a TorchScript module is loaded with torch::jit::load(path), "
                "and then wrapped");
  return archive;
}

}  // namespace lockstep::detail
