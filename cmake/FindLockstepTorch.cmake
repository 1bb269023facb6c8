# Finds LibTorch and defines the target LockstepTorch.
#
# The first of these that is set is used: Torch_DIR (the CMake folder of a
# LibTorch or a torch wheel), LOCKSTEP_PYTHON (a Python with torch),
# LOCKSTEP_TORCH_DEFAULT (set by the installed package), .venv next to the
# sources.
#
# This doesn't use find_package(Torch), which fails for the CUDA wheel on a
# machine without a CUDA toolkit, and sets flags for every target. See
# docs/decisions/.

set(Torch_DIR "" CACHE PATH "LibTorch's share/cmake/Torch folder")
set(LOCKSTEP_PYTHON "" CACHE FILEPATH "A Python interpreter that has torch")

if(Torch_DIR)
  get_filename_component(_torch_root "${Torch_DIR}/../../.." ABSOLUTE)
elseif(LOCKSTEP_TORCH_DEFAULT AND NOT LOCKSTEP_PYTHON)
  set(_torch_root "${LOCKSTEP_TORCH_DEFAULT}")
else()
  if(NOT LOCKSTEP_PYTHON)
    # Use the same spelling as the Makefile. Another one would rebuild the
    # tests.
    cmake_path(SET _python NORMALIZE
               ${CMAKE_CURRENT_LIST_DIR}/../.venv/bin/python)
    set(LOCKSTEP_PYTHON ${_python}
        CACHE FILEPATH "A Python interpreter that has torch" FORCE)
  endif()
  execute_process(
    COMMAND ${LOCKSTEP_PYTHON} -c
            "import importlib.util as u; print(u.find_spec('torch').submodule_search_locations[0])"
    OUTPUT_VARIABLE _torch_root OUTPUT_STRIP_TRAILING_WHITESPACE
    ERROR_QUIET RESULT_VARIABLE _torch_result)
  if(NOT _torch_result EQUAL 0)
    set(_torch_root "")
  endif()
endif()
# Use the real path instead of .venv, because programs find libraries by it.
get_filename_component(LOCKSTEP_TORCH_ROOT "${_torch_root}" REALPATH)

find_library(LOCKSTEP_TORCH_CPU torch_cpu PATHS "${LOCKSTEP_TORCH_ROOT}/lib"
             NO_DEFAULT_PATH NO_CACHE)
include(FindPackageHandleStandardArgs)
find_package_handle_standard_args(LockstepTorch
  REQUIRED_VARS LOCKSTEP_TORCH_CPU
  REASON_FAILURE_MESSAGE "no LibTorch in '${_torch_root}'. Run `make setup` or name one with -DTorch_DIR=... or -DLOCKSTEP_PYTHON=...")
if(NOT LockstepTorch_FOUND)
  return()
endif()

set(LOCKSTEP_TORCH_LIB_DIR ${LOCKSTEP_TORCH_ROOT}/lib)
set(_torch_include ${LOCKSTEP_TORCH_ROOT}/include)
if(NOT EXISTS ${_torch_include}/torch/headeronly/version.h)
  message(FATAL_ERROR "the LibTorch in ${LOCKSTEP_TORCH_ROOT} is too old: "
                      "expected 2.10 or newer")
endif()
file(READ ${_torch_include}/torch/headeronly/version.h _torch_version_h)
string(REGEX MATCH "TORCH_VERSION_MAJOR ([0-9]+)" _ "${_torch_version_h}")
set(_torch_major ${CMAKE_MATCH_1})
string(REGEX MATCH "TORCH_VERSION_MINOR ([0-9]+)" _ "${_torch_version_h}")
set(LOCKSTEP_TORCH_VERSION "${_torch_major}.${CMAKE_MATCH_1}")

