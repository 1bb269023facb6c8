#!/bin/bash
# consumption.sh MODE SOURCE BUILD [PYTHON]: uses Lockstep as its users do, from
# a separate folder, and runs the resulting programs.
#
#   install       cmake --install, then the prefix is moved elsewhere. One
#                 project, with the compiler of the build
#   package       the same with all projects and examples, and both compilers
#   deb           the Debian package, unpacked
#   subdirectory  add_subdirectory()
#   components    a build without the components lm and tools, installed
#   wheel         the package for Python, in an environment of its own, of PYTHON
#                 or of the Python of the build
#
# If root runs this, users' programs are built and run as nobody. As far as the
# system allows, the sources, the build folder and the environment that LibTorch
# came from are hidden from them, because an installation must work without
# these. The wheel needs an environment with torch, which the user nobody may be
# unable to read. So root uses the wheel.
set -euo pipefail
mode=$1
source=$(realpath "$2")
build=$(realpath "$3")
umask 022
work=$(mktemp -d)
chmod 755 "$work"
trap 'rm -rf "$work"' EXIT

cached() {
  sed -n "s/^$1:[A-Z]*=//p" "$build/CMakeCache.txt"
}
own=$(cached CMAKE_CXX_COMPILER)
# The other one of the two compilers that users have.
case $own in
*clang*) other=g++ ;;
*) other=clang++ ;;
esac
command -v "$other" >/dev/null || {
  echo "consumption.sh: expected $other, to try both compilers" >&2
  exit 1
}
bundled=$(cached LOCKSTEP_INSTALL_TORCH)
environment=$(dirname "$(dirname "$(realpath -s \
  "$(cached LOCKSTEP_PYTHON)")")")
hidden=()
become_user=(setpriv --reuid=65534 --regid=65534 --clear-groups)
# Options for a build with the same LibTorch.
mapfile -t torch < <(grep -E '^(Torch_DIR|LOCKSTEP_PYTHON):' \
  "$build/CMakeCache.txt" | sed 's/^/-D/')

