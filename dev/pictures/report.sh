#!/usr/bin/env bash
# Draws report.png: the curves and the maps of amax in a report, as Chromium shows them. dev/guide/tour.md has the numbers
# of the same run. Needs Chromium (scripts/setup.sh --with-browser).
#
#   ./scripts/tour.sh && dev/pictures/report.sh         from out/tour/report.html
#   dev/pictures/report.sh out/d12/report.html d12.png
set -euo pipefail
page=$(realpath "${1:-out/tour/report.html}")
picture=$(realpath "${2:-$(dirname "${BASH_SOURCE[0]}")/report.png}")

# A copy of the page that hides all but the pictured parts.
part=$(mktemp --suffix .html)
trap 'rm "$part"' EXIT
hidden='header, nav, section:not(#curves, #fp8-maps), #charts > :nth-child(n + 4), #heat-fp8 > :nth-child(n + 4), details'
sed "s|^</style>|$hidden { display: none !important } body { overflow: hidden }\n</style>|" "$page" >"$part"
chromium --headless --no-sandbox --hide-scrollbars --window-size=960,1350 --virtual-time-budget=5000 \
    --screenshot="$picture" "file://$part" 2>/dev/null
echo "$picture"
