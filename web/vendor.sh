#!/usr/bin/env bash
# Fetches the console's chart library from npm again, checks it, and puts it into web/vendor.
set -euo pipefail
cd "$(dirname "$0")"
version=1.6.32
integrity=KIMVnG68zvu5XXUbC4LQEPnhwOxBuLyW1AHtpm6IKTXImkbLgkMy+jabjLgSLMasNuGGzQm/ep3tOkyTxpiQIw==
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
(cd "$folder" && npm pack --silent "uplot@$version" >/dev/null)
found=$(openssl dgst -sha512 -binary "$folder/uplot-$version.tgz" | base64 -w0)
[ "$found" = "$integrity" ] || { echo "uplot $version has another checksum: $found" >&2; exit 1; }
tar xzf "$folder/uplot-$version.tgz" -C "$folder"
mkdir -p vendor/uplot
cp "$folder"/package/dist/uPlot.iife.min.js "$folder"/package/dist/uPlot.min.css \
  "$folder"/package/LICENSE vendor/uplot/
# A text file ends with a line end.
sed -i -e '$a\' vendor/uplot/*
echo "web/vendor/uplot holds uPlot $version"
