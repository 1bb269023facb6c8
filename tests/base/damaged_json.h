#pragma once

#include <functional>
#include <string>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "lockstep/base/error.h"

namespace lockstep {

/// Expects that `read` reads the document or throws an Error in which a
/// library's words don't occur.
inline void expect_own_error(
    const nlohmann::json& document, const std::string& what,
    const std::function<void(const nlohmann::json&)>& read) {
  try {
    read(document);
  } catch (const Error& error) {
    const std::string text = error.what();
    EXPECT_EQ(text.find("json.exception"), std::string::npos)
        << what << ": " << text;
    EXPECT_EQ(text.find("std::"), std::string::npos) << what << ": " << text;
  } catch (const std::exception& error) {
    ADD_FAILURE() << what << ": not an Error: " << error.what();
  }
}

/// Removes each value within `place`, which is a part of `document`, or gives
/// it each other type, and expects that `read` handles it as expect_own_error()
/// says.
inline void expect_own_errors_within(
    nlohmann::json& document, nlohmann::json& place, const std::string& path,
    const std::function<void(const nlohmann::json&)>& read) {
  const nlohmann::json values[] = {nullptr,
                                   true,
                                   -1,
                                   7,
                                   1e300,
                                   "x",
                                   nlohmann::json::array(),
                                   nlohmann::json::array({1, "x"}),
                                   nlohmann::json::object()};
  for (const auto& key : place.items()) {
    const nlohmann::json original = key.value();
    const std::string here = path + "/" + key.key();
    for (const auto& value : values) {
      key.value() = value;
      expect_own_error(document, here + " = " + value.dump(), read);
    }
    key.value() = original;
    if (original.is_structured()) {
      expect_own_errors_within(document, key.value(), here, read);
    }
  }
  if (!place.is_object()) return;
  const nlohmann::json all = place;
  for (const auto& key : all.items()) {
    place.erase(key.key());
    expect_own_error(document, path + " without " + key.key(), read);
    place = all;
  }
}

/// Damages each value of `document` in turn.
inline void expect_own_errors(
    nlohmann::json document,
    const std::function<void(const nlohmann::json&)>& read) {
  for (const auto& root : {nlohmann::json(), nlohmann::json(1),
                           nlohmann::json("x"), nlohmann::json::array()}) {
    expect_own_error(root, "root", read);
  }
  expect_own_errors_within(document, document, "", read);
}

}  // namespace lockstep
