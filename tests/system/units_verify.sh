#!/bin/bash
# Puts the units into an empty root and has systemd judge them there: it must say nothing at all (an
# unknown key is only a warning to it).
# usage: units_verify.sh [BUILD_DIR]   installs that build; without one, the texts with a stub program
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)

if ! command -v systemd-analyze >/dev/null; then
  echo "systemd-analyze is not installed"
  exit 77
fi

root=$(mktemp -d)
trap 'rm -rf "$root"' EXIT
units=$root/usr/lib/systemd/system

fail() {
  echo "FAILED: $*"
  exit 1
}

install_build() {
  DESTDIR=$root cmake --install "$1" --prefix /usr >"$root/install.log" || {
    cat "$root/install.log"
    fail "cmake --install"
  }
  for path in "$root/usr/lib/sysusers.d/glmd.conf" "$root/usr/lib/tmpfiles.d/glmd.conf" \
    "$root/usr/share/glmd/models/mini/glmd.json"; do
    [ -s "$path" ] || fail "${path#"$root"} was not installed"
  done
}

install_texts() {
  local texts=$here/../../systemd
  mkdir -p "$units" "$root/usr/sbin" "$root/usr/lib/sysusers.d"
  cp "$texts/glmd.socket" "$units/"
  sed 's,@GLMD_SBINDIR@,/usr/sbin,' "$texts/glmd.service.in" >"$units/glmd.service"
  cp "$texts/glmd.sysusers" "$root/usr/lib/sysusers.d/glmd.conf"
  cp /bin/true "$root/usr/sbin/glmd"
}

if [ $# -gt 0 ]; then
  install_build "$1"
else
  install_texts
fi
grep -qx 'ExecStart=/usr/sbin/glmd' "$units/glmd.service" || fail "ExecStart is not /usr/sbin/glmd"
[ -x "$root/usr/sbin/glmd" ] || fail "no executable /usr/sbin/glmd was installed"

# The units that every unit depends on come from the running system.
for unit in sysinit basic shutdown sockets multi-user; do
  cp -L "/usr/lib/systemd/system/$unit.target" "$units/"
done

code=0
systemd-analyze verify --man=no --root="$root" glmd.service glmd.socket \
  2>"$root/verify.err" || code=$?
[ ! -s "$root/verify.err" ] || {
  cat "$root/verify.err"
  fail "systemd-analyze verify has something to say (status $code)"
}
[ "$code" -eq 0 ] || fail "systemd-analyze verify: status $code"
systemd-sysusers --root="$root" --dry-run >"$root/sysusers.log" 2>&1 || {
  cat "$root/sysusers.log"
  fail "systemd-sysusers does not take glmd.conf"
}
echo "units are silent"