# as_user COMMAND...: runs it in $work, as a user who is not root.
as_user() (
  cd "$work"
  set -- env -i HOME="$work" PATH=/usr/bin:/bin LANG=C.UTF-8 "$@"
  if [ "$(id -u)" -ne 0 ]; then
    "$@"
    return
  fi
  if [ ${#become_user[@]} -gt 0 ]; then
    chown -R 65534:65534 "$work/user"
  fi
  set -- "${become_user[@]}" "$@"
  if [ ${#hidden[@]} -eq 0 ]; then
    "$@"
    return
  fi
  unshare -m --propagation private bash -c '
    while [ "$1" != -- ]; do
      mount -t tmpfs none "$1"
      shift
    done
    shift
    exec "$@"' hide "${hidden[@]}" -- "$@"
)

# hide FOLDER...: hides folders from as_user.
hide() {
  [ "$(id -u)" -eq 0 ] || return 0
  unshare -m true 2>/dev/null || {
    echo "(no mount namespaces here: nothing is hidden from the consumers)"
    return 0
  }
  hidden=("$@")
  local place
  for place in "${hidden[@]}"; do
    [ -z "$(as_user ls -A "$place" 2>/dev/null)" ]
  done
  echo "hidden: ${hidden[*]}"
}

hide_what_was_built_from() {
  [ "$bundled" = ON ] || return 0
  hide "$(readlink -f "$environment")" "$build" "$source"
}

configure() {
  as_user cmake -G Ninja -DCMAKE_BUILD_TYPE=Release "$@"
}

# exports_none_of NAMES FILE...: checks that binaries of users export no symbol
# that the pattern NAMES matches.
exports_none_of() {
  local file names=$1
  shift
  for file in "$@"; do
    [ -e "$file" ]
    if nm -D --defined-only "$file" | c++filt | grep -E "$names"; then
      echo "$file exports the names above; expected none of them" >&2
      return 1
    fi
  done
}

# exports_nothing FILE...: checks that they export no symbol of Lockstep.
exports_nothing() {
  exports_none_of 'lockstep::' "$@"
}

# refers_to_nothing PREFIX: checks that programs find libraries relative to
# themselves.
refers_to_nothing() {
  local path
  path=$(readelf -d "$1/libexec/lockstep/lockstep" |
    sed -n 's/.*runpath: \[\(.*\)\]/\1/p')
  echo "RUNPATH $path"
  if [ "$bundled" = ON ] && tr ':' '\n' <<<"$path" | grep -v '^\$ORIGIN/'; then
    echo "the program's RUNPATH has the folders above; expected \$ORIGIN" >&2
    return 1
  fi
}

# has_front_door INCLUDE: checks that each header of Lockstep that an installed
# header includes is installed, and that only public ones are outside detail/.
has_front_door() {
  local name
  (
    cd "$1"
    grep -rhoE '#include "lockstep/[^"]+"' lockstep | cut -d'"' -f2 | sort -u |
      while read -r name; do
        [ -e "$name" ] || {
          echo "$name is included, but not installed" >&2
          exit 1
        }
      done
    find lockstep -name '*.h' -not -path 'lockstep/detail/*' -printf '%p\n' |
      while read -r name; do
        grep -qF "\`$name\`" "$source/docs/api.md" || {
          echo "$name is installed, but has no row in docs/api.md" >&2
          exit 1
        }
      done
  )
  [ -d "$1/lockstep/detail" ]
}

# Builds the small projects against a prefix, each with a different compiler.
# `package` and `deb` together try both compilers with both projects.
build_consumers() {
  local prefix=$1 with_cmake=$2 with_make=$3
  local in=$work/user/consumers
  # Run both at once, because each takes half a minute.
  as_user make -C "$in/pkg_config" CXX="$with_make" \
    PKG_CONFIG_PATH="$prefix/lib/pkgconfig" &
  local made=$!
  build_found_project "$prefix" "$with_cmake"
  configure -S "$in/core" -B "$work/user/core" \
    -DCMAKE_PREFIX_PATH="$prefix" -DCMAKE_CXX_COMPILER="$with_cmake"
  as_user cmake --build "$work/user/core"
  wait "$made"
  exports_nothing "$work/user/found/train" "$work/user/found/libplugin.so" \
    "$in/pkg_config/train"
  local program
  for program in "$work/user/found/train" "$work/user/core/core" \
    "$in/pkg_config/train"; do
    echo "--- $program"
    as_user "$program"
  done
  as_user "$work/user/found/train_program" --batch-size 8 --max-steps 2 --no-eval |
    grep parameter_sha256
}

# Uses the program: bin/lockstep, and the other program, which has LibTorch.
use_program() {
  local prefix=$1
  as_user "$prefix/bin/lockstep" --version
  as_user "$prefix/bin/lockstep" help train | grep -e --strategy
  as_user "$prefix/bin/lockstep" train --model mlp --max-steps 2 --shards 2 \
    --strategy ddp --devices 2xcpu | grep parameter_sha256
  as_user "$prefix/bin/lockstep" run --nproc-per-node 2 -- \
    "$work/user/found/train"
}

# Checks that `compare --pytorch` of PREFIX has its script, and uses a Python of
# the user.
compare_with_pytorch() {
  local prefix=$1 python=$work/user/python
  cat >"$python" <<'END'
#!/bin/sh
# A Python that imports torch (-c), or measures. It records its arguments.
[ "$1" = -c ] && exit 0
echo "$@" >>"$0.was_given"
echo '{"model": "mlp", "batch": 4, "world_size": 1, "parameters": 1, "step_times_s": [1]}'
END
  chmod 755 "$python"
  set -- "$prefix/bin/lockstep" compare --pytorch --model mlp --batch-size 4 \
    --devices cpu --strategies single --steps 1 --warmup 0 --rounds 1
  as_user LOCKSTEP_PYTHON="$python" "$@" >/dev/null
  grep -qF "$prefix/share/lockstep/pytorch_step_time.py" "$python.was_given"
  as_user "$@" --help >"$work/said"
  as_user LOCKSTEP_PYTHON=/no/python "$@" >>"$work/said" 2>&1 || true
  as_user PATH=/no/folder "$@" >>"$work/said" 2>&1 || true
  grep -F "'/no/python'" "$work/said"
  grep -F "'python3'" "$work/said"
  if grep -F -e "$build" -e "$source" -e "$environment" "$work/said"; then
    echo "compare --pytorch names the folders above; expected none of whoever" \
      "built it" >&2
    return 1
  fi
}

# Installs the build as $work/prefix, and hides what it was built from.
install_and_move() {
  cmake --install "$build" --prefix "$work/first" >"$work/install.log"
  mv "$work/first" "$work/prefix"
  has_front_door "$work/prefix/include"
  hide_what_was_built_from
  refers_to_nothing "$work/prefix"
}

# build_found_project PREFIX COMPILER: the project that uses find_package().
build_found_project() {
  configure -S "$work/user/consumers/find_package" -B "$work/user/found" \
    -DCMAKE_PREFIX_PATH="$1" -DCMAKE_CXX_COMPILER="$2"
  as_user cmake --build "$work/user/found"
}

# has_metadata DIST_INFO: checks what the wheel says about itself.
has_metadata() {
  local name
  # Debian 12 has a newer C library than the wheel needs.
  if grep -q '^VERSION_CODENAME=bookworm' /etc/os-release; then
    grep -x 'Tag: .*-manylinux_2_34_[a-z0-9_]*' "$1/WHEEL"
  fi
  [ "$(grep -c '^License-File: ' "$1/METADATA")" -gt 10 ]
  sed -n 's/^License-File: //p' "$1/METADATA" | while read -r name; do
    [ -s "$1/licenses/$name" ]
  done
  if grep -P '\]\((?!https:|#)' "$1/METADATA"; then
    echo "the links above lead nowhere outside of the repository" >&2
    return 1
  fi
}

mkdir "$work/user"
cp -R "$source/tests/consumers" "$source/examples" "$work/user"
case $mode in
install)
  install_and_move
  build_found_project "$work/prefix" "$own"
  exports_nothing "$work/user/found/train" "$work/user/found/libplugin.so"
  as_user "$work/user/found/train"
  use_program "$work/prefix"
  ;;
package)
  install_and_move
  cmake -G Ninja -S "$source" -B "$work/core_only" -DLOCKSTEP_CORE_ONLY=ON \
    "${torch[@]}" >"$work/configure.log"
  cmake --install "$work/core_only" --component headers \
    --prefix "$work/core_headers" >"$work/install.log"
  has_front_door "$work/core_headers/include"
  [ ! -e "$work/core_headers/include/lockstep/lockstep.h" ]
  [ ! -e "$work/core_headers/include/lockstep/train" ]
  build_consumers "$work/prefix" "$other" "$own"
  use_program "$work/prefix"
  compare_with_pytorch "$work/prefix"
  configure -S "$work/user/examples" -B "$work/user/build" \
    -DCMAKE_PREFIX_PATH="$work/prefix" -DCMAKE_CXX_COMPILER="$own"
  as_user cmake --build "$work/user/build"
  mapfile -t programs < <(find "$work/user/build" -maxdepth 2 -type f \
    -executable)
  [ ${#programs[@]} -gt 0 ]
  for program in "${programs[@]}"; do
    echo "--- $program"
    # The programs may write to their working folder.
    as_user sh -c 'cd user && exec "$1"' sh "$program"
  done
  python3 "$source/tests/cli/practical_programs.py" "$work/user/build/bin" \
    "$work/prefix/bin" "$(cached LOCKSTEP_PYTHON)"
  ;;
deb)

  (cd "$build" && cpack -G DEB -B "$work/deb" >"$work/cpack.log") || {
    cat "$work/cpack.log" >&2
    exit 1
  }
  mapfile -t packages < <(find "$work/deb" -maxdepth 1 -name '*.deb')
  [ ${#packages[@]} -eq 1 ]
  rm -rf "$work/deb/_CPack_Packages"
  dpkg-deb --info "${packages[0]}"
  ls -l "${packages[0]}"
  for needed in libc6 libhwloc15 libpcre2-8-0 libssl3; do
    dpkg-deb -f "${packages[0]}" Depends | grep -qw -- "$needed"
  done
  version=$(dpkg-deb -f "${packages[0]}" Version)
  dpkg-deb -x "${packages[0]}" "$work/root"
  zcat "$work/root/usr/share/doc/lockstep/changelog.gz" |
    grep -F "lockstep ($version)"
  grep -x 'Files: \*' "$work/root/usr/share/doc/lockstep/copyright"
  zcat "$work/root/usr/share/man/man1/lockstep.1.gz" |
    grep -x '.SH "LOCKSTEP TRAIN"'
  rm -rf "$work/deb"
  hide_what_was_built_from
  refers_to_nothing "$work/root/usr"
  build_consumers "$work/root/usr" "$own" "$other"
  use_program "$work/root/usr"
  compare_with_pytorch "$work/root/usr"
  ;;
subdirectory)
  for compiler in "$own" "$other"; do
    # Users who build Lockstep themselves have their own LibTorch.
    cmake -G Ninja -DCMAKE_BUILD_TYPE=Release -DCMAKE_UNITY_BUILD=ON \
      -S "$work/user/consumers/subdirectory" -B "$work/${compiler##*/}" \
      -DLOCKSTEP_SOURCE="$source" -DCMAKE_CXX_COMPILER="$compiler" \
      "${torch[@]}"
    cmake --build "$work/${compiler##*/}" --target minimal plugin
    exports_nothing "$work/${compiler##*/}/minimal" "$work/${compiler##*/}/libplugin.so"
    (cd "$work" && "$work/${compiler##*/}/minimal")
  done
  ;;
components)
  cmake -G Ninja -DCMAKE_BUILD_TYPE=Release -DCMAKE_UNITY_BUILD=ON \
    -S "$source" -B "$work/without" -DCMAKE_CXX_COMPILER="$own" \
    -DLOCKSTEP_LM=OFF -DLOCKSTEP_TOOLS=OFF -DLOCKSTEP_BUILD_TESTS=OFF \
    -DLOCKSTEP_BUILD_BENCH=OFF -DLOCKSTEP_INSTALL_TORCH=OFF "${torch[@]}"
  cmake --build "$work/without"
  cmake --install "$work/without" --prefix "$work/prefix" >"$work/install.log"
  has_front_door "$work/prefix/include"
  for left_out in lm.h lm detail/lm detail/tools; do
    [ ! -e "$work/prefix/include/lockstep/$left_out" ]
  done
  if grep -q pcre2 "$work/prefix/lib/pkgconfig/lockstep.pc"; then
    echo "lockstep.pc names pcre2, which only lm needs" >&2
    exit 1
  fi
  for command in top compare generate; do
    "$work/prefix/bin/lockstep" $command >"$work/said" 2>&1 && exit 1
    grep -F "without the command '$command'" "$work/said"
  done
  become_user=()
  build_found_project "$work/prefix" "$own"
  as_user "$work/user/found/train"
  use_program "$work/prefix"
  ;;
wheel)
  cp "$source/tests/cli/parity/python_backend.py" "$work/user"
  ninja -C "$build" lockstep_python
  python3 "$source/tools/wheel.py" "$build"
  mapfile -t wheels < <(find "$source/build/wheel" -maxdepth 1 -name '*.whl')
  [ ${#wheels[@]} -eq 1 ]
  "${4:-$(cached LOCKSTEP_PYTHON)}" -m venv "$work/user/venv"
  bin=$work/user/venv/bin
  install=("$bin/pip" install --disable-pip-version-check --no-deps)
  if [ -n "${4:-}" ]; then
    mapfile -t same < <("$environment/bin/python" -m pip freeze |
      grep -E '^(torch|numpy)==')
    "${install[@]}" "${same[@]}" || {
      echo "$0: Skipped"
      echo "${same[*]} for $4 can't be downloaded, so the wheel was not used there"
      exit 77
    }
  fi
  # All other packages, without a download of gigabytes. Of those with compiled code,
  # only NVIDIA's fit another Python. $environment may lead through a link in $source,
  # which gets hidden.
  site=$("$bin/python" -c 'import site; print(site.getsitepackages()[0])')
  for package in "$(readlink -f "$environment")"/lib/python3.*/site-packages/*; do
    if [ ! -e "$site/${package##*/}" ] &&
      { [ -z "${4:-}" ] || [[ $package == */nvidia* ]] ||
        [ -z "$(find "$package" -name '*.so*' -print -quit)" ]; }; then
      ln -s "$package" "$site"
    fi
  done
  "${install[@]}" "${wheels[0]}"
  if grep -rlF -e "$build" -e "$source" "$site/lockstep" "$site/lockstep.libs"; then
    echo "the files above name the folders that the wheel was built in" >&2
    exit 1
  fi
  exports_none_of 'lockstep::|fmt::|SSL_|EVP_' "$site"/lockstep/_c10d_*.so
  has_metadata "$site"/lockstep-*.dist-info
  version=$("$bin/pip" show lockstep | sed -n 's/^Version: //p')
  "$bin/lockstep" --version | grep -F "$version"
  become_user=()
  hide "$build" "$source"
  as_user "$bin/python" -m torch.distributed.run --standalone --nproc-per-node 2 \
    user/consumers/ddp.py | grep -x '2 ranks over lockstep'
  as_user "$bin/lockstep" run --nproc-per-node 2 user/consumers/ddp.py |
    grep '2 ranks over lockstep'
  as_user "$bin/lockstep" run --nproc-per-node 2 user/python_backend.py |
    grep 'calls are those of Gloo'
  build_found_project "$(as_user "$bin/lockstep" cmake-prefix)" "$own"
  as_user "$work/user/found/train"
  use_program "$work/user/venv"
  ;;
*)
  echo "consumption.sh: expected install, package, deb, subdirectory," \
    "components or wheel, got '$mode'" >&2
  exit 2
  ;;
esac
