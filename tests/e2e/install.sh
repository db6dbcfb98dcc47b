#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# `make install`, then a trainer of one's own against the installed tree: with pkg-config, shared and
# static, run by the installed `cairn run`. Only cairn_* is exported.
. "$(dirname "$0")/lib.sh"
[ -e tests/e2e/example.c ] || skip "tests/e2e/example.c is not there"
tree=$work/tree
# Installs what was built, as the other tests run what was built: nothing is made anew meanwhile.
make -s -o all CAIRN_REPORTED=1 BUILD="$BUILD" DESTDIR="$tree" PREFIX=/usr install >"$work/install.out" 2>&1 ||
        die "make install failed"
for file in bin/cairn bin/cairnd bin/cairn-train lib/libcairn.so.0 lib/libcairn.a include/cairn/cairn.h \
        include/cairn/base/types.h lib/pkgconfig/cairn.pc; do
        [ -e "$tree/usr/$file" ] || die "$file was not installed"
done
ok "make install DESTDIR="
# A sanitizer's symbols are no export of ours, and an integrator's plain compiler cannot link them.
nm -u "$tree/usr/lib/libcairn.a" 2>/dev/null | holds -E '__(asan|tsan)_' &&
        skip "an instrumented library links with the sanitizer's flags only; the plain build is tested"

leaked=$(nm -D --defined-only "$tree/usr/lib/libcairn.so.0" | awk '$2 != "A" { print $3 }' |
        sed 's/@.*//' | grep -v '^cairn_' || true)
[ -z "$leaked" ] || die "libcairn.so exports more than cairn_*: $leaked"
leaked=$(nm --defined-only --extern-only "$tree/usr/lib/libcairn.a" 2>/dev/null |
        awk 'NF == 3 { print $3 }' | grep -v '^cairn_' || true)
[ -z "$leaked" ] || die "libcairn.a defines more than cairn_*: $leaked"
ok "shared and static library export cairn_* only"

flags() { # the tree is not where it says it will be
        PKG_CONFIG_PATH=$tree/usr/lib/pkgconfig pkg-config --define-variable=prefix="$tree/usr" "$@" cairn
}
cp tests/e2e/example.c "$work/example.c"
# shellcheck disable=SC2046
(cd "$work" && "${CC:-gcc}" -Wall -Wextra -Werror -o example-shared example.c \
        $(flags --cflags) $(flags --libs)) >"$work/compile.out" 2>&1 ||
        die "the example does not compile against the shared library"
# shellcheck disable=SC2046
(cd "$work" && "${CC:-gcc}" -Wall -Wextra -Werror -o example-static example.c \
        $(flags --cflags) "$tree/usr/lib/libcairn.a" \
        $(flags --static --libs | sed 's/-lcairn//')) >"$work/compile.out" 2>&1 ||
        die "the example does not compile against the static library"
ldd "$work/example-static" | holds libcairn && die "the static example wants libcairn.so"

for kind in shared static; do
        status=0
        LD_LIBRARY_PATH=$tree/usr/lib timeout 110 "$tree/usr/bin/cairn" run --run "example-$kind" \
                --every 5steps -- "$work/example-$kind" >"$work/example-$kind.out" 2>&1 || status=$?
        [ $status -eq 0 ] || die "the $kind example ended with $status"
        says "$work/example-$kind.out" \
                '^the last snapshot is (committed|still being written: waiting for it) \((OK|BUSY)\)$'
        try 0 '✓' "$tree/usr/bin/cairn" verify "example-$kind"
        ok "the example with the $kind library ran under the installed cairn run"
done
