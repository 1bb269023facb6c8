# Sourced by the set-up scripts: messages, errors and logs.

log_dir=${LOCKSTEP_SETUP_LOGS:-build/setup}

say() {
  printf '[setup] %s\n' "$*"
}

# fail WHAT EXPECTED GOT FIX: prints one line in the form of Lockstep's errors.
fail() {
  printf '[setup] %s; expected %s, got %s; %s\n' "$@" >&2
  exit 1
}

# run_logged LOG COMMAND...: runs it and writes its output to LOG.
run_logged() {
  local log=$1
  shift
  mkdir -p "$(dirname "$log")"
  "$@" >"$log" 2>&1 </dev/null
}

# cause_of LOG: prints in a few words why apt or pip failed.
cause_of() {
  if grep -qiE 'no space left|not enough free space' "$1"; then
    echo "no space left on the disk"
  elif grep -qiE 'could not resolve|name resolution|failed to fetch|(could not|failed to) connect|connection (refused|timed out|broken)|max retries|unable to connect|network is unreachable|proxy' "$1"; then
    echo "a mirror that can't be reached"
  elif grep -qF '(from versions: none)' "$1"; then
    echo "a mirror that can't be reached, or is empty"
  elif grep -qiE 'no matching distribution|unable to locate package|has no installation candidate' "$1"; then
    echo "a mirror without $(grep -oiE '(distribution found for|locate package) [^ ]+' "$1" | tail -1 | awk '{print $NF}')"
  elif grep -qiE 'could not get lock|is locked|permission denied' "$1"; then
    grep -iE 'could not get lock|is locked|permission denied' "$1" | tail -1
  else
    grep -vE '^[[:space:]]*$' "$1" | tail -1
  fi
}

# fresh_if_moved BUILD SOURCE: prints --fresh if CMake configured BUILD for sources
# in another place. CMake refuses the build folder of a clone that was moved or
# copied, because all that it has cached is about the former place.
fresh_if_moved() {
  local source
  source=$(sed -n 's/^CMAKE_HOME_DIRECTORY:[A-Z]*=//p' "$1/CMakeCache.txt" \
    2>/dev/null || true)
  [ -z "$source" ] || [ "$source" -ef "$2" ] || echo --fresh
}

# need_space FOLDER MIB WHAT: fails before a download that doesn't fit.
need_space() {
  local free
  free=$(df --output=avail -m "$1" | tail -1 | tr -d ' ')
  if [ "$free" -lt "$2" ]; then
    fail "not enough disk space for $3" "$2 MiB free in $1" "$free MiB" \
      "free some, or name another folder: $4"
  fi
}

# Returns whether to install CUDA: if there is a GPU driver, or if
# LOCKSTEP_CUDA=ON asks for it (to build on a host without a GPU for hosts with
# one). A toolkit proves nothing, because images contain one on any host.
# FindLockstepTorch.cmake makes the same check.
wants_cuda() {
  case ${LOCKSTEP_CUDA:-AUTO} in
  ON) true ;;
  OFF) false ;;
  *) command -v nvidia-smi >/dev/null || [ -e /dev/nvidiactl ] ||
    ldconfig -p 2>/dev/null | grep -q 'libcuda\.so' ;;
  esac
}
