#!/usr/bin/env bash
# Installs what mmtrain needs from Debian 12 (bookworm), or says what is missing.
#
# usage: scripts/setup.sh [--check] [--only build|tests|data|slurm]...
#   --check   install nothing; exit 1 when something is missing
#   --only G  only this group of packages (may be repeated); without it: build, tests and data
# Safe to run again: it does nothing when everything is there. As root it installs, else with sudo where that works
# without a password, else it lists what is missing and how to go on without root.
set -euo pipefail

packages_of() {
  case $1 in
    build) echo cmake ninja-build g++ pkg-config python3 \
      openmpi-bin libopenmpi-dev libyaml-cpp-dev libhdf5-dev libfmt-dev libspdlog-dev libcli11-dev nlohmann-json3-dev \
      libjpeg-dev libpng-dev libwebp-dev libgif-dev libsndfile1-dev libsoxr-dev libkissfft-dev libarchive-dev \
      libpcre2-dev libutf8proc-dev libsentencepiece-dev libxxhash-dev libdnnl-dev ;;
    tests) echo catch2 ;;
    data) echo dataset-fashion-mnist asterisk-core-sounds-{en,es,fr,it,ru}-wav ;;
    slurm) echo slurm-wlm munge ;;
    *) return 1 ;;
  esac
}

check_only=false
groups=()
while [ $# -gt 0 ]; do
  case $1 in
    --check) check_only=true ;;
    --only)
      packages_of "${2:-}" > /dev/null || { echo "setup.sh: --only wants build, tests, data or slurm" >&2; exit 2; }
      groups+=("$2")
      shift ;;
    -h | --help) sed -n '2,9s/^# \{0,1\}//p' "$0"; exit 0 ;;
    *) echo "setup.sh: unknown option $1 (see --help)" >&2; exit 2 ;;
  esac
  shift
done
[ ${#groups[@]} -gt 0 ] || groups=(build tests data)

wanted=()
for group in "${groups[@]}"; do
  read -ra names <<< "$(packages_of "$group")"
  wanted+=("${names[@]}")
done

without_debian() {
  cat >&2 <<'TEXT'
To go on without root, provide the same libraries another way and tell CMake where they are:
  modules:  module load gcc cmake openmpi hdf5 ... ; cmake --preset release
  Spack:    spack install cmake ninja openmpi yaml-cpp hdf5~mpi fmt spdlog cli11 nlohmann-json libjpeg-turbo libpng libwebp \
              giflib libsndfile soxr kissfft libarchive pcre2 utf8proc sentencepiece xxhash onednn catch2@2.13
            spack load ... ; cmake --preset release -DCMAKE_PREFIX_PATH="$(spack find --format '{prefix}' | paste -sd ';')"
  prefix:   cmake --preset release -DCMAKE_PREFIX_PATH="/opt/a;/opt/b" ; export PKG_CONFIG_PATH=/opt/a/lib/pkgconfig
Then MMTRAIN_SETUP=skip scripts/test.sh (or quickstart.sh) leaves this step out. g++ 12 and CMake 3.25 or newer are needed.
The quick start's data packages can be unpacked anywhere: apt-get download NAME; dpkg -x NAME*.deb FOLDER; then
scripts/quickstart.sh --packages FOLDER.
TEXT
}

if ! command -v dpkg-query > /dev/null; then
  echo "setup.sh: this is not a Debian system (no dpkg-query). Packages, by their Debian names:" >&2
  printf '  %s\n' "${wanted[@]}" >&2
  without_debian
  exit 1
fi

# One dpkg-query for all of them; a name it does not know is simply not printed.
installed=$(dpkg-query -W -f '${db:Status-Abbrev}${binary:Package}\n' "${wanted[@]}" 2> /dev/null |
  sed -n 's/^ii \{1,\}//p' | sed 's/:.*//' || true)
missing=()
for package in "${wanted[@]}"; do
  grep -qxF "$package" <<< "$installed" || missing+=("$package")
done
if [ ${#missing[@]} -eq 0 ]; then
  echo "setup: all ${#wanted[@]} packages are installed (${groups[*]})"
  exit 0
fi
echo "setup: missing ${#missing[@]} of ${#wanted[@]} packages: ${missing[*]}"
if $check_only; then
  exit 1
fi

as_root=()
if [ "$(id -u)" -ne 0 ]; then
  if sudo -n true 2> /dev/null || { [ -t 0 ] && command -v sudo > /dev/null; }; then
    as_root=(sudo)
  else
    echo "setup.sh: not root and no sudo: ask your administrator for" >&2
    echo "  apt-get install --no-install-recommends ${missing[*]}" >&2
    without_debian
    exit 1
  fi
fi
echo "setup: installing them with ${as_root[*]:+${as_root[*]} }apt-get"
export DEBIAN_FRONTEND=noninteractive
install=("${as_root[@]}" apt-get install -y --no-install-recommends "${missing[@]}")
if ! "${install[@]}" > /dev/null 2>&1; then # the package lists may be old or absent
  "${as_root[@]}" apt-get update
  "${install[@]}"
fi
echo "setup: done"
