#include "lockstep/parallel/module/module_handle.h"

#include <algorithm>
#include <sstream>
#include <typeinfo>

#include <c10/util/Type.h>
#include <fmt/format.h>

#include "lockstep/base/error.h"
#include "lockstep/device/random.h"
#include "lockstep/parallel/module/script_scope.h"

namespace lockstep {

using torch::Tensor;

namespace {

std::vector<ModuleHandle::Part> parts_of(const torch::nn::Module& module) {
  std::vector<ModuleHandle::Part> parts;
  for (const auto& item : module.named_modules()) {
    const torch::nn::Module& part = *item.value();
    std::ostringstream text;
    part.pretty_print(text);
    // The printed text is up to the module's author. Two modules that print the
    // same text may still have different types.
    const std::string type = c10::demangle(typeid(part).name());
    parts.emplace_back(item.key(),
                       text.str() == type ? type : type + ", " + text.str());
  }
  return parts;
}

/// Returns whether `value` can be copied to another module and compared,
/// because it contains no tensor and no object.
bool is_plain(const c10::IValue& value) {
  if (value.isNone() || value.isBool() || value.isInt() || value.isDouble() ||
      value.isComplexDouble() || value.isString() || value.isDevice()) {
    return true;
  }
  const auto all_plain = [](const auto& values) {
    return std::all_of(values.begin(), values.end(), [](const auto& each) {
      return is_plain(c10::IValue(each));
    });
  };
  if (value.isTuple()) return all_plain(value.toTupleRef().elements());
  if (value.isList()) return all_plain(value.toListRef());
  if (!value.isGenericDict()) return false;
  for (const auto& item : value.toGenericDict()) {
    if (!is_plain(item.key()) || !is_plain(item.value())) return false;
  }
  return true;
}

/// Calls `act(object, slot)` for each attribute of the module and of its
/// submodules, in an order that depends only on their types.
template <class Act>
void for_each_slot(const torch::jit::Module& module, const Act& act) {
  for (const torch::jit::Module& part : module.modules()) {
    const auto object = part._ivalue();
    for (size_t slot = 0; slot < object->slots().size(); ++slot) {
      act(*object, slot);
    }
  }
}

ModuleHandle::Members members_of(const torch::jit::Module& module) {
  ModuleHandle::Members members;
  for_each_slot(module, [&](c10::ivalue::Object& object, size_t slot) {
    const c10::IValue value = object.getSlot(slot);
    members.emplace_back();
    // A list belongs to the module, so a copy of it is kept.
    if (is_plain(value)) members.back() = value.deepcopy();
  });
  return members;
}

void set_members_of(const torch::jit::Module& module,
                    const ModuleHandle::Members& members) {
  size_t at = 0;
  for_each_slot(module, [&](c10::ivalue::Object& object, size_t slot) {
    if (at >= members.size()) return;
    const std::optional<c10::IValue>& value = members[at++];
    if (!value) return;
    const c10::IValue now = object.getSlot(slot);
    if (!is_plain(now) ||
        (now.tagKind() == value->tagKind() && now == *value)) {
      return;
    }
    object.setSlot(slot, value->deepcopy());
  });
}

std::vector<const void*> identity_of(const torch::jit::Module& module) {
  std::vector<const void*> identity;
  for_each_slot(module, [&](c10::ivalue::Object& object, size_t slot) {
    const c10::IValue& value = object.getSlot(slot);
    if (value.isTensor()) {
      identity.push_back(value.toTensor().unsafeGetTensorImpl());
    } else if (value.isModule()) {
      identity.push_back(value.toObject().get());
    }
  });
  return identity;
}

}  // namespace

ModuleHandle handle_of(std::shared_ptr<torch::nn::Module> module) {
  ModuleHandle handle;
  const torch::nn::Module& whole = *module;
  handle.type = c10::demangle(typeid(whole).name());
  for (const auto& item : module->named_parameters()) {
    handle.parameters.emplace_back(item.key(), item.value());
  }
  for (const auto& item : module->named_buffers()) {
    handle.buffers.emplace_back(item.key(), item.value());
  }
  handle.module = module;
  handle.parts = [module] { return parts_of(*module); };
  handle.identity = [module] {
    std::vector<const void*> identity;
    for (const auto& part : module->modules()) identity.push_back(part.get());
    return identity;
  };
  handle.modes = [module] {
    std::vector<bool> modes;
    for (const auto& part : module->modules()) {
      modes.push_back(part->is_training());
    }
    return modes;
  };
  handle.set_modes = [module](const std::vector<bool>& modes) {
    // Parents come first, so the child's own mode is set last and wins.
    const auto parts = module->modules();
    for (size_t i = 0; i < parts.size() && i < modes.size(); ++i) {
      if (parts[i]->is_training() != modes[i]) parts[i]->train(modes[i]);
    }
  };
  return handle;
}

ModuleHandle handle_of(const torch::jit::Module& module) {
  ModuleHandle handle;
  handle.type = module.type()->repr_str();
  for (const auto& item : module.named_parameters()) {
    handle.parameters.emplace_back(item.name, item.value);
  }
  for (const auto& item : module.named_buffers()) {
    handle.buffers.emplace_back(item.name, item.value);
  }
  // A torch::jit::Module is a handle itself: a copy shares the state.
  handle.forward = [module = torch::jit::Module(module)](
                       const std::vector<c10::IValue>& inputs) mutable {
    const ScriptScope scope;
    return module.forward(inputs);
  };
  // A frozen submodule stays in evaluation mode.
  handle.modes = [module] {
    std::vector<bool> modes;
    for (const torch::jit::Module& part : module.modules()) {
      modes.push_back(!part.hasattr("training") || part.is_training());
    }
    return modes;
  };
  handle.set_modes = [module](const std::vector<bool>& modes) {
    size_t at = 0;
    for (torch::jit::Module part : module.modules()) {
      if (at >= modes.size()) return;
      const bool mode = modes[at++];
      if (part.hasattr("training") && part.is_training() != mode) {
        part.setattr("training", mode);
      }
    }
  };
  handle.parts = [module] {
    std::vector<ModuleHandle::Part> parts;
    for (const auto& item : module.named_modules()) {
      parts.emplace_back(item.name, item.value.type()->repr_str());
    }
    return parts;
  };
  handle.identity = [module] { return identity_of(module); };
  handle.members = [module] { return members_of(module); };
  handle.set_members = [module](const ModuleHandle::Members& members) {
    set_members_of(module, members);
  };
  return handle;
}

std::shared_ptr<torch::nn::Module> clone_module(
    const torch::nn::Module& module) {
  const std::string type = c10::demangle(typeid(module).name());
  const auto fix = [&](const char* derive) {
    return fmt::format(
        "{} torch::nn::Cloneable<{}> and register parameters in reset(), or "
        "pass a factory: DataParallel(module, [] {{ return "
        "std::make_shared<{}>(...); }}, devices)",
        derive, type, type);
  };
  // Cloneable's reset() draws initial weights, which clone() then overwrites.
  // Draws from the default generator would change the numbers that other
  // threads get.
  const RandomScope aside(RandomState::from_thread());
  std::shared_ptr<torch::nn::Module> copy;
  try {
    copy = module.clone();
  } catch (const c10::Error& error) {
    throw InvalidArgument(
        "parallel", {.code = ErrorCode::kNotCloneable,
                     .what = fmt::format("the module {} can't be cloned ({})",
                                         type, error.what_without_backtrace()),
                     .fix = fix("derive it from")});
  }
  const torch::nn::Module* made = copy.get();
  if (made && typeid(*made) == typeid(module)) return copy;
  throw InvalidArgument(
      "parallel",
      {.code = ErrorCode::kNotCloneable,
       .what = fmt::format("clone() of the module {} makes a module of another "
                           "type",
                           type),
       .expected = type,
       .got = made ? c10::demangle(typeid(*made).name()) : "none",
       .fix = fix("derive it, or its base class with it as a template "
                  "parameter, from")});
}

torch::jit::Module clone_module(const torch::jit::Module& module) {
  // Otherwise the copies would be computed from the original's parameters, and
  // all threads would add gradients to the original's parameters directly.
  const torch::NoGradGuard no_grad;
  return module.deepcopy();
}

size_t detail::bytes_of_base() {
  struct Derived : torch::nn::Module {
    char first_member = 0;
  };
  static const size_t bytes = [] {
    const Derived derived;
    const auto* base = reinterpret_cast<const char*>(
        static_cast<const torch::nn::Module*>(&derived));
    return static_cast<size_t>(&derived.first_member - base);
  }();
  return bytes;
}

}  // namespace lockstep
