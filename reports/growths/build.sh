#!/usr/bin/env bash
# All tables of this report, one after the other, most of the time for 24 trainings of 3 to 5 minutes on a core. WIKITEXT is a
# folder with WikiText-2's validation and test texts (CC BY-SA; not part of this project). Run it again to resume it:
# trainings that are done are not repeated.
set -euo pipefail
here="$(cd "$(dirname "$0")" && pwd)"
wikitext="$(cd "${1:?usage: build.sh WIKITEXT}" && pwd)"
python "$here/../pretrained/fetch.py"
python "$here/measure_growths.py"
python "$here/error_rates.py"
python "$here/train_growths.py" "$wikitext"
python "$here/refute.py"
python "$here/running.py" "$wikitext" "$here"/../../build/growths/mlm-default-{0,1,2}/model
