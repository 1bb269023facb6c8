# lockstep_layer(folder [TORCH] [DEPENDS layers...] [LINK targets...]): one
# static library per folder of lockstep/. Every *.cc in the folder is built. The
# caller chooses x.cc or no_x.cc through EXCLUDE. parallel/ddp becomes
# lockstep_parallel_ddp.

include(GNUInstallDirs)
add_library(lockstep_options INTERFACE)
target_compile_features(lockstep_options INTERFACE cxx_std_20)
target_include_directories(lockstep_options INTERFACE
  $<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}>
  $<INSTALL_INTERFACE:${CMAKE_INSTALL_INCLUDEDIR}>)

# A user's program or shared library that links Lockstep exports none of its
# symbols.
set(CMAKE_CXX_VISIBILITY_PRESET hidden)
set(CMAKE_VISIBILITY_INLINES_HIDDEN ON)

set(LOCKSTEP_WARNINGS -Wall -Wextra -Wpedantic -Wshadow)
# Fused multiply-add would make a sum depend on how a loop was vectorised. The messages
# of LibTorch's macros name source files, from the root of the project.
set(LOCKSTEP_FLAGS -fPIC -ffp-contract=off ${LOCKSTEP_WARNINGS}
  -fmacro-prefix-map=${PROJECT_SOURCE_DIR}/=)
if(LOCKSTEP_SANITIZE)
  add_compile_options(-fsanitize=${LOCKSTEP_SANITIZE} -fno-omit-frame-pointer)
  add_link_options(-fsanitize=${LOCKSTEP_SANITIZE})
endif()
if(LOCKSTEP_COVERAGE)
  add_compile_options(--coverage)
  add_link_options(--coverage)
endif()

# LibTorch contains its own fmt headers, which are found before the system's,
# but no library to link. (Header-only fmt takes 3 s more per file.) The version
# is in fmt's namespace, so one program can have both.
set(torch_fmt ${LOCKSTEP_TORCH_ROOT}/include/fmt/base.h)
set(torch_fmt_version 0)
if(EXISTS ${torch_fmt})
  file(STRINGS ${torch_fmt} torch_fmt_version REGEX "define FMT_VERSION")
  string(REGEX MATCH "[0-9]+" torch_fmt_version "${torch_fmt_version}")
endif()
if(torch_fmt_version GREATER_EQUAL 120000)
  add_library(lockstep_fmt STATIC ${PROJECT_SOURCE_DIR}/cmake/torch_fmt.cc)
  target_compile_options(lockstep_fmt PRIVATE -fPIC)
  target_link_libraries(lockstep_fmt PUBLIC LockstepTorch)
else()
  add_library(lockstep_fmt INTERFACE)
  target_compile_definitions(lockstep_fmt INTERFACE FMT_HEADER_ONLY)
  target_link_libraries(lockstep_fmt INTERFACE LockstepTorch)
endif()

# The large headers are precompiled once for all targets that use torch. This
# reduces 24 s per file to 3.
file(WRITE ${PROJECT_BINARY_DIR}/lockstep_pch.cc "")
add_library(lockstep_pch OBJECT EXCLUDE_FROM_ALL
            ${PROJECT_BINARY_DIR}/lockstep_pch.cc)
# Targets that use it are compiled with the macros of the system's fmt
# (FMT_SHARED), which the layers without torch link. g++ ignores a precompiled
# header that was compiled without them.
target_link_libraries(lockstep_pch PRIVATE lockstep_options lockstep_fmt fmt::fmt
                      nlohmann_json::nlohmann_json)
target_compile_options(lockstep_pch PRIVATE ${LOCKSTEP_FLAGS})
# This is not <torch/torch.h>. For each file with that precompiled header,
# clang++ instantiates all of torch's modules and optimizers again, which takes
# 1.5 s.
set(LOCKSTEP_PRECOMPILED_HEADERS
  <torch/types.h> <torch/utils.h> <torch/autograd.h> <torch/nn/module.h>
  <torch/optim/optimizer.h> <fmt/format.h> <nlohmann/json.hpp>)
target_precompile_headers(lockstep_pch PRIVATE ${LOCKSTEP_PRECOMPILED_HEADERS})

function(lockstep_use_torch target)
  target_precompile_headers(${target} REUSE_FROM lockstep_pch)
endfunction()

function(lockstep_layer folder)
  string(REPLACE "/" "_" name ${folder})
  cmake_parse_arguments(ARG "TORCH;PROGRAM" "" "DEPENDS;LINK;EXCLUDE" ${ARGN})
  file(GLOB sources CONFIGURE_DEPENDS
       ${CMAKE_CURRENT_SOURCE_DIR}/${folder}/*.cc
       ${CMAKE_CURRENT_SOURCE_DIR}/${folder}/*.h)
  foreach(excluded IN LISTS ARG_EXCLUDE)
    list(REMOVE_ITEM sources ${CMAKE_CURRENT_SOURCE_DIR}/${folder}/${excluded})
  endforeach()
  add_library(lockstep_${name} STATIC ${sources})
  set_target_properties(lockstep_${name} PROPERTIES LINKER_LANGUAGE CXX)
  target_compile_options(lockstep_${name} PRIVATE ${LOCKSTEP_FLAGS})
  target_link_libraries(lockstep_${name} PUBLIC lockstep_options ${ARG_LINK})
  foreach(layer IN LISTS ARG_DEPENDS)
    target_link_libraries(lockstep_${name} PUBLIC lockstep_${layer})
  endforeach()
  if(ARG_TORCH)
    target_link_libraries(lockstep_${name} PUBLIC lockstep_fmt)
    lockstep_use_torch(lockstep_${name})
  endif()
  if(NOT ARG_PROGRAM)
    set_property(GLOBAL APPEND PROPERTY LOCKSTEP_LAYERS ${name})
  endif()
endfunction()

function(lockstep_component name)
  add_library(lockstep_${name}_component INTERFACE)
  add_library(lockstep::${name} ALIAS lockstep_${name}_component)
  set_target_properties(lockstep_${name}_component PROPERTIES EXPORT_NAME ${name})
  target_link_libraries(lockstep_${name}_component INTERFACE ${ARGN})
  set_property(GLOBAL APPEND PROPERTY LOCKSTEP_COMPONENTS ${name})
endfunction()
