#pragma once

#include <concepts>
#include <exception>
#include <optional>
#include <string>
#include <type_traits>
#include <vector>

#include "lockstep/base/error.h"
#include "lockstep/base/json.h"
#include "lockstep/comm/process_group.h"
#include "lockstep/train/metrics.h"
#include "lockstep/train/run_report.h"

// The structs of a report in JSON. A struct lists its keys once, in a function
// fields_of(), which is called to write the struct as well as to read it. It is
// in the namespace of the struct.
namespace lockstep::training {

/// True for `Struct` and `const Struct`.
template <class T, class Struct>
concept Is = std::same_as<std::remove_const_t<T>, Struct>;

void fields_of(Is<DeviceReport> auto& device, const auto& field) {
  field("name", device.name);
  field("samples", device.samples);
  field("busy_fraction", device.busy_fraction);
  field("memory_peak_bytes", device.memory_peak_bytes);
  field("gradient_copy_bytes", device.gradient_copy_bytes);
}

void fields_of(Is<PhaseReport> auto& phases, const auto& field) {
  for (const Phase& phase : kPhases) field(phase.name, phases.*phase.seconds);
}

template <class T>
concept HasFields = requires(T& value) {
  fields_of(value, 0);
};

/// Writes fields to a JSON object.
template <class Json>
class FieldWriter {
 public:
  explicit FieldWriter(Json& object) : object_(object) {}

  void operator()(const char* key, const auto& value) const {
    object_[key] = value;
  }
  void if_known(const char* key, const auto& value) const {
    object_[key] = value;
  }
  void metrics(const std::string& prefix, const Metrics& metrics) const {
    for (const auto& [name, value] : loss_first(metrics)) {
      object_[prefix + name] = value;
    }
  }

 private:
  Json& object_;
};

/// Reads fields from a JSON object. Throws IoError, which names the key.
class FieldReader {
 public:
  explicit FieldReader(const nlohmann::json& object) : object_(object) {}

  void operator()(const char* key, auto& value) const {
    if (!has(key)) {
      throw IoError(
          {.code = ErrorCode::kMalformedData,
           .what = "a run report lacks the key '" + std::string(key) + "'",
           .fix = "was it written by `lockstep train --report`?"});
    }
    const nlohmann::json& found = object_.at(key);
    try {
      found.get_to(value);
    } catch (const nlohmann::json::exception&) {
      throw IoError({.code = ErrorCode::kMalformedData,
                     .what = "a run report's key '" + std::string(key) +
                             "' has a value of the wrong type",
                     .got = found.dump().substr(0, 60)});
    }
  }
  /// Reads a key that older versions did not write.
  void if_known(const char* key, auto& value) const {
    if (has(key)) (*this)(key, value);
  }
  /// Reads the metrics whose keys begin with `prefix`.
  void metrics(const std::string& prefix, Metrics& metrics) const {
    for (const auto& [key, value] : object_.items()) {
      if (key == "samples" || !key.starts_with(prefix)) continue;
      (*this)(key.c_str(), metrics[key.substr(prefix.size())]);
    }
  }

 private:
  bool has(const char* key) const {
    return object_.is_object() && object_.contains(key);
  }

  const nlohmann::json& object_;
};

}  // namespace lockstep::training

template <lockstep::training::HasFields T>
struct nlohmann::adl_serializer<T> {
  template <class Json>
  static void to_json(Json& json, const T& value) {
    json = Json::object();
    fields_of(value, lockstep::training::FieldWriter<Json>(json));
  }
  static void from_json(const nlohmann::json& json, T& value) {
    fields_of(value, lockstep::training::FieldReader(json));
  }
};

/// A value that may be missing is null.
template <class T>
struct nlohmann::adl_serializer<std::optional<T>> {
  template <class Json>
  static void to_json(Json& json, const std::optional<T>& value) {
    json = value ? Json(*value) : Json(nullptr);
  }
  static void from_json(const nlohmann::json& json, std::optional<T>& value) {
    if (!json.is_null()) json.get_to(value.emplace());
  }
};

namespace lockstep::training {

/// Returns what every rank passes as `own`, on every rank. Throws TrainError if
/// it can't be read. Its message begins with `what`. Collective.
template <HasFields T>
std::vector<T> gather_from_ranks(const ProcessGroup& world, const T& own,
                                 const std::string& what) {
  std::vector<T> ranks;
  for (const auto& text : world.all_gather_text(nlohmann::json(own).dump())) {
    try {
      parse_json(text).get_to(ranks.emplace_back());
    } catch (const std::exception& error) {
      throw TrainError({.code = ErrorCode::kMalformedData,
                        .what = what + " can't be read",
                        .got = lockstep::text_of(error),
                        .fix = "run the same build of Lockstep on every rank"});
    }
  }
  return ranks;
}

}  // namespace lockstep::training