if(NOT TARGET LockstepTorch)
  add_library(LockstepTorch INTERFACE IMPORTED)
  # SYSTEM, because warnings in LibTorch's headers are not ours.
  target_include_directories(LockstepTorch SYSTEM INTERFACE
    ${_torch_include} ${_torch_include}/torch/csrc/api/include)
  target_compile_features(LockstepTorch INTERFACE cxx_std_20)
  target_link_libraries(LockstepTorch INTERFACE
    ${LOCKSTEP_TORCH_LIB_DIR}/libtorch_cpu.so
    ${LOCKSTEP_TORCH_LIB_DIR}/libc10.so)
  if(LOCKSTEP_TORCH_DEFAULT)
    # Users' programs also find LibTorch after they are installed. Lockstep's
    # own programs have a different path (LockstepInstall.cmake).
    target_link_options(LockstepTorch INTERFACE
      "LINKER:-rpath,${LOCKSTEP_TORCH_LIB_DIR}")
  endif()

  # Libraries to link a program with. libtorch_cuda registers its kernels when
  # it is loaded, and a linker that sees no used symbol would drop it.
  set(LOCKSTEP_HAS_CUDA OFF)
  set(LOCKSTEP_CUDA_LIBRARIES "")
  if(NOT LOCKSTEP_CUDA STREQUAL "OFF" AND
     EXISTS ${LOCKSTEP_TORCH_LIB_DIR}/libtorch_cuda.so)
    # The cudart next to LibTorch fits its NCCL and cuBLAS. The one in a toolkit
    # may be older, and so may the NCCL in its folder. A build needs the toolkit
    # for its headers, but an installed LibTorch does not.
    file(GLOB _cudart ${LOCKSTEP_TORCH_ROOT}/../nvidia/cu[0-9]*/lib/libcudart.so.*)
    if(LOCKSTEP_TORCH_DEFAULT AND _cudart)
      set(_has_headers ON)
    else()
      find_package(CUDAToolkit QUIET)
      set(_has_headers ${CUDAToolkit_FOUND})
    endif()
    if(_cudart)
      list(GET _cudart 0 _cudart)
      cmake_path(GET _cudart PARENT_PATH _cudart_folder)
    else()
      set(_cudart CUDA::cudart)
    endif()
    if(LOCKSTEP_TORCH_DEFAULT AND _cudart_folder)
      target_link_options(LockstepTorch INTERFACE
        "LINKER:-rpath,${_cudart_folder}")
    endif()
    if(_has_headers)
      # The headers are for all files, so that switching CUDA on or off compiles
      # two files again instead of all.
      target_include_directories(LockstepTorch SYSTEM INTERFACE
                                 ${CUDAToolkit_INCLUDE_DIRS})
      set(LOCKSTEP_CUDA_LIBRARIES
        "-Wl,--no-as-needed" ${LOCKSTEP_TORCH_LIB_DIR}/libtorch_cuda.so
        ${LOCKSTEP_TORCH_LIB_DIR}/libc10_cuda.so "-Wl,--as-needed"
        ${_cudart})
    endif()
    # A toolkit proves nothing, because images contain one on any host.
    find_library(LOCKSTEP_GPU_DRIVER libcuda.so.1)
    find_program(LOCKSTEP_NVIDIA_SMI nvidia-smi)
    mark_as_advanced(LOCKSTEP_GPU_DRIVER LOCKSTEP_NVIDIA_SMI)
    if(LOCKSTEP_CUDA_LIBRARIES AND
       (LOCKSTEP_CUDA STREQUAL "ON" OR EXISTS /dev/nvidiactl OR
        LOCKSTEP_GPU_DRIVER OR LOCKSTEP_NVIDIA_SMI))
      set(LOCKSTEP_HAS_CUDA ON)
      target_link_libraries(LockstepTorch INTERFACE ${LOCKSTEP_CUDA_LIBRARIES})
    endif()
  endif()
  if(LOCKSTEP_CUDA STREQUAL "ON" AND NOT LOCKSTEP_HAS_CUDA)
    message(FATAL_ERROR "LOCKSTEP_CUDA=ON, but there is no CUDA toolkit or "
                        "this LibTorch is built without CUDA")
  endif()
endif()
if(NOT LockstepTorch_FIND_QUIETLY)
  message(STATUS "LibTorch ${LOCKSTEP_TORCH_VERSION} in "
                 "${LOCKSTEP_TORCH_ROOT}, CUDA ${LOCKSTEP_HAS_CUDA}")
endif()
