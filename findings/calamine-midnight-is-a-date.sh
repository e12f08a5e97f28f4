#!/usr/bin/env bash
# python-calamine 0.9.1: of two cells of an .xlsx sheet with the same format of date and time, one at
# midnight becomes a datetime.date and the other a datetime.datetime. So the type of a column of times
# depends on its values, and Python cannot even compare two of them. openpyxl 3.1.5 gives a datetime
# for both.
#
# Seen: calamine [datetime.date(2025, 9, 15), datetime.datetime(2025, 9, 15, 0, 0, 1)]
#       openpyxl [datetime.datetime(2025, 9, 15, 0, 0), datetime.datetime(2025, 9, 15, 0, 0, 1)]
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m pip install -q --target "$folder" python-calamine==0.9.1 openpyxl==3.1.5
cd "$folder"
PYTHONPATH="$folder" python3 - <<'PYTHON'
from datetime import datetime

from openpyxl import Workbook, load_workbook
from python_calamine import CalamineWorkbook

book = Workbook()
book.active.append([datetime(2025, 9, 15), datetime(2025, 9, 15, 0, 0, 1)])
for cell in book.active[1]:
    cell.number_format = "yyyy-mm-dd hh:mm:ss"
book.save("times.xlsx")
(found,) = CalamineWorkbook.from_path("times.xlsx").get_sheet_by_index(0).to_python()
expected = [cell.value for cell in load_workbook("times.xlsx").active[1]]
print("calamine", found)
print("openpyxl", expected)
kinds = [[type(value).__name__ for value in row] for row in (found, expected)]
raise SystemExit(kinds != [["date", "datetime"], ["datetime", "datetime"]])
PYTHON
