#!/bin/sh
# Installs the Debian packages of missing commands, given as command:package. Says what is missing
# where it may not, and never fails: the tests that need them are skipped with the reason.
missing=""
for pair in "$@"; do
    command -v "${pair%%:*}" >/dev/null 2>&1 || missing="$missing ${pair#*:}"
done
[ -z "$missing" ] && exit 0
as_root=""
if [ "$(id -u)" != 0 ]; then
    as_root="sudo -n"
    sudo -n true 2>/dev/null || as_root="none"
fi
if ! command -v apt-get >/dev/null 2>&1 || [ "$as_root" = none ]; then
    echo "not installed (apt-get cannot be used here):$missing; the tests that need them are skipped"
    exit 0
fi
echo "installing:$missing"
export DEBIAN_FRONTEND=noninteractive
$as_root apt-get update -qq >/dev/null 2>&1
# shellcheck disable=SC2086
$as_root apt-get install -qq -y --no-install-recommends $missing >/dev/null 2>&1 ||
    echo "could not install:$missing; the tests that need them are skipped"
exit 0
